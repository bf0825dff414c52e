// Kernels that use what cuda_on_cpu.h has to get right: shuffles, shared memory, barriers, two of them wrongly.
#include "shardlab/launch.h"

__device__ inline float warp_sum(float value) {
  for (unsigned delta = 16; delta; delta >>= 1) value += __shfl_down_sync(0xffffffffu, value, delta);
  return value;
}

__global__ void sum_kernel(const float* x, int n, float* out) {
  __shared__ float partial[32];
  float sum = 0;
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) sum += x[i];
  sum = warp_sum(sum);
  if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = sum;
  __syncthreads();
  if (threadIdx.x < 32) {
    const float all = warp_sum(threadIdx.x < blockDim.x / 32 ? partial[threadIdx.x] : 0.0f);
    if (threadIdx.x == 0) atomicAdd(out, all);
  }
}

__global__ void returns_before_barrier(int limit) {
  if (static_cast<int>(threadIdx.x) >= limit) return;
  __syncthreads();
}

__global__ void different_barriers(int) {
  if (threadIdx.x % 2) __syncthreads();
  else __syncwarp();
}

extern "C" int sum(const float* x, int n, float* out) {
  SHARDLAB_LAUNCH(sum_kernel, dim3(3), dim3(64), nullptr, x, n, out);
  return cudaGetLastError();
}

extern "C" int early_return(int limit) {
  SHARDLAB_LAUNCH(returns_before_barrier, dim3(1), dim3(64), nullptr, limit);
  return cudaGetLastError();
}

extern "C" int mixed() {
  SHARDLAB_LAUNCH(different_barriers, dim3(1), dim3(64), nullptr, 0);
  return cudaGetLastError();
}

extern "C" const char* error_text(int code) { return cudaGetErrorString(static_cast<cudaError_t>(code)); }
