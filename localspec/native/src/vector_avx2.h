constexpr int REGISTERS = 8;  // pairs of them
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
