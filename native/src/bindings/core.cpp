// The module shardlab.native._core: addresses and sizes in, nothing out. The Python package has checked the arguments.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cstdint>
#include <vector>

#include "adamw_step.h"
#include "dispatch.h"

namespace py = pybind11;
using namespace shardlab;

namespace {

using Address = std::uintptr_t;

template <class T>
T* at(Address address) {
  return reinterpret_cast<T*>(address);
}

void sum_ranks(int dtype, const std::vector<Address>& chunks, Address out, std::int64_t n, int threads) {
  std::vector<const void*> pointers;
  for (Address chunk : chunks) pointers.push_back(at<const void>(chunk));
  for_ranges(n, threads, [&](std::int64_t begin, std::int64_t end) {
    kernels().sum_ranks(static_cast<DType>(dtype), pointers.data(), static_cast<std::int64_t>(pointers.size()),
                        at<void>(out), begin, end);
  });
}

void cast(int from_dtype, Address from, int to_dtype, Address to, std::int64_t n, int threads) {
  for_ranges(n, threads, [&](std::int64_t begin, std::int64_t end) {
    kernels().cast(static_cast<DType>(from_dtype), at<const void>(from), static_cast<DType>(to_dtype), at<void>(to), begin,
                   end);
  });
}

void adamw_step(Address p, Address m, Address v, int grad_dtype, Address grad, int copy_dtype, Address copy, std::int64_t n,
                const AdamWStep& step, int threads) {
  for_ranges(n, threads, [&](std::int64_t begin, std::int64_t end) {
    kernels().adamw(at<float>(p), at<float>(m), at<float>(v), static_cast<DType>(grad_dtype), at<const void>(grad),
                    static_cast<DType>(copy_dtype), at<void>(copy), begin, end, step);
  });
}

}  // namespace

PYBIND11_MODULE(_core, module) {
  module.doc() = "C++ kernels; called through shardlab.native, which checks arguments.";
  // Read while the module is loaded, so that a wrong SHARDLAB_ISA is an import error and not a late one.
  module.attr("isa") = kernels().isa;
#if defined(_OPENMP)
  module.attr("openmp") = true;
#else
  module.attr("openmp") = false;
#endif
  bind_adamw_step(module);
  const auto unlocked = py::call_guard<py::gil_scoped_release>();
  module.def("sum_ranks", &sum_ranks, unlocked);
  module.def("cast", &cast, unlocked);
  module.def("adamw", &adamw_step, unlocked);
}
