// The loops, compiled once per instruction set: SHARDLAB_VARIANT is generic, avx2, ...; the flags come from CMake.
//
// Everything here that is not inlined lies in an anonymous namespace, and no header of the standard library with code in it is
// included: see hd.h.
#include "shardlab/kernels.h"

#include "shardlab/cast.h"
#include "shardlab/reduce.h"

#define SHARDLAB_JOIN_(a, b) a##b
#define SHARDLAB_JOIN(a, b) SHARDLAB_JOIN_(a, b)
#define SHARDLAB_TEXT_(a) #a
#define SHARDLAB_TEXT(a) SHARDLAB_TEXT_(a)

namespace shardlab {
namespace {

// Partial sums of this many elements stay in the first-level cache while the ranks are walked in order.
constexpr std::int64_t kBlock = 1024;

template <class T>
void sum_typed(const void* const* chunks, std::int64_t num_ranks, void* out, std::int64_t begin, std::int64_t end) {
  typename SumOf<T>::type sum[kBlock];
  for (std::int64_t start = begin; start < end; start += kBlock) {
    const std::int64_t length = end - start < kBlock ? end - start : kBlock;
    const T* first = static_cast<const T*>(chunks[0]) + start;
    for (std::int64_t i = 0; i < length; ++i) sum[i] = widen(first[i]);
    for (std::int64_t rank = 1; rank < num_ranks; ++rank) {
      const T* chunk = static_cast<const T*>(chunks[rank]) + start;
      for (std::int64_t i = 0; i < length; ++i) sum[i] = sum[i] + widen(chunk[i]);
    }
    T* target = static_cast<T*>(out) + start;
    for (std::int64_t i = 0; i < length; ++i) narrow(sum[i], target[i]);
  }
}

template <class From, class To>
void cast_typed(const void* from, void* to, std::int64_t begin, std::int64_t end) {
  const From* __restrict source = static_cast<const From*>(from);
  To* __restrict target = static_cast<To*>(to);
  for (std::int64_t i = begin; i < end; ++i) narrow(widen(source[i]), target[i]);
}

struct NoCopy {};
SHARDLAB_HD void narrow(float, NoCopy&) {}

// NoCopy has a size, yet its pointer is null: index only what is there.
template <class Copy>
SHARDLAB_HD void store(Copy* copy, std::int64_t i, float p) {
  narrow(p, copy[i]);
}
SHARDLAB_HD void store(NoCopy*, std::int64_t, float) {}

template <class Grad, class Copy>
void adamw_typed(float* __restrict p, float* __restrict m, float* __restrict v, const void* grad, void* copy,
                 std::int64_t begin, std::int64_t end, const AdamWStep& given) {
  const AdamWStep step = given;  // a local: stores through p cannot change it
  const Grad* __restrict source = static_cast<const Grad*>(grad);
  Copy* __restrict target = static_cast<Copy*>(copy);
  for (std::int64_t i = begin; i < end; ++i) {
    float weight = p[i], first = m[i], second = v[i];
    adamw(weight, first, second, widen(source[i]), step);
    p[i] = weight;
    m[i] = first;
    v[i] = second;
    store(target, i, weight);
  }
}

void sum_ranks(DType dtype, const void* const* chunks, std::int64_t num_ranks, void* out, std::int64_t begin,
               std::int64_t end) {
  switch (dtype) {
    case DType::fp32: return sum_typed<float>(chunks, num_ranks, out, begin, end);
    case DType::fp64: return sum_typed<double>(chunks, num_ranks, out, begin, end);
    case DType::bf16: return sum_typed<BF16>(chunks, num_ranks, out, begin, end);
    case DType::fp16: return sum_typed<FP16>(chunks, num_ranks, out, begin, end);
    case DType::none: return;
  }
}

void cast(DType from_dtype, const void* from, DType to_dtype, void* to, std::int64_t begin, std::int64_t end) {
  if (from_dtype == DType::fp32 && to_dtype == DType::bf16) return cast_typed<float, BF16>(from, to, begin, end);
  if (from_dtype == DType::fp32 && to_dtype == DType::fp16) return cast_typed<float, FP16>(from, to, begin, end);
  if (from_dtype == DType::bf16 && to_dtype == DType::fp32) return cast_typed<BF16, float>(from, to, begin, end);
  if (from_dtype == DType::fp16 && to_dtype == DType::fp32) return cast_typed<FP16, float>(from, to, begin, end);
}

template <class Grad>
void adamw_grad(float* p, float* m, float* v, const void* grad, DType copy_dtype, void* copy, std::int64_t begin,
                std::int64_t end, const AdamWStep& step) {
  switch (copy_dtype) {
    case DType::bf16: return adamw_typed<Grad, BF16>(p, m, v, grad, copy, begin, end, step);
    case DType::fp16: return adamw_typed<Grad, FP16>(p, m, v, grad, copy, begin, end, step);
    default: return adamw_typed<Grad, NoCopy>(p, m, v, grad, copy, begin, end, step);
  }
}

void adamw_step(float* p, float* m, float* v, DType grad_dtype, const void* grad, DType copy_dtype, void* copy,
                std::int64_t begin, std::int64_t end, const AdamWStep& step) {
  switch (grad_dtype) {
    case DType::bf16: return adamw_grad<BF16>(p, m, v, grad, copy_dtype, copy, begin, end, step);
    case DType::fp16: return adamw_grad<FP16>(p, m, v, grad, copy_dtype, copy, begin, end, step);
    default: return adamw_grad<float>(p, m, v, grad, copy_dtype, copy, begin, end, step);
  }
}

}  // namespace

const Kernels SHARDLAB_JOIN(kernels_, SHARDLAB_VARIANT) = {SHARDLAB_TEXT(SHARDLAB_VARIANT), sum_ranks, cast, adamw_step};

}  // namespace shardlab
