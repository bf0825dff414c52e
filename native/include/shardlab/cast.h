// Conversions of one element between fp32 and the 16-bit types: round to nearest, ties to even; a NaN stays a NaN (the
// canonical quiet one when narrowing); overflow gives infinity; subnormal numbers are exact.
//
// Integer arithmetic instead of the compiler's types or conversion instructions, so that every compiler, instruction set and
// GPU gives the same bits, and every line can be if-converted and vectorized.
#pragma once

#include <cstdint>
#include <cstring>

#include "shardlab/hd.h"

namespace shardlab {

struct BF16 {  // 1 sign, 8 exponent, 7 mantissa bits: the upper half of an fp32
  std::uint16_t bits;
};

struct FP16 {  // IEEE 754 binary16: 1 sign, 5 exponent, 10 mantissa bits
  std::uint16_t bits;
};

SHARDLAB_HD std::uint32_t bits_of(float x) {
  std::uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  return bits;
}

SHARDLAB_HD float float_of(std::uint32_t bits) {
  float x;
  std::memcpy(&x, &bits, sizeof x);
  return x;
}

// widen: into the type in which sums are taken.
SHARDLAB_HD float widen(float x) { return x; }
SHARDLAB_HD double widen(double x) { return x; }
SHARDLAB_HD float widen(BF16 x) { return float_of(static_cast<std::uint32_t>(x.bits) << 16); }

SHARDLAB_HD float widen(FP16 x) {
  const std::uint32_t sign = static_cast<std::uint32_t>(x.bits & 0x8000u) << 16;
  const std::uint32_t magnitude = x.bits & 0x7fffu;
  const std::uint32_t normal = (magnitude << 13) + ((127u - 15u) << 23);
  const std::uint32_t special = (magnitude << 13) | 0x7f800000u;  // infinity, or NaN with its payload
  const std::uint32_t subnormal = bits_of(static_cast<float>(static_cast<std::int32_t>(magnitude)) * 5.9604644775390625e-8f);
  std::uint32_t bits = magnitude < 0x0400u ? subnormal : normal;  // a subnormal is mantissa * 2^-24
  bits = magnitude >= 0x7c00u ? special : bits;
  return float_of(bits | sign);
}

// narrow: out of the type of the sum, rounding once.
SHARDLAB_HD void narrow(float x, float& out) { out = x; }
SHARDLAB_HD void narrow(double x, double& out) { out = x; }

SHARDLAB_HD void narrow(float x, BF16& out) {
  const std::uint32_t bits = bits_of(x);
  const std::uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  const bool is_nan = (bits & 0x7fffffffu) > 0x7f800000u;
  out.bits = static_cast<std::uint16_t>(is_nan ? 0x7fc0u : rounded);
}

SHARDLAB_HD void narrow(float x, FP16& out) {
  const std::uint32_t sign = bits_of(x) >> 16 & 0x8000u;
  const std::uint32_t magnitude = bits_of(x) & 0x7fffffffu;
  const std::uint32_t normal = (magnitude - ((127u - 15u) << 23) + 0xfffu + ((magnitude >> 13) & 1u)) >> 13;
  // Below 2^-14 the half is subnormal: adding 0.5 makes the FPU round at 2^-24, to nearest even.
  const std::uint32_t subnormal = bits_of(float_of(magnitude) + 0.5f) - 0x3f000000u;
  std::uint32_t half = magnitude < 0x38800000u ? subnormal : normal;
  half = magnitude >= 0x477ff000u ? 0x7c00u : half;  // 65520 and above round to infinity
  half |= sign;
  out.bits = static_cast<std::uint16_t>(magnitude > 0x7f800000u ? 0x7e00u : half);
}

}  // namespace shardlab
