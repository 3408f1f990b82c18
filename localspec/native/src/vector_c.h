constexpr int REGISTERS = 4;  // fours of them
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
