// A kernel launch that is spelt without <<<>>>, so that a .cu file is also valid C++: the tests compile it with g++ against a
// header that runs CUDA threads as fibers on the CPU.
#pragma once

#if defined(SHARDLAB_CUDA_ON_CPU)
#include "cuda_on_cpu.h"
#else
#include <cuda_runtime.h>
#define SHARDLAB_LAUNCH(kernel, grid, block, stream, ...) kernel<<<grid, block, 0, stream>>>(__VA_ARGS__)
#endif
