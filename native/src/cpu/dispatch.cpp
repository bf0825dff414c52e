#include "dispatch.h"

#include <cstdlib>
#include <stdexcept>
#include <string>
#include <vector>

namespace shardlab {
namespace {

// Best first.
std::vector<const Kernels*> runnable() {
  std::vector<const Kernels*> found;
#if defined(SHARDLAB_HAS_AVX2)
  if (__builtin_cpu_supports("avx2")) found.push_back(&kernels_avx2);
#endif
  found.push_back(&kernels_generic);
  return found;
}

const Kernels& choose() {
  const std::vector<const Kernels*> found = runnable();
  const char* wanted = std::getenv("SHARDLAB_ISA");
  if (wanted == nullptr || *wanted == '\0') return *found.front();
  std::string names;
  for (const Kernels* one : found) {
    if (std::string(one->isa) == wanted) return *one;
    names += std::string(names.empty() ? "" : ", ") + one->isa;
  }
  throw std::invalid_argument("SHARDLAB_ISA=" + std::string(wanted) + ": this build on this CPU runs " + names);
}

}  // namespace

const Kernels& kernels() {
  static const Kernels& chosen = choose();
  return chosen;
}

}  // namespace shardlab
