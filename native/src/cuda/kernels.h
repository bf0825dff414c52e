// The C functions that kernels.cu offers: they queue a kernel on a stream and return a CUDA error code, 0 for success.
#pragma once

#include <cstdint>

#include "shardlab/kernels.h"

namespace shardlab {

constexpr int kMaxRanks = 256;

// By value, as a kernel argument (2 KiB): no copy to the device that would have to outlive the call.
struct RankPointers {
  const void* chunk[kMaxRanks];
};

extern "C" {
int shardlab_cuda_device_count();
const char* shardlab_cuda_error(int code);
int shardlab_cuda_sum_ranks(int dtype, const RankPointers* chunks, std::int64_t num_ranks, void* out, std::int64_t n,
                            int device, void* stream);
int shardlab_cuda_cast(int from_dtype, const void* from, int to_dtype, void* to, std::int64_t n, int device, void* stream);
int shardlab_cuda_adamw(float* p, float* m, float* v, int grad_dtype, const void* grad, int copy_dtype, void* copy,
                        std::int64_t n, const AdamWStep* step, int device, void* stream);
}

}  // namespace shardlab
