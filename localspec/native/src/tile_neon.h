// One record times R rows, in NEON's dot product: sdot multiplies four signed weights with four signed inputs a channel.
// f [R][32] is the sum over the record's inputs, in units of the inputs' scale; `first`: f is written, else added to.
constexpr bool MAKERS_DIFFER = false;

template <int R, int FETCH>
LS_INLINE void record(const uint8_t* p, int group, const int8_t* values, const int32_t* sums, v16* f, bool first) {
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
