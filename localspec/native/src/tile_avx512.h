// One record times R rows, in AVX-512 VNNI: vpdpbusd multiplies four unsigned weights with four signed inputs a channel.
// f [R][32] is the sum over the record's inputs, in units of the inputs' scale; `first`: f is written, else added to.
//
// Prefetches, as measured by maker. AMD: for a row or two, the processor's own prefetching is as fast as memory, and more
// requests only disturb it (29 against 24 GB/s). Intel: the processor does not prefetch across pages, so each line is
// requested twice, far ahead into the second-level cache and near into the first (8 rows 8 % faster).
constexpr bool MAKERS_DIFFER = true;
constexpr int ALONE = 2, AHEAD = 4096, SOON = 1024, LATER = 8192;

template <int R, int FETCH>
LS_INLINE void fetch(const uint8_t* p) {
    if (FETCH == INTEL) {
        prefetch(p + SOON), prefetch(p + SOON + 64);
        _mm_prefetch((const char*)p + LATER, _MM_HINT_T1), _mm_prefetch((const char*)p + LATER + 64, _MM_HINT_T1);
    } else if (FETCH == USUAL && R > ALONE)
        prefetch(p + AHEAD), prefetch(p + AHEAD + 64);
}

template <int R, int FETCH>
LS_INLINE void record(const uint8_t* p, int group, const int8_t* values, const int32_t* sums, v16* f, bool first) {
    const v16 scale0 = load_halves((const uint16_t*)p), scale1 = load_halves((const uint16_t*)p + 16);
    __m512i i0[R], i1[R];
#pragma GCC unroll 8
    for (int r = 0; r < R; r++) i0[r] = i1[r] = _mm512_set1_epi32(sums[r]);
    const int32_t* a = (const int32_t*)values;
    p += 64;
#pragma GCC unroll 2
    for (int k = 0; k < group; k += 4, p += 128, a += R) {
        const __m512i w0 = _mm512_load_si512(p), w1 = _mm512_load_si512(p + 64);
        fetch<R, FETCH>(p);
#pragma GCC unroll 8
        for (int r = 0; r < R; r++) {
            const __m512i v = _mm512_set1_epi32(a[r]);
            i0[r] = _mm512_dpbusd_epi32(i0[r], w0, v);
            i1[r] = _mm512_dpbusd_epi32(i1[r], w1, v);
        }
    }
#pragma GCC unroll 8
    for (int r = 0; r < R; r++) {
        const v16 u = (v16)_mm512_cvtepi32_ps(i0[r]), v = (v16)_mm512_cvtepi32_ps(i1[r]);
        f[2 * r] = first ? u * scale0 : fma(u, scale0, f[2 * r]);
        f[2 * r + 1] = first ? v * scale1 : fma(v, scale1, f[2 * r + 1]);
    }
}
