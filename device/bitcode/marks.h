// What the functions of symm_c.cuh get as bitcode: they are inlined into the kernel that calls them, and not
// there where none does (no `used`, which would drag them all in).
#pragma once

#define VERBENA_SYMM_FUNCTION __attribute__((device)) __attribute__((always_inline))
