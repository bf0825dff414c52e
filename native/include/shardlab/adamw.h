// Adam and AdamW for one element, in fp32, operation by operation as torch.optim computes them.
//
// Source: Kingma and Ba, Adam, 2015, algorithm 1; Loshchilov and Hutter, Decoupled Weight Decay Regularization, 2019,
// algorithm 2.
#pragma once

#include <math.h>  // sqrtf, the C function: one name for host and device, and an instruction under -fno-math-errno

#include "shardlab/hd.h"

namespace shardlab {

struct AdamWStep {
  float beta2;
  float one_minus_beta1;
  float one_minus_beta2;
  float eps;
  float step_size;              // lr / (1 - beta1^step)
  float sqrt_bias_correction2;  // sqrt(1 - beta2^step)
  float decay;                  // decoupled: 1 - lr * weight_decay; else 1
  float l2;                     // L2: weight_decay, added to the gradient; else 0
};

SHARDLAB_HD void adamw(float& p, float& m, float& v, float grad, const AdamWStep& step) {
  p = p * step.decay;
  if (step.l2 != 0.0f) grad = grad + step.l2 * p;
  m = m + step.one_minus_beta1 * (grad - m);
  v = v * step.beta2 + (step.one_minus_beta2 * grad) * grad;
  const float denominator = sqrtf(v) / step.sqrt_bias_correction2 + step.eps;
  p = p - (step.step_size * m) / denominator;
}

}  // namespace shardlab
