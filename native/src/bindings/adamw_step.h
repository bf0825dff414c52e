// The Python class AdamWStep, local to each of the two modules.
#pragma once

#include <pybind11/pybind11.h>

#include "shardlab/adamw.h"

namespace shardlab {

inline void bind_adamw_step(pybind11::module_& module) {
  namespace py = pybind11;
  py::class_<AdamWStep>(module, "AdamWStep", py::module_local())
      .def(py::init<float, float, float, float, float, float, float, float>(), py::kw_only(), py::arg("beta2"),
           py::arg("one_minus_beta1"), py::arg("one_minus_beta2"), py::arg("eps"), py::arg("step_size"),
           py::arg("sqrt_bias_correction2"), py::arg("decay"), py::arg("l2"));
}

}  // namespace shardlab
