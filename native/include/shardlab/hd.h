// Marks a function that holds the mathematics of one element and is compiled for the host and for the device.
//
// Always inline: the files of src/cpu are compiled once per instruction set, and an out-of-line copy of a shared function
// would be merged by the linker into one of them, which an older CPU then cannot run.
#pragma once

#if defined(__CUDACC__)
#define SHARDLAB_HD __host__ __device__ __forceinline__
#elif defined(__GNUC__)
#define SHARDLAB_HD inline __attribute__((always_inline))
#else
#define SHARDLAB_HD inline
#endif
