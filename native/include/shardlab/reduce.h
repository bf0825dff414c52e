// The sum of one element over ranks, taken in rank order, so that its bits depend on nothing but the numbers.
//
// bf16 and fp16 are widened to fp32 and rounded once at the end; fp32 and fp64 are added as they are. The sum starts with
// the first rank's value, not with zero: zero plus minus zero would lose the sign.
#pragma once

#include <cstdint>

#include "shardlab/cast.h"
#include "shardlab/hd.h"

namespace shardlab {

template <class T>
struct SumOf {
  using type = float;
};

template <>
struct SumOf<double> {
  using type = double;
};

// chunk(r) gives rank r's element.
template <class T, class Chunk>
SHARDLAB_HD T sum_in_rank_order(const Chunk& chunk, std::int64_t num_ranks) {
  typename SumOf<T>::type sum = widen(chunk(0));
  for (std::int64_t rank = 1; rank < num_ranks; ++rank) sum = sum + widen(chunk(rank));
  T out;
  narrow(sum, out);
  return out;
}

}  // namespace shardlab
