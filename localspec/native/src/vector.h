// Sixteen floats at a time, with the same bits on every instruction set. Operators and comparisons are the compiler's;
// fma, conversions and reductions are in vector_*.h. Included inside a namespace for each instruction set.

typedef float v16 __attribute__((vector_size(64), aligned(64)));
typedef int32_t i16 __attribute__((vector_size(64), aligned(64)));  // 16 integers

LS_INLINE v16 load(const float* p) {
    v16 v;
    memcpy(&v, p, 64);
    return v;
}
LS_INLINE void store(float* p, v16 v) { memcpy(p, &v, 64); }
LS_INLINE v16 load_part(const float* p, int count) {  // zeros after `count`
    if (count >= 16) return load(p);
    v16 v = {0};
    memcpy(&v, p, (size_t)count * 4);
    return v;
}
LS_INLINE void store_part(float* p, v16 v, int count) {
    if (count >= 16) store(p, v);
    else memcpy(p, &v, (size_t)count * 4);
}
LS_INLINE v16 all(float f) { return v16{f, f, f, f, f, f, f, f, f, f, f, f, f, f, f, f}; }
LS_INLINE i16 as_bits(v16 v) { return (i16)v; }
LS_INLINE v16 as_floats(i16 v) { return (v16)v; }
LS_INLINE v16 chosen(i16 mask, v16 yes, v16 no) { return as_floats((mask & as_bits(yes)) | (~mask & as_bits(no))); }

#if defined(LS_TARGET_AVX512)
#include "vector_avx512.h"
#elif defined(LS_TARGET_AVX2)
#include "vector_avx2.h"
#elif defined(LS_TARGET_NEON)
#include "vector_neon.h"
#else
#include "vector_c.h"
#endif

LS_INLINE v16 load_cells(const uint16_t* p) { return load_halves(p); }
LS_INLINE v16 load_cells(const float* p) { return load(p); }
LS_INLINE void store_cells(uint16_t* p, v16 v) { store_halves(p, v); }
LS_INLINE void store_cells(float* p, v16 v) { store(p, v); }
LS_INLINE v16 load_bf16(const uint16_t* p) {
    typedef uint16_t h16 __attribute__((vector_size(32)));
    h16 h;
    memcpy(&h, p, 32);
    return as_floats(__builtin_convertvector(h, i16) << 16);
}

LS_INLINE float total(v16 v) {  // as a balanced tree
    float s[16];
    store(s, v);
    for (int width = 8; width; width /= 2)
        for (int i = 0; i < width; i++) s[i] = s[i] + s[i + width];
    return s[0];
}

LS_INLINE i16 rounded(v16 v) {  // to the nearest, ties to even; |v| < 2^22
    const float shift = 12582912.0f;  // 1.5 * 2^23
    return as_bits(v + all(shift)) - 0x4b400000;
}

// e^x to about one unit in the last place (Cephes), 0 below -87, NaN for NaN.
LS_INLINE v16 exponential(v16 x) {
    const i16 is_nan = x != x, too_small = x <= all(-87.0f);
    const v16 bounded = smaller_of(larger_of(x, all(-87.0f)), all(88.0f));
    const v16 shift = all(12582912.0f);
    const v16 shifted = fma(bounded, all(1.44269504088896341f), shift), n = shifted - shift;
    v16 r = fma(n, all(-0.693145751953125f), bounded);
    r = fma(n, all(-1.42860682030941723212e-6f), r);
    v16 p = all(1.9875691500e-4f);
    p = fma(p, r, all(1.3981999507e-3f));
    p = fma(p, r, all(8.3334519073e-3f));
    p = fma(p, r, all(4.1665795894e-2f));
    p = fma(p, r, all(1.6666665459e-1f));
    p = fma(p, r, all(5.0000001201e-1f));
    p = fma(p, r * r, r + all(1.0f));
    const i16 scaled = as_bits(p) + (as_bits(shifted) << 23);  // the bits of the shift itself overflow
    return chosen(is_nan, x, as_floats(scaled & ~too_small));
}
LS_INLINE float exponential(float x) { return exponential(all(x))[0]; }

LS_INLINE v16 silu(v16 x) { return x / (all(1.0f) + exponential(-x)); }
// gpt-oss: both are clamped, and the sigmoid is steeper; NaN stays NaN
LS_INLINE v16 clamped_gate(v16 gate, v16 up, float limit) {
    const v16 g = chosen(gate > all(limit), all(limit), gate), low = chosen(up < all(-limit), all(-limit), up), u = chosen(low > all(limit), all(limit), low);
    return g / (all(1.0f) + exponential(g * all(-1.702f))) * (u + all(1.0f));
}
// cap tanh(x / cap), to about a ten-millionth of the cap
LS_INLINE v16 capped(v16 x, float cap) {
    return all(cap) - all(2 * cap) / (all(1.0f) + exponential(x / all(cap) * all(2.0f)));
}
// x (1 + tanh u) / 2 is x σ(2u), with u = sqrt(2 / pi) (x + 0.044715 x^3)
LS_INLINE v16 gelu(v16 x) { return x / (all(1.0f) + exponential(x * fma(x * x, all(-0.0713548162726f), all(-1.5957691216057f)))); }
