constexpr int REGISTERS = 32;  // of a v16
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
