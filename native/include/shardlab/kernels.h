// What one instruction set offers: plain functions over [begin, end) of untyped memory. Threads, argument checks and the choice
// of the instruction set lie above (src/bindings, and the Python package).
#pragma once

#include <cstdint>

#include "shardlab/adamw.h"

namespace shardlab {

enum class DType : int { fp32 = 0, fp64 = 1, bf16 = 2, fp16 = 3, none = -1 };

struct Kernels {
  const char* isa;

  // out[i] = sum over ranks, in order, of chunks[rank][i]. out may be one of the chunks.
  void (*sum_ranks)(DType dtype, const void* const* chunks, std::int64_t num_ranks, void* out, std::int64_t begin,
                    std::int64_t end);

  // to[i] = from[i], between fp32 and a 16-bit type.
  void (*cast)(DType from_dtype, const void* from, DType to_dtype, void* to, std::int64_t begin, std::int64_t end);

  // One AdamW step of fp32 p, m, v; copy, unless its dtype is none, receives the new p rounded to it.
  void (*adamw)(float* p, float* m, float* v, DType grad_dtype, const void* grad, DType copy_dtype, void* copy,
                std::int64_t begin, std::int64_t end, const AdamWStep& step);
};

extern const Kernels kernels_generic;
extern const Kernels kernels_avx2;  // defined on x86-64 only

}  // namespace shardlab
