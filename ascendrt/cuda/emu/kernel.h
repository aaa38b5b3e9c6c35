// What a CUDA source needs to compile for the CPU: one block runs at a time,
// its threads are fibers that meet at __syncthreads.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>

struct emu_dim { unsigned x, y, z; };
extern thread_local emu_dim threadIdx, blockIdx, blockDim, gridDim;
void emu_sync();
[[noreturn]] void emu_trap();
extern float emu_shared[];

#define __device__
#define __global__
#define __forceinline__ inline
#define __launch_bounds__(n)
#define __shared__ static
#define __syncthreads() emu_sync()
static inline float __fmul_rn(float a, float b) { return a * b; }
static inline float __fadd_rn(float a, float b) { return a + b; }
static inline float __fsub_rn(float a, float b) { return a - b; }
static inline float __fdiv_rn(float a, float b) { return a / b; }
static inline float __fsqrt_rn(float a) { return std::sqrt(a); }
static inline float __uint_as_float(unsigned u) { float f; std::memcpy(&f, &u, 4); return f; }
static inline unsigned __float_as_uint(float f) { unsigned u; std::memcpy(&u, &f, 4); return u; }
