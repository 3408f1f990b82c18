// One record times R rows in plain C, the reference of the other tiles.
// f [R][32] is the sum over the record's inputs, in units of the inputs' scale; `first`: f is written, else added to.
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
