// Float arithmetic that gives bitwise identical results in all kernels and on the host. Each operation rounds
// once, to nearest, and keeps subnormal values. Compilers cannot fuse these operations, under any option.
// This header is internal to the device library.
#ifndef VERBENA_DEVICE_ARITHMETIC_CUH
#define VERBENA_DEVICE_ARITHMETIC_CUH

#include "verbena/device/packed.cuh"

namespace verbena::device::detail {

#if VERBENA_PTX
#define VERBENA_ONE(instruction, a)                    \
  float result;                                        \
  asm(instruction " %0, %1;" : "=f"(result) : "f"(a)); \
  return result
#define VERBENA_TWO(instruction, a, b)                             \
  float result;                                                    \
  asm(instruction " %0, %1, %2;" : "=f"(result) : "f"(a), "f"(b)); \
  return result
#endif

VERBENA_DEVICE float add(float a, float b) {
#if VERBENA_PTX
  VERBENA_TWO("add.rn.f32", a, b);
#else
  return a + b;
#endif
}
VERBENA_DEVICE float multiply(float a, float b) {
#if VERBENA_PTX
  VERBENA_TWO("mul.rn.f32", a, b);
#else
  return a * b;
#endif
}
// Returns a * b + c, rounded once.
VERBENA_DEVICE float multiply_add(float a, float b, float c) {
#if VERBENA_PTX
  float result;
  asm("fma.rn.f32 %0, %1, %2, %3;" : "=f"(result) : "f"(a), "f"(b), "f"(c));
  return result;
#else
  return __builtin_fmaf(a, b, c);
#endif
}
// Adds weight * addend to the sum, element by element. Each element is rounded once, to float.
template <typename T, uint32_t kBytes>
VERBENA_DEVICE void add_product(PackedSum<T, kBytes>& sum, float weight, const Packed<T, kBytes>& addend) {
  PackedSum<T, kBytes> wide;
  wide.begin(addend);
  VERBENA_UNROLL
  for (uint32_t i = 0; i < PackedSum<T, kBytes>::kCount; ++i)
    sum.sums[i] = multiply_add(weight, wide.sums[i], sum.sums[i]);
}
VERBENA_DEVICE float divide(float a, float b) {
#if VERBENA_PTX
  VERBENA_TWO("div.rn.f32", a, b);
#else
  return a / b;
#endif
}
// Returns an approximation of a / b; faster than divide(). The divisor, the quotient and their inverses must
// be normal numbers. The last bit of the result may be off by one, and may differ between platforms.
VERBENA_DEVICE float divide_nearly(float a, float b) {
#if VERBENA_PTX
  float inverse;
  asm("rcp.approx.f32 %0, %1;" : "=f"(inverse) : "f"(b));
  const float quotient = multiply(a, inverse);
  return multiply_add(multiply_add(-b, quotient, a), inverse, quotient);
#else
  return a / b;
#endif
}
// Returns 1 / sqrt(a), with a relative error below 2^-22.
VERBENA_DEVICE float find_inverse_root(float a) {
#if VERBENA_PTX
  VERBENA_ONE("rsqrt.approx.f32", a);
#else
  return 1 / __builtin_sqrtf(a);
#endif
}

// Return the larger (or smaller) of two values, or NaN if one of the values is NaN.
VERBENA_DEVICE float choose_larger(float a, float b) {
#if VERBENA_PTX && VERBENA_ARCH >= 800
  VERBENA_TWO("max.NaN.f32", a, b);
#else
  return a != a || a > b ? a : b;
#endif
}
VERBENA_DEVICE float choose_smaller(float a, float b) {
#if VERBENA_PTX && VERBENA_ARCH >= 800
  VERBENA_TWO("min.NaN.f32", a, b);
#else
  return a != a || a < b ? a : b;
#endif
}
// Like choose_larger(), but for words that contain two bfloat16 values each. Compares the lower values with
// each other, and the upper values with each other.
VERBENA_DEVICE uint32_t choose_larger_pair(uint32_t a, uint32_t b) {
#if VERBENA_PTX && VERBENA_ARCH >= 800
  uint32_t result;
  asm("max.NaN.bf16x2 %0, %1, %2;" : "=r"(result) : "r"(a), "r"(b));
  return result;
#else
  const float low = choose_larger(from_bits(a << 16), from_bits(b << 16));
  const float high = choose_larger(from_bits(a & 0xffff0000u), from_bits(b & 0xffff0000u));
  return to_bits(low) >> 16 | (to_bits(high) & 0xffff0000u);
#endif
}

// The next functions return powers of two in the E8M0 format. An E8M0 number is the exponent field of a
// float, with 255 for NaN. Exponents are at least 1, so that the power and its inverse are normal floats.

// Returns the smallest power of two that is not below the magnitude. The magnitude is at most 2^126.
VERBENA_DEVICE uint32_t round_up_to_power(float magnitude) {
  const uint32_t bits = to_bits(magnitude);
  if (bits >= 0x7f800000u) return 255;
  return bits < 0x00800000u ? 1 : (bits + 0x7fffff) >> 23;
}
// Returns the smallest power of two p with magnitude / p <= 448, the largest e4m3 value (1.75 * 2^8).
VERBENA_DEVICE uint32_t choose_exponent(float magnitude) {
  const uint32_t bits = to_bits(magnitude),
                 exponent = (bits >> 23) + ((bits & 0x7fffffu) > 0x600000u ? 1 : 0);
  if (bits >= 0x7f800000u) return 255;
  return exponent > 9 ? exponent - 8 : 1;
}
// Returns 1 / p for the power of two p.
VERBENA_DEVICE float invert_exponent(uint32_t exponent) {
  return from_bits(exponent == 255 ? 0x7fffffffu : (254 - exponent) << 23);
}

#if VERBENA_PTX
#undef VERBENA_ONE
#undef VERBENA_TWO
#endif

}  // namespace verbena::device::detail

#endif
