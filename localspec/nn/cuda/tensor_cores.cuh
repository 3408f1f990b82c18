// Sixteen-bit numbers, and the one instruction that all products here use. FP16 selects the format.

typedef unsigned short u16;
typedef unsigned int u32;

#if FP16
#define FORMAT "f16"
#else
#define FORMAT "bf16"
#endif

__device__ __forceinline__ float wide(u16 bits) {
#if FP16
    float number;
    asm("cvt.f32.f16 %0, %1;" : "=f"(number) : "h"(bits));
    return number;
#else
    return __uint_as_float((u32)bits << 16);
#endif
}

__device__ __forceinline__ u16 narrow(float number) {
    u16 bits;
    asm("cvt.rn." FORMAT ".f32 %0, %1;" : "=h"(bits) : "f"(number));
    return bits;
}

// A number of the format that a function computes in: FP32, or one of 16 bits.
#if FP32
typedef float number;
__device__ __forceinline__ float wider(float one) { return one; }
__device__ __forceinline__ float narrower(float one) { return one; }
#else
typedef u16 number;
__device__ __forceinline__ float wider(u16 one) { return wide(one); }
__device__ __forceinline__ u16 narrower(float one) { return narrow(one); }
#endif

// sums [16 channels, 8 rows] += weights [16 channels, 16 inputs] x [16 inputs, 8 rows]. Of thread (g, t) = (lane / 4, lane % 4):
// weights a0 (channel g, inputs 2t, 2t+1), a1 (g+8, same), a2 (g, 2t+8, 2t+9), a3 (g+8, same); x b0 (row g, inputs 2t, 2t+1),
// b1 (row g, 2t+8, 2t+9); sums (g, rows 2t, 2t+1), (g+8, same). Rows do not depend on each other.
__device__ __forceinline__ void multiply(float (&sums)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32." FORMAT "." FORMAT ".f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

// Add the sums of a block's warps for 16 channels and 8 * TILES rows, in their order, and the bias; write y [rows, out].
__device__ __forceinline__ void put_together(
    float (*found)[128], const float (&sums)[TILES][4], const u16* bias, u16* y, int first, int out, int rows) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, place = threadIdx.x;
    const int channel = first + place / 16 + place % 4 / 2 * 8;  // of one of the numbers as `multiply` leaves them
#pragma unroll
    for (int tile = 0; tile < TILES; tile++) {
        ((float4*)found[warp])[lane] = make_float4(sums[tile][0], sums[tile][1], sums[tile][2], sums[tile][3]);
        __syncthreads();
        const int row = tile * 8 + place / 4 % 4 * 2 + place % 2;
        if (place < 128 && channel < out && row < rows) {
            float all = found[0][place];
            for (int other = 1; other < WARPS; other++) all += found[other][place];
            y[(size_t)row * out + channel] = narrow(all + (bias ? wide(bias[channel]) : 0.0f));
        }
        __syncthreads();
    }
}
