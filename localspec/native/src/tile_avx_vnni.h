// One record times R rows, in AVX-VNNI: vpdpbusd on eight channels at a time.
// f [R][32] is the sum over the record's inputs, in units of the inputs' scale; `first`: f is written, else added to.
constexpr bool MAKERS_DIFFER = true;

// Prefetches of the two lines that four parts read together; see tile_avx512.h.
template <int FETCH>
LS_INLINE void fetch(const uint8_t* q, int part) {
    if (FETCH == INTEL && part >= 2) _mm_prefetch((const char*)q + 32 * (part - 2) + 8192, _MM_HINT_T1);
    else if (part < 2 && FETCH) prefetch(q + 32 * part + (FETCH == INTEL ? 1024 : 3072));
}

template <int R, int FETCH>
LS_INLINE void record(const uint8_t* p, int group, const int8_t* values, const int32_t* sums, v16* f, bool first) {
    for (int part = 0; part < 4; part++) {
        const uint8_t* q = p + 64 + 32 * part;
        const int32_t* a = (const int32_t*)values;
        __m256i i[R];
#pragma GCC unroll 8
        for (int r = 0; r < R; r++) i[r] = _mm256_set1_epi32(sums[r]);
        for (int k = 0; k < group; k += 4, q += 128, a += R) {
            const __m256i w = _mm256_load_si256((const __m256i*)q);
            fetch<FETCH>(q, part);
#pragma GCC unroll 8
            for (int r = 0; r < R; r++) i[r] = DPBUSD(i[r], w, _mm256_set1_epi32(a[r]));
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
