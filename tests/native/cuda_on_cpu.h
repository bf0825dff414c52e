// Runs a .cu file on the CPU: compiled as C++, each CUDA thread is a fiber (ucontext), blocks run one after another.
//
// What it has: thread and block indices, __shared__, __syncthreads, __syncwarp, shuffles, atomicAdd, and errors for barriers that
// not all threads reach. What it has not: real concurrency (no races are found), tensor cores, asynchronous copies, cooperative
// groups. Floating-point results are those of the host's compiler with -ffp-contract=off, as nvcc gives with --fmad=false.
#pragma once

#include <ucontext.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

#define __global__
#define __device__
#define __host__
#define __shared__ static  // one block runs at a time

struct dim3 {
  unsigned x, y, z;
  dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
  unsigned count() const { return x * y * z; }
  dim3 at(unsigned flat) const { return dim3(flat % x, flat / x % y, flat / (x * y)); }
};

namespace cuda_on_cpu {

enum class State { ready, at_warp_barrier, at_block_barrier, finished };

struct Thread {
  ucontext_t context;
  State state;
  dim3 index;
  std::uint64_t exchanged;  // what this lane offers in a shuffle
};

class Block {
 public:
  static constexpr unsigned kWarp = 32;
  static constexpr std::size_t kStackBytes = 64 * 1024;

  dim3 grid, block, block_index;
  std::vector<Thread> threads;
  unsigned current = 0;

  Thread& thread() { return threads[current]; }

  void run(const std::function<void()>& kernel) {
    kernel_ = &kernel;
    for (unsigned flat = 0; flat < threads.size(); ++flat) prepare(flat);
    for (;;) {
      run_ready_threads();
      const unsigned finished = count(State::finished);
      if (finished == threads.size()) return;
      if (release_warps()) continue;
      if (count(State::at_block_barrier) + finished != threads.size())
        throw std::runtime_error("deadlock: some threads wait at __syncthreads and some at __syncwarp");
      if (finished != 0) throw std::runtime_error("__syncthreads is not reached by threads that have returned");
      for (Thread& one : threads) one.state = State::ready;
    }
  }

  void wait(State barrier) {
    thread().state = barrier;
    swapcontext(&thread().context, &scheduler_);
  }

  void resize() {
    threads.resize(block.count());
    stacks_.resize(kStackBytes * threads.size());
  }

 private:
  static void enter();

  void prepare(unsigned flat) {
    Thread& one = threads[flat];
    one.state = State::ready;
    one.index = block.at(flat);
    getcontext(&one.context);
    one.context.uc_stack.ss_sp = &stacks_[kStackBytes * flat];
    one.context.uc_stack.ss_size = kStackBytes;
    one.context.uc_link = &scheduler_;
    makecontext(&one.context, enter, 0);
  }

  void run_ready_threads() {
    for (current = 0; current < threads.size(); ++current)
      if (thread().state == State::ready) swapcontext(&scheduler_, &thread().context);
  }

  unsigned count(State state) const {
    unsigned found = 0;
    for (const Thread& one : threads) found += one.state == state;
    return found;
  }

  // A warp goes on when all its lanes that have not returned wait at the warp's barrier.
  bool release_warps() {
    bool released = false;
    for (std::size_t first = 0; first < threads.size(); first += kWarp) {
      const std::size_t last = first + kWarp < threads.size() ? first + kWarp : threads.size();
      unsigned waiting = 0, elsewhere = 0;
      for (std::size_t lane = first; lane < last; ++lane) {
        waiting += threads[lane].state == State::at_warp_barrier;
        elsewhere += threads[lane].state == State::at_block_barrier;
      }
      if (waiting == 0 || elsewhere != 0) continue;
      released = true;
      for (std::size_t lane = first; lane < last; ++lane)
        if (threads[lane].state == State::at_warp_barrier) threads[lane].state = State::ready;
    }
    return released;
  }

  const std::function<void()>* kernel_ = nullptr;
  std::vector<char> stacks_;
  ucontext_t scheduler_;
};

inline Block& machine() {
  static Block block;
  return block;
}

inline void Block::enter() {
  Block& self = machine();
  (*self.kernel_)();
  self.thread().state = State::finished;
}

inline std::string& last_error() {
  static std::string text;
  return text;
}

inline void launch(dim3 grid, dim3 block, const std::function<void()>& kernel) {
  Block& self = machine();
  self.grid = grid;
  self.block = block;
  self.resize();
  last_error().clear();
  try {
    for (unsigned flat = 0; flat < grid.count(); ++flat) {
      self.block_index = grid.at(flat);
      self.run(kernel);
    }
  } catch (const std::exception& error) {
    last_error() = error.what();
  }
}

template <class T>
T shuffle(T value, unsigned lane) {
  static_assert(sizeof(T) <= sizeof(std::uint64_t), "a shuffle exchanges at most 8 bytes");
  Block& self = machine();
  std::memcpy(&self.thread().exchanged, &value, sizeof value);
  self.wait(State::at_warp_barrier);
  T result;
  std::memcpy(&result, &self.threads[self.current / Block::kWarp * Block::kWarp + lane % Block::kWarp].exchanged, sizeof result);
  self.wait(State::at_warp_barrier);
  return result;
}

}  // namespace cuda_on_cpu

#define threadIdx (cuda_on_cpu::machine().thread().index)
#define blockIdx (cuda_on_cpu::machine().block_index)
#define blockDim (cuda_on_cpu::machine().block)
#define gridDim (cuda_on_cpu::machine().grid)
#define __syncthreads() cuda_on_cpu::machine().wait(cuda_on_cpu::State::at_block_barrier)
#define __syncwarp(...) cuda_on_cpu::machine().wait(cuda_on_cpu::State::at_warp_barrier)
#define SHARDLAB_LAUNCH(kernel, grid, block, stream, ...) \
  ((void)(stream), cuda_on_cpu::launch(grid, block, [=] { kernel(__VA_ARGS__); }))

template <class T>
T __shfl_down_sync(unsigned, T value, unsigned delta) {
  const unsigned lane = cuda_on_cpu::machine().current % cuda_on_cpu::Block::kWarp;
  return cuda_on_cpu::shuffle(value, lane + delta < cuda_on_cpu::Block::kWarp ? lane + delta : lane);
}

template <class T>
T __shfl_xor_sync(unsigned, T value, unsigned mask) {
  return cuda_on_cpu::shuffle(value, (cuda_on_cpu::machine().current % cuda_on_cpu::Block::kWarp) ^ mask);
}

template <class T>
T atomicAdd(T* address, T value) {
  const T previous = *address;
  *address = previous + value;
  return previous;
}

// The few calls of the runtime that launchers make. There is one device, number 0.
using cudaStream_t = void*;
enum cudaError_t : int { cudaSuccess = 0, cudaErrorInvalidValue = 1, cudaErrorInvalidDevice = 101, cudaErrorLaunchFailure = 719 };
inline cudaError_t cudaGetDeviceCount(int* count) { return *count = 1, cudaSuccess; }
inline cudaError_t cudaGetDevice(int* device) { return *device = 0, cudaSuccess; }
inline cudaError_t cudaSetDevice(int device) { return device == 0 ? cudaSuccess : cudaErrorInvalidDevice; }
inline cudaError_t cudaGetLastError() { return cuda_on_cpu::last_error().empty() ? cudaSuccess : cudaErrorLaunchFailure; }
inline const char* cudaGetErrorString(cudaError_t error) {
  return error == cudaErrorLaunchFailure ? cuda_on_cpu::last_error().c_str() : error == cudaSuccess ? "no error" : "invalid";
}
