// Sixteen floats at a time, with the same bits on every instruction set. Operators and comparisons are the compiler's;
// fma, conversions and reductions are written for each. Included inside a namespace for each instruction set.

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

constexpr int REGISTERS = 32;  // that hold a v16
LS_INLINE v16 fma(v16 a, v16 b, v16 c) { return (v16)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c); }
LS_INLINE v16 larger_of(v16 a, v16 b) { return (v16)_mm512_max_ps((__m512)a, (__m512)b); }  // b if one is NaN
LS_INLINE v16 smaller_of(v16 a, v16 b) { return (v16)_mm512_min_ps((__m512)a, (__m512)b); }
LS_INLINE i16 larger_of(i16 a, i16 b) { return (i16)_mm512_max_epi32((__m512i)a, (__m512i)b); }
LS_INLINE int32_t sum_of(i16 v) { return _mm512_reduce_add_epi32((__m512i)v); }
LS_INLINE float largest(v16 v) { return _mm512_reduce_max_ps((__m512)v); }
LS_INLINE int32_t largest(i16 v) { return _mm512_reduce_max_epi32((__m512i)v); }
LS_INLINE bool any(i16 mask) { return _mm512_test_epi32_mask((__m512i)mask, (__m512i)mask) != 0; }
LS_INLINE v16 load_halves(const uint16_t* p) { return (v16)_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)p)); }
LS_INLINE void store_halves(uint16_t* p, v16 v) { _mm256_storeu_si256((__m256i*)p, _mm512_cvtps_ph((__m512)v, 0)); }
LS_INLINE void to_bytes(i16 v, int8_t* p) { _mm_storeu_si128((__m128i*)p, _mm512_cvtepi32_epi8((__m512i)v)); }
LS_INLINE void prefetch(const void* p) { _mm_prefetch((const char*)p, _MM_HINT_T0); }
LS_INLINE void prefetch_far(const void* p) { _mm_prefetch((const char*)p, _MM_HINT_T1); }  // into the second-level cache

#elif defined(LS_TARGET_AVX2)

