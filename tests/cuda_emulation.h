// CUDA C++ as C++ for a processor. Threads of a block take turns: each runs to its next barrier; blocks one after another.

#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>

#define __device__
#define __global__
#define __forceinline__ inline
#define __launch_bounds__(threads)
#define __shared__ static
#define __align__(bytes) __attribute__((aligned(bytes)))

struct uint4 { unsigned x, y, z, w; } __attribute__((aligned(16)));
struct float4 { float x, y, z, w; } __attribute__((aligned(16)));
struct float2 { float x, y; } __attribute__((aligned(8)));
struct uchar2 { unsigned char x, y; } __attribute__((aligned(2)));
static inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }
static inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
static inline float2 make_float2(float x, float y) { return {x, y}; }

struct Place { unsigned x, y, z; };
static Place threadIdx, blockIdx, blockDim, gridDim;

static inline float expf(float x) { return __builtin_expf(x); }
static inline float tanhf(float x) { return __builtin_tanhf(x); }
static inline float fmaf(float x, float y, float z) { return __builtin_fmaf(x, y, z); }
static inline float fmaxf(float x, float y) { return __builtin_fmaxf(x, y); }
static inline float rsqrtf(float x) { return 1.0f / __builtin_sqrtf(x); }
static inline float __uint_as_float(unsigned bits) { float number; memcpy(&number, &bits, 4); return number; }
static inline float __int_as_float(unsigned bits) { return __uint_as_float(bits); }
static inline int min(int x, int y) { return x < y ? x : y; }
static inline unsigned min(unsigned x, unsigned y) { return x < y ? x : y; }
template <class T> static inline T __ldg(const T* place) { return *place; }

static inline int atomicMax(int* place, int number) {
    int old = __atomic_load_n(place, __ATOMIC_RELAXED);
    while (old < number && !__atomic_compare_exchange_n(place, &old, number, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {}
    return old;
}

enum Waits { NOTHING, WARP, BLOCK, OVER };
struct Thread { ucontext_t context; Waits waits; };
static Thread* threads;
static ucontext_t turns;
static uint32_t exchanged[32][32][8];  // by warp and lane

static inline void wait_for(Waits what) {
    Thread* own = &threads[threadIdx.x];
    own->waits = what;
    swapcontext(&own->context, &turns);
}
static inline void __syncthreads() { wait_for(BLOCK); }
static inline void meet() { wait_for(WARP); }

template <class T> static T __shfl_sync(unsigned, T number, int from) {
    memcpy(exchanged[threadIdx.x / 32][threadIdx.x % 32], &number, 4);
    meet();
    memcpy(&number, exchanged[threadIdx.x / 32][from & 31], 4);
    meet();
    return number;
}

template <class T> static T __shfl_xor_sync(unsigned all, T number, int other) {
    return __shfl_sync(all, number, (threadIdx.x % 32) ^ other);
}

static inline float wide_number(unsigned short bits) {
#if FP16
    _Float16 number;
    memcpy(&number, &bits, 2);
    return (float)number;
#else
    return __uint_as_float((unsigned)bits << 16);
#endif
}

static inline unsigned short narrow_number(float number) {
    unsigned short bits;
#if FP16
    _Float16 half = (_Float16)number;
    memcpy(&bits, &half, 2);
#else
    unsigned all;
    memcpy(&all, &number, 4);
    bits = number != number ? 0x7fff : (all + 0x7fff + (all >> 16 & 1)) >> 16;
#endif
    return bits;
}

// mma.m16n8k16, by the registers in which PTX has the fragments of its three matrices.
static void fragments_multiply(float (&sums)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    memcpy(exchanged[warp][lane], a, 16);
    memcpy(exchanged[warp][lane] + 4, b, 8);
    meet();
    float found[4];
    for (int one = 0; one < 4; one++) {
        const int row = lane / 4 + one / 2 * 8, column = 2 * (lane % 4) + one % 2;
        double sum = sums[one];
        for (int k = 0; k < 16; k++) {
            const unsigned of_a = exchanged[warp][row % 8 * 4 + k % 8 / 2][row / 8 + k / 8 * 2];
            const unsigned of_b = exchanged[warp][column * 4 + k % 8 / 2][4 + k / 8];
            sum += (double)wide_number(of_a >> k % 2 * 16) * wide_number(of_b >> k % 2 * 16);
        }
        found[one] = (float)sum;
    }
    meet();
    memcpy(sums, found, 16);
}

// An argument as a driver gets it: where its bytes are.
struct Given {
    void* place;
    template <class T> operator T*() const { return *(T**)place; }
    operator int() const { return *(int*)place; }
    operator unsigned() const { return *(unsigned*)place; }
    operator long long() const { return *(long long*)place; }
    operator float() const { return *(float*)place; }
};

static void started(void** given);  // calls the kernel

static void** given_to_all;
static void run() { started(given_to_all), threads[threadIdx.x].waits = OVER; }

// Lets those go on that have all come to the same barrier, but for those that are over; whether there were any.
static bool meets(Waits what, unsigned first, unsigned end) {
    bool any = false;
    for (unsigned one = first; one < end; one++) {
        if (threads[one].waits != what && threads[one].waits != OVER) return false;
        any |= threads[one].waits == what;
    }
    for (unsigned one = first; any && one < end; one++)
        if (threads[one].waits == what) threads[one].waits = NOTHING;
    return any;
}

static void run_block(unsigned count, char* stacks, size_t stack) {
    for (unsigned one = 0; one < count; one++) {
        getcontext(&threads[one].context);
        threads[one].context.uc_stack.ss_sp = stacks + one * stack, threads[one].context.uc_stack.ss_size = stack;
        threads[one].context.uc_link = &turns, threads[one].waits = NOTHING;
        makecontext(&threads[one].context, run, 0);
    }
    for (;;) {
        for (unsigned one = 0; one < count; one++)
            if (threads[one].waits == NOTHING) threadIdx = {one, 0, 0}, swapcontext(&turns, &threads[one].context);
        bool some = false, over = true;
        for (unsigned warp = 0; warp < count; warp += 32) some |= meets(WARP, warp, min(warp + 32, count));
        if (some || meets(BLOCK, 0, count)) continue;
        for (unsigned one = 0; one < count; one++) over &= threads[one].waits == OVER;
        if (over) return;
        abort();  // some wait for others that never come
    }
}

extern "C" int start(void** given, unsigned x, unsigned y, unsigned z, unsigned count) {
    const size_t stack = 64 << 10;
    gridDim = {x, y, z}, blockDim = {count, 1, 1}, given_to_all = given;
    threads = (Thread*)calloc(count, sizeof(Thread));
    char* stacks = (char*)malloc(count * stack);
    for (unsigned block = 0; block < x * y * z; block++) {
        blockIdx = {block % x, block / x % y, block / x / y};
        run_block(count, stacks, stack);
    }
    free(stacks), free(threads);
    return 0;
}
