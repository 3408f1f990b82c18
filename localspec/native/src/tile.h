// One record of int8 weights times R rows, for each instruction set. f [R][32] is the sum over the record's inputs, in units of
// the inputs' scale; `first`: f is written, else added to. `sums` [R] are for weights without a sign.

#if defined(LS_TARGET_AVX512)

// One record times R rows, in AVX-512 VNNI: vpdpbusd multiplies four unsigned weights with four signed inputs a channel.
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

#elif defined(LS_TARGET_AVX_VNNI)

// One record times R rows, in AVX-VNNI: vpdpbusd on eight channels at a time.
constexpr bool MAKERS_DIFFER = true;

// Prefetches of the two lines that four parts read together, as in AVX-512.
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

#elif defined(LS_TARGET_AVX2)

// One record times R rows, in AVX2: eight channels at a time. Two products of bytes fit in 16 bits, because inputs and weights
// are at most 127 (the sign of a weight goes to its input).
constexpr bool MAKERS_DIFFER = true;

// Four parts read the same bytes, `steps` times 128, half a line at a time. Every second read prefetches a line further on,
// so that requests are as far apart as possible (Zen 3, int8, one row: a third less time than with all of them in the first
// two parts). Intel: as in AVX-512.
template <int FETCH>
LS_INLINE void fetch(const uint8_t* p, int part, int step, int steps) {
    const uint8_t* q = p + 32 * part + 128 * step;
    if (FETCH == INTEL && part >= 2) _mm_prefetch((const char*)q + 32 * (part - 2) + 8192, _MM_HINT_T1);
    else if (FETCH == INTEL) prefetch(q + 32 * part + 1024);
    else if (FETCH && step % 2 == 0) prefetch(p + 8192 + 64 * ((part * steps + step) / 2));
}

template <int R, int FETCH>
LS_INLINE void record(const uint8_t* p, int group, const int8_t* values, const int32_t*, v16* f, bool first) {
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

#elif defined(LS_TARGET_NEON)

// One record times R rows, in NEON's dot product: sdot multiplies four signed weights with four signed inputs a channel.
constexpr bool MAKERS_DIFFER = false;

template <int R, int FETCH>
LS_INLINE void record(const uint8_t* p, int group, const int8_t* values, const int32_t*, v16* f, bool first) {
    constexpr int N = R <= 4 ? 4 : 2;  // vectors of four channels at a time
    const uint8x16_t flip = vdupq_n_u8(0x80);
    for (int part = 0; part < 8 / N; part++) {
        const uint8_t* q = p + 64 + 16 * N * part;
        const int32_t* a = (const int32_t*)values;
        int32x4_t i[R][N];
#pragma GCC unroll 8
        for (int r = 0; r < R; r++)
#pragma GCC unroll 4
            for (int n = 0; n < N; n++) i[r][n] = vdupq_n_s32(0);
        for (int k = 0; k < group; k += 4, q += 128, a += R) {
            int8x16_t w[N];
            if (FETCH && part == 0) prefetch(q + 3072), prefetch(q + 3136);
#pragma GCC unroll 4
            for (int n = 0; n < N; n++) w[n] = vreinterpretq_s8_u8(veorq_u8(vld1q_u8(q + 16 * n), flip));
#pragma GCC unroll 8
            for (int r = 0; r < R; r++) {
                const int8x16_t v = vreinterpretq_s8_s32(vdupq_n_s32(a[r]));
#pragma GCC unroll 4
                for (int n = 0; n < N; n++) i[r][n] = vdotq_s32(i[r][n], w[n], v);
            }
        }
#pragma GCC unroll 4
        for (int n = 0; n < N; n++) {
            const int channel = 4 * (N * part + n);
            const float32x4_t scale = vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16((const uint16_t*)p + channel)));
#pragma GCC unroll 8
            for (int r = 0; r < R; r++) {
                float* y = (float*)(f + 2 * r) + channel;
                const float32x4_t u = vcvtq_f32_s32(i[r][n]);
                vst1q_f32(y, first ? vmulq_f32(u, scale) : vfmaq_f32(vld1q_f32(y), u, scale));
            }
        }
    }
}

#else

// One record times R rows in plain C, the reference of the other tiles.
constexpr bool MAKERS_DIFFER = false;

template <int R, int FETCH>
LS_INLINE void record(const uint8_t* p, int group, const int8_t* values, const int32_t* sums, v16* f, bool first) {
    for (int r = 0; r < R; r++)
        for (int j = 0; j < PANEL; j++) {
            int32_t i = sums[r];
            for (int k = 0; k < group; k++) i += p[64 + int8_at(j, k)] * values[(k / 4 * R + r) * 4 + k % 4];
            const float scale = half_to_float(((const uint16_t*)p)[j]);
            float* y = (float*)(f + 2 * r) + j;
            *y = first ? (float)i * scale : fma((float)i, scale, *y);
        }
}

#endif