constexpr int REGISTERS = 8;  // pairs that hold a v16
struct Halves {
    __m256 low, high;
};
LS_INLINE Halves split(v16 v) {
    Halves h;
    memcpy(&h, &v, 64);
    return h;
}
LS_INLINE v16 join(__m256 low, __m256 high) {
    const Halves h{low, high};
    v16 v;
    memcpy(&v, &h, 64);
    return v;
}
struct IntegerHalves {
    __m256i low, high;
};
LS_INLINE IntegerHalves split(i16 v) {
    IntegerHalves h;
    memcpy(&h, &v, 64);
    return h;
}
LS_INLINE i16 join(__m256i low, __m256i high) {
    const IntegerHalves h{low, high};
    i16 v;
    memcpy(&v, &h, 64);
    return v;
}
LS_INLINE v16 fma(v16 a, v16 b, v16 c) {
    const Halves x = split(a), y = split(b), z = split(c);
    return join(_mm256_fmadd_ps(x.low, y.low, z.low), _mm256_fmadd_ps(x.high, y.high, z.high));
}
LS_INLINE v16 larger_of(v16 a, v16 b) {  // b if one is NaN
    const Halves x = split(a), y = split(b);
    return join(_mm256_max_ps(x.low, y.low), _mm256_max_ps(x.high, y.high));
}
LS_INLINE v16 smaller_of(v16 a, v16 b) {
    const Halves x = split(a), y = split(b);
    return join(_mm256_min_ps(x.low, y.low), _mm256_min_ps(x.high, y.high));
}
LS_INLINE i16 larger_of(i16 a, i16 b) {
    const IntegerHalves x = split(a), y = split(b);
    return join(_mm256_max_epi32(x.low, y.low), _mm256_max_epi32(x.high, y.high));
}
LS_INLINE int32_t sum_of(i16 v) {
    const IntegerHalves h = split(v);
    const __m256i s = _mm256_add_epi32(h.low, h.high);
    __m128i t = _mm_add_epi32(_mm256_castsi256_si128(s), _mm256_extracti128_si256(s, 1));
    t = _mm_add_epi32(t, _mm_shuffle_epi32(t, 0x4e));
    return _mm_cvtsi128_si32(_mm_add_epi32(t, _mm_shuffle_epi32(t, 0xb1)));
}
LS_INLINE float largest(v16 v) {
    const Halves h = split(v);
    const __m256 m = _mm256_max_ps(h.low, h.high);
    __m128 t = _mm_max_ps(_mm256_castps256_ps128(m), _mm256_extractf128_ps(m, 1));
    t = _mm_max_ps(t, _mm_movehl_ps(t, t));
    return _mm_cvtss_f32(_mm_max_ss(t, _mm_shuffle_ps(t, t, 1)));
}
LS_INLINE int32_t largest(i16 v) {
    const IntegerHalves h = split(v);
    const __m256i m = _mm256_max_epi32(h.low, h.high);
    __m128i t = _mm_max_epi32(_mm256_castsi256_si128(m), _mm256_extracti128_si256(m, 1));
    t = _mm_max_epi32(t, _mm_shuffle_epi32(t, 0x4e));
    return _mm_cvtsi128_si32(_mm_max_epi32(t, _mm_shuffle_epi32(t, 0xb1)));
}
LS_INLINE bool any(i16 mask) {
    const IntegerHalves h = split(mask);
    return _mm256_movemask_epi8(_mm256_or_si256(h.low, h.high)) != 0;
}
LS_INLINE v16 load_halves(const uint16_t* p) {
    return join(_mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)p)), _mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)(p + 8))));
}
LS_INLINE void store_halves(uint16_t* p, v16 v) {
    const Halves h = split(v);
    _mm_storeu_si128((__m128i*)p, _mm256_cvtps_ph(h.low, 0));
    _mm_storeu_si128((__m128i*)(p + 8), _mm256_cvtps_ph(h.high, 0));
}
LS_INLINE void to_bytes(i16 v, int8_t* p) {  // -128 to 127
    const IntegerHalves h = split(v);
    const __m256i words = _mm256_permute4x64_epi64(_mm256_packs_epi32(h.low, h.high), 0xd8);
    _mm_storeu_si128((__m128i*)p, _mm_packs_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1)));
}
LS_INLINE void prefetch(const void* p) { _mm_prefetch((const char*)p, _MM_HINT_T0); }
LS_INLINE void prefetch_far(const void* p) { _mm_prefetch((const char*)p, _MM_HINT_T1); }  // into the second-level cache

#elif defined(LS_TARGET_NEON)

constexpr int REGISTERS = 8;  // fours that hold a v16
struct Quarters {
    float32x4_t q[4];
};
LS_INLINE Quarters split(v16 v) {
    Quarters s;
    memcpy(&s, &v, 64);
    return s;
}
LS_INLINE v16 join(const Quarters& s) {
    v16 v;
    memcpy(&v, &s, 64);
    return v;
}
struct IntegerQuarters {
    int32x4_t q[4];
};
LS_INLINE IntegerQuarters split(i16 v) {
    IntegerQuarters s;
    memcpy(&s, &v, 64);
    return s;
}
LS_INLINE v16 fma(v16 a, v16 b, v16 c) {
    const Quarters x = split(a), y = split(b);
    Quarters z = split(c);
    for (int i = 0; i < 4; i++) z.q[i] = vfmaq_f32(z.q[i], x.q[i], y.q[i]);
    return join(z);
}
LS_INLINE v16 larger_of(v16 a, v16 b) { return chosen(a > b, a, b); }  // b if one is NaN
LS_INLINE v16 smaller_of(v16 a, v16 b) { return chosen(a < b, a, b); }
LS_INLINE i16 larger_of(i16 a, i16 b) { return (a & (a > b)) | (b & ~(a > b)); }
LS_INLINE int32_t sum_of(i16 v) {
    const IntegerQuarters s = split(v);
    return vaddvq_s32(vaddq_s32(vaddq_s32(s.q[0], s.q[1]), vaddq_s32(s.q[2], s.q[3])));
}
LS_INLINE float largest(v16 v) {
    const Quarters s = split(v);
    return vmaxvq_f32(vmaxq_f32(vmaxq_f32(s.q[0], s.q[1]), vmaxq_f32(s.q[2], s.q[3])));
}
LS_INLINE int32_t largest(i16 v) {
    const IntegerQuarters s = split(v);
    return vmaxvq_s32(vmaxq_s32(vmaxq_s32(s.q[0], s.q[1]), vmaxq_s32(s.q[2], s.q[3])));
}
LS_INLINE bool any(i16 mask) {
    const IntegerQuarters s = split(mask);
    return vmaxvq_u32(vreinterpretq_u32_s32(vorrq_s32(vorrq_s32(s.q[0], s.q[1]), vorrq_s32(s.q[2], s.q[3])))) != 0;
}
LS_INLINE v16 load_halves(const uint16_t* p) {
    Quarters s;
    for (int i = 0; i < 4; i++) s.q[i] = vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p + 4 * i)));
    return join(s);
}
LS_INLINE void store_halves(uint16_t* p, v16 v) {
    const Quarters s = split(v);
    for (int i = 0; i < 4; i++) vst1_u16(p + 4 * i, vreinterpret_u16_f16(vcvt_f16_f32(s.q[i])));
}
LS_INLINE void to_bytes(i16 v, int8_t* p) {  // -128 to 127
    const IntegerQuarters s = split(v);
    const int16x8_t low = vcombine_s16(vmovn_s32(s.q[0]), vmovn_s32(s.q[1]));
    const int16x8_t high = vcombine_s16(vmovn_s32(s.q[2]), vmovn_s32(s.q[3]));
    vst1q_s8(p, vcombine_s8(vmovn_s16(low), vmovn_s16(high)));
}
LS_INLINE void prefetch(const void* p) { __builtin_prefetch(p); }
LS_INLINE void prefetch_far(const void* p) { __builtin_prefetch(p, 0, 2); }  // into the second-level cache

