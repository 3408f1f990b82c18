constexpr int REGISTERS = 8;  // fours of them
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
