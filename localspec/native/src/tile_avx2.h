// One record times R rows, in AVX2: eight channels at a time. Two products of bytes fit in 16 bits, because inputs and weights
// are at most 127 (the sign of a weight goes to its input).
// f [R][32] is the sum over the record's inputs, in units of the inputs' scale; `first`: f is written, else added to.
constexpr bool MAKERS_DIFFER = true;

// Four parts read the same bytes, `steps` times 128, half a line at a time. Every second read prefetches a line further on,
// so that requests are as far apart as possible (Zen 3, int8, one row: a third less time than with all of them in the first
// two parts). Intel: see tile_avx512.h.
template <int FETCH>
LS_INLINE void fetch(const uint8_t* p, int part, int step, int steps) {
    const uint8_t* q = p + 32 * part + 128 * step;
    if (FETCH == INTEL && part >= 2) _mm_prefetch((const char*)q + 32 * (part - 2) + 8192, _MM_HINT_T1);
    else if (FETCH == INTEL) prefetch(q + 32 * part + 1024);
    else if (FETCH && step % 2 == 0) prefetch(p + 8192 + 64 * ((part * steps + step) / 2));
}

template <int R, int FETCH>
LS_INLINE void record(const uint8_t* p, int group, const int8_t* values, const int32_t* sums, v16* f, bool first) {
    const __m256i ones = _mm256_set1_epi16(1), flip = _mm256_set1_epi8((char)0x80);
    for (int part = 0; part < 4; part++) {
        const uint8_t* q = p + 64 + 32 * part;
        const int32_t* a = (const int32_t*)values;
        __m256i i[R];
#pragma GCC unroll 8
        for (int r = 0; r < R; r++) i[r] = _mm256_setzero_si256();
        for (int k = 0; k < group; k += 4, q += 128, a += R) {
            const __m256i w = _mm256_xor_si256(_mm256_load_si256((const __m256i*)q), flip), u = _mm256_abs_epi8(w);
            fetch<FETCH>(p + 64, part, k / 4, group / 4);
#pragma GCC unroll 8
            for (int r = 0; r < R; r++) {
                const __m256i v = _mm256_sign_epi8(_mm256_set1_epi32(a[r]), w);
                i[r] = _mm256_add_epi32(i[r], _mm256_madd_epi16(_mm256_maddubs_epi16(u, v), ones));
            }
        }
        const __m256 scale = _mm256_cvtph_ps(_mm_load_si128((const __m128i*)(p + 16 * part)));
#pragma GCC unroll 8
        for (int r = 0; r < R; r++) {
            float* y = (float*)(f + 2 * r) + 8 * part;
            const __m256 u = _mm256_cvtepi32_ps(i[r]);
            _mm256_store_ps(y, first ? _mm256_mul_ps(u, scale) : _mm256_fmadd_ps(u, scale, _mm256_load_ps(y)));
        }
    }
}
