// The element functions of include/shardlab in grid-stride loops, one element a thread and turn.
#include "kernels.h"

#include "shardlab/cast.h"
#include "shardlab/launch.h"
#include "shardlab/reduce.h"

namespace shardlab {
namespace {

constexpr int kThreads = 256;
constexpr std::int64_t kMaxBlocks = 4096;  // enough to fill any device; the loop strides over the rest

// Makes a device current for one launch and puts the caller's back: torch reads the current device from the CUDA runtime.
class OnDevice {
 public:
  explicit OnDevice(int device) {
    error = cudaGetDevice(&previous_);
    if (error == cudaSuccess) error = cudaSetDevice(device);
  }
  ~OnDevice() { cudaSetDevice(previous_); }
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;
  cudaError_t error;

 private:
  int previous_ = 0;
};

dim3 grid_for(std::int64_t n) {
  const std::int64_t blocks = (n + kThreads - 1) / kThreads;
  return dim3(static_cast<unsigned>(blocks < kMaxBlocks ? blocks : kMaxBlocks));
}

__device__ inline std::int64_t first_index() { return static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; }

__device__ inline std::int64_t stride() { return static_cast<std::int64_t>(gridDim.x) * blockDim.x; }

template <class T>
__global__ void sum_kernel(RankPointers chunks, std::int64_t num_ranks, T* out, std::int64_t n) {
  for (std::int64_t i = first_index(); i < n; i += stride()) {
    const auto chunk = [&](std::int64_t rank) { return static_cast<const T*>(chunks.chunk[rank])[i]; };
    out[i] = sum_in_rank_order<T>(chunk, num_ranks);
  }
}

template <class From, class To>
__global__ void cast_kernel(const From* from, To* to, std::int64_t n) {
  for (std::int64_t i = first_index(); i < n; i += stride()) narrow(widen(from[i]), to[i]);
}

template <class Grad, class Copy>
__global__ void adamw_kernel(float* p, float* m, float* v, const Grad* grad, Copy* copy, std::int64_t n, AdamWStep step) {
  for (std::int64_t i = first_index(); i < n; i += stride()) {
    float weight = p[i], first = m[i], second = v[i];
    adamw(weight, first, second, widen(grad[i]), step);
    p[i] = weight;
    m[i] = first;
    v[i] = second;
    if (copy != nullptr) narrow(weight, copy[i]);
  }
}

template <class T>
void sum_typed(const RankPointers& chunks, std::int64_t num_ranks, void* out, std::int64_t n, cudaStream_t stream) {
  SHARDLAB_LAUNCH(sum_kernel<T>, grid_for(n), dim3(kThreads), stream, chunks, num_ranks, static_cast<T*>(out), n);
}

template <class From, class To>
void cast_typed(const void* from, void* to, std::int64_t n, cudaStream_t stream) {
  const From* source = static_cast<const From*>(from);
  SHARDLAB_LAUNCH((cast_kernel<From, To>), grid_for(n), dim3(kThreads), stream, source, static_cast<To*>(to), n);
}

template <class Grad, class Copy>
void adamw_typed(float* p, float* m, float* v, const void* grad, void* copy, std::int64_t n, const AdamWStep& step,
                 cudaStream_t stream) {
  const Grad* source = static_cast<const Grad*>(grad);
  Copy* target = static_cast<Copy*>(copy);
  SHARDLAB_LAUNCH((adamw_kernel<Grad, Copy>), grid_for(n), dim3(kThreads), stream, p, m, v, source, target, n, step);
}

template <class Grad>
void adamw_grad(float* p, float* m, float* v, const void* grad, DType copy_dtype, void* copy, std::int64_t n,
                const AdamWStep& step, cudaStream_t stream) {
  // Without a copy its pointer is null and its type does not matter.
  if (copy_dtype == DType::fp16) return adamw_typed<Grad, FP16>(p, m, v, grad, copy, n, step, stream);
  adamw_typed<Grad, BF16>(p, m, v, grad, copy, n, step, stream);
}

}  // namespace

extern "C" {

int shardlab_cuda_device_count() {
  int count = 0;
  return cudaGetDeviceCount(&count) == cudaSuccess ? count : 0;
}

const char* shardlab_cuda_error(int code) { return cudaGetErrorString(static_cast<cudaError_t>(code)); }

int shardlab_cuda_sum_ranks(int dtype, const RankPointers* chunks, std::int64_t num_ranks, void* out, std::int64_t n,
                            int device, void* stream) {
  const OnDevice on(device);
  if (on.error != cudaSuccess) return on.error;
  cudaStream_t queue = static_cast<cudaStream_t>(stream);
  switch (static_cast<DType>(dtype)) {
    case DType::fp32: sum_typed<float>(*chunks, num_ranks, out, n, queue); break;
    case DType::fp64: sum_typed<double>(*chunks, num_ranks, out, n, queue); break;
    case DType::bf16: sum_typed<BF16>(*chunks, num_ranks, out, n, queue); break;
    case DType::fp16: sum_typed<FP16>(*chunks, num_ranks, out, n, queue); break;
    case DType::none: return cudaErrorInvalidValue;
  }
  return cudaGetLastError();
}

int shardlab_cuda_cast(int from_dtype, const void* from, int to_dtype, void* to, std::int64_t n, int device, void* stream) {
  const OnDevice on(device);
  if (on.error != cudaSuccess) return on.error;
  cudaStream_t queue = static_cast<cudaStream_t>(stream);
  const DType source = static_cast<DType>(from_dtype), target = static_cast<DType>(to_dtype);
  if (source == DType::fp32 && target == DType::bf16) cast_typed<float, BF16>(from, to, n, queue);
  else if (source == DType::fp32 && target == DType::fp16) cast_typed<float, FP16>(from, to, n, queue);
  else if (source == DType::bf16 && target == DType::fp32) cast_typed<BF16, float>(from, to, n, queue);
  else if (source == DType::fp16 && target == DType::fp32) cast_typed<FP16, float>(from, to, n, queue);
  else return cudaErrorInvalidValue;
  return cudaGetLastError();
}

int shardlab_cuda_adamw(float* p, float* m, float* v, int grad_dtype, const void* grad, int copy_dtype, void* copy,
                        std::int64_t n, const AdamWStep* step, int device, void* stream) {
  const OnDevice on(device);
  if (on.error != cudaSuccess) return on.error;
  cudaStream_t queue = static_cast<cudaStream_t>(stream);
  const DType target = static_cast<DType>(copy_dtype);
  switch (static_cast<DType>(grad_dtype)) {
    case DType::fp32: adamw_grad<float>(p, m, v, grad, target, copy, n, *step, queue); break;
    case DType::bf16: adamw_grad<BF16>(p, m, v, grad, target, copy, n, *step, queue); break;
    case DType::fp16: adamw_grad<FP16>(p, m, v, grad, target, copy, n, *step, queue); break;
    default: return cudaErrorInvalidValue;
  }
  return cudaGetLastError();
}

}  // extern "C"

}  // namespace shardlab