#else

constexpr int REGISTERS = 4;  // fours that hold a v16
// a * b + c, rounded once. The product of two floats is exact in double; the sum is rounded to odd, so that rounding it
// to float is the only rounding that matters (Boldo and Melquiond 2008).
LS_INLINE float fma(float a, float b, float c) {
    const double product = (double)a * b, sum = product + c, part = sum - product;
    const double error = (product - (sum - part)) + (c - part);
    uint64_t bits = bits_as<uint64_t>(sum);
    if ((error > 0 || error < 0) && !(bits & 1)) bits += (error > 0) == (sum > 0) ? 1 : -1;
    return (float)bits_as<double>(bits);
}
LS_INLINE v16 fma(v16 a, v16 b, v16 c) {
    for (int i = 0; i < 16; i++) c[i] = fma(a[i], b[i], c[i]);
    return c;
}
LS_INLINE v16 larger_of(v16 a, v16 b) { return chosen(a > b, a, b); }  // b if one is NaN
LS_INLINE v16 smaller_of(v16 a, v16 b) { return chosen(a < b, a, b); }
LS_INLINE i16 larger_of(i16 a, i16 b) { return (a & (a > b)) | (b & ~(a > b)); }
LS_INLINE int32_t sum_of(i16 v) {
    int32_t s = 0;
    for (int i = 0; i < 16; i++) s += v[i];
    return s;
}
LS_INLINE float largest(v16 v) {
    float m = v[0];
    for (int i = 1; i < 16; i++) m = v[i] > m ? v[i] : m;
    return m;
}
LS_INLINE int32_t largest(i16 v) {
    int32_t m = v[0];
    for (int i = 1; i < 16; i++) m = v[i] > m ? v[i] : m;
    return m;
}
LS_INLINE bool any(i16 mask) {
    int32_t s = 0;
    for (int i = 0; i < 16; i++) s |= mask[i];
    return s != 0;
}
LS_INLINE v16 load_halves(const uint16_t* p) {
    v16 v;
    for (int i = 0; i < 16; i++) v[i] = half_to_float(p[i]);
    return v;
}
LS_INLINE void store_halves(uint16_t* p, v16 v) {
    for (int i = 0; i < 16; i++) p[i] = float_to_half(v[i]);
}
LS_INLINE void to_bytes(i16 v, int8_t* p) {
    for (int i = 0; i < 16; i++) p[i] = (int8_t)v[i];
}
LS_INLINE void prefetch(const void* p) { __builtin_prefetch(p); }
LS_INLINE void prefetch_far(const void* p) { __builtin_prefetch(p, 0, 2); }  // into the second-level cache

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
