// The module shardlab.native._cuda. It imports on a machine without a GPU: device_count() is 0 there, and a launch raises.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

#include "../cuda/kernels.h"
#include "adamw_step.h"

namespace py = pybind11;
using namespace shardlab;

namespace {

using Address = std::uintptr_t;

template <class T>
T* at(Address address) {
  return reinterpret_cast<T*>(address);
}

void check(const char* kernel, int code) {
  if (code != 0) throw std::runtime_error(std::string(kernel) + " was not launched: " + shardlab_cuda_error(code));
}

void sum_ranks(int dtype, const std::vector<Address>& chunks, Address out, std::int64_t n, int device, Address stream) {
  if (chunks.size() > kMaxRanks) throw std::invalid_argument("at most " + std::to_string(kMaxRanks) + " ranks at a time");
  RankPointers pointers{};
  for (std::size_t rank = 0; rank < chunks.size(); ++rank) pointers.chunk[rank] = at<const void>(chunks[rank]);
  check("sum_ranks", shardlab_cuda_sum_ranks(dtype, &pointers, static_cast<std::int64_t>(chunks.size()), at<void>(out), n,
                                             device, at<void>(stream)));
}

void cast(int from_dtype, Address from, int to_dtype, Address to, std::int64_t n, int device, Address stream) {
  check("cast", shardlab_cuda_cast(from_dtype, at<const void>(from), to_dtype, at<void>(to), n, device, at<void>(stream)));
}

void adamw_step(Address p, Address m, Address v, int grad_dtype, Address grad, int copy_dtype, Address copy, std::int64_t n,
                const AdamWStep& step, int device, Address stream) {
  check("adamw", shardlab_cuda_adamw(at<float>(p), at<float>(m), at<float>(v), grad_dtype, at<const void>(grad), copy_dtype,
                                     at<void>(copy), n, &step, device, at<void>(stream)));
}

}  // namespace

PYBIND11_MODULE(_cuda, module) {
  module.doc() = "CUDA kernels; called through shardlab.native, which checks arguments.";
  bind_adamw_step(module);
  module.def("device_count", &shardlab_cuda_device_count);
  module.def("sum_ranks", &sum_ranks);
  module.def("cast", &cast);
  module.def("adamw", &adamw_step);
}
