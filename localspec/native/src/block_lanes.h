// The part of the product of blocks that depends on the instruction set: vectors as wide as its registers, with a lane for
// each output channel, and a Sum that adds four weights times four inputs in each lane. Integers: their order does not matter.
//
// Bytes of weights are 0 to T::MOST, or where T::SIGNED -128 to 127; inputs are -127 to 127. Where UNSIGNED_WEIGHTS, 128 is
// added to signed ones, and the sum begins with a correction that removes these 128. TURN: rows whose sums fit into the registers.

#if defined(LS_TARGET_AVX512)
typedef v16 Reals;
typedef i16 Words;
constexpr int TURN = 8;
constexpr bool UNSIGNED_WEIGHTS = true;
LS_INLINE Reals halves_at(const uint8_t* p) { return load_halves((const uint16_t*)p); }
LS_INLINE Words looked_up(const int8_t* table, Words indices) {
    return (Words)_mm512_shuffle_epi8(_mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i*)table)), (__m512i)indices);
}
template <class T> struct Sum {
    __m512i i;
    LS_INLINE void begin(Words from) { i = (__m512i)from; }
    template <int STEP> LS_INLINE void add(Words w, const int8_t* x) {  // assembly, because compilers load all inputs first and run out of registers
        asm("vpdpbusd %2%{1to16%}, %1, %0" : "+v"(i) : "v"((__m512i)w), "m"(*(const int32_t*)x));
    }
    LS_INLINE Words total() const { return (Words)i; }
};

#elif defined(LS_TARGET_AVX2)
typedef float Reals __attribute__((vector_size(32)));
typedef int32_t Words __attribute__((vector_size(32)));
LS_INLINE Reals fma(Reals a, Reals b, Reals c) { return (Reals)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c); }
LS_INLINE Reals halves_at(const uint8_t* p) { return (Reals)_mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)p)); }
LS_INLINE Words looked_up(const int8_t* table, Words indices) {
    return (Words)_mm256_shuffle_epi8(_mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i*)table)), (__m256i)indices);
}
#if defined(DPBUSD)
constexpr int TURN = 4;
constexpr bool UNSIGNED_WEIGHTS = true;
template <class T> struct Sum {
    __m256i i;
    LS_INLINE void begin(Words from) { i = (__m256i)from; }
    template <int STEP> LS_INLINE void add(Words w, const int8_t* x) { i = DPBUSD(i, (__m256i)w, _mm256_set1_epi32(*(const int32_t*)x)); }
    LS_INLINE Words total() const { return (Words)i; }
};
#else
constexpr int TURN = 8;  // measured: 8 rows take 12 % less time than twice 4
constexpr bool UNSIGNED_WEIGHTS = false;
template <class T> struct Sum {  // two products fit in 16 bits, and so do those of FIT steps with weights this large
    static constexpr int STEPS = 8 / T::SCALES, MANY = T::SIGNED ? 1 : 32767 / (2 * 127 * T::MOST), FIT = MANY < STEPS ? MANY : STEPS;
    __m256i i, pairs;
    LS_INLINE void begin(Words from) { i = (__m256i)from; }
    template <int STEP> LS_INLINE void add(Words w, const int8_t* x) {
        constexpr int AT = STEP % STEPS;
        const int32_t& four = *(const int32_t*)x;
        __m256i m;  // in assembly for the same reason as with AVX-512
        if (!T::SIGNED) asm("vpbroadcastd %2, %0\n\tvpmaddubsw %0, %1, %0" : "=&x"(m) : "x"((__m256i)w), "m"(four));
        else asm("vpbroadcastd %3, %0\n\tvpsignb %2, %0, %0\n\tvpmaddubsw %0, %1, %0" : "=&x"(m) : "x"(_mm256_abs_epi8((__m256i)w)), "x"((__m256i)w), "m"(four));
        pairs = AT % FIT ? _mm256_add_epi16(pairs, m) : m;
        if (AT % FIT == FIT - 1 || AT == STEPS - 1) i = _mm256_add_epi32(i, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
    }
    LS_INLINE Words total() const { return (Words)i; }
};
#endif

#elif defined(LS_TARGET_NEON)
typedef float Reals __attribute__((vector_size(16)));
typedef int32_t Words __attribute__((vector_size(16)));
constexpr int TURN = 8;
constexpr bool UNSIGNED_WEIGHTS = false;
LS_INLINE Reals fma(Reals a, Reals b, Reals c) { return (Reals)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b); }
LS_INLINE Reals halves_at(const uint8_t* p) { return (Reals)vcvt_f32_f16(vreinterpret_f16_u8(vld1_u8(p))); }
LS_INLINE Words looked_up(const int8_t* table, Words indices) { return (Words)vqtbl1q_s8(vld1q_s8(table), (uint8x16_t)indices); }
template <class T> struct Sum {
    int32x4_t i;
    LS_INLINE void begin(Words from) { i = (int32x4_t)from; }
    template <int STEP> LS_INLINE void add(Words w, const int8_t* x) {
        i = vdotq_s32(i, (int8x16_t)w, vreinterpretq_s8_s32(vld1q_dup_s32((const int32_t*)x)));
    }
    LS_INLINE Words total() const { return (Words)i; }
};

#else
typedef float Reals __attribute__((vector_size(16)));
typedef int32_t Words __attribute__((vector_size(16)));
constexpr int TURN = 1;
constexpr bool UNSIGNED_WEIGHTS = false;
__attribute__((noinline)) Reals fma(Reals a, Reals b, Reals c) {  // inlined, it would make up most of this file's code
    for (int i = 0; i < 4; i++) c[i] = fma(a[i], b[i], c[i]);
    return c;
}
LS_INLINE Reals halves_at(const uint8_t* p) {
    uint16_t h[4];
    memcpy(h, p, 8);
    return Reals{half_to_float(h[0]), half_to_float(h[1]), half_to_float(h[2]), half_to_float(h[3])};
}
__attribute__((noinline)) Words looked_up(const int8_t* table, Words indices) {
    int8_t bytes[16];
    memcpy(bytes, &indices, 16);
    for (int8_t& byte : bytes) byte = table[(int)byte];
    memcpy(&indices, bytes, 16);
    return indices;
}
template <class T> struct Sum {
    Words i;
    LS_INLINE void begin(Words from) { i = from; }
    template <int STEP> LS_INLINE void add(Words w, const int8_t* x) {
        for (int b = 0; b < 4; b++) i += (T::SIGNED ? w << (24 - 8 * b) >> 24 : w >> 8 * b & 255) * x[b];
    }
    LS_INLINE Words total() const { return i; }
};
#endif

constexpr int WIDTH = sizeof(Words), LANES = WIDTH / 4, PARTS = BLOCK_PANEL / LANES;
typedef uint32_t Unsigned __attribute__((vector_size(WIDTH)));
typedef uint16_t Shorts __attribute__((vector_size(WIDTH / 2)));

LS_INLINE Words words_at(const uint8_t* p) {
    Words w;
    memcpy(&w, p, WIDTH);
    return w;
}
LS_INLINE Words shorts_at(const uint8_t* p) {
    Shorts s;
    memcpy(&s, p, WIDTH / 2);
    return __builtin_convertvector(s, Words);
}
LS_INLINE Words every(int32_t i) { return i - Words{}; }
LS_INLINE Reals every(float f) { return f - Reals{}; }
LS_INLINE Reals reals(Words w) { return __builtin_convertvector(w, Reals); }
LS_INLINE Words shifted(Words w, int bits) { return (Words)((Unsigned)w >> bits); }
LS_INLINE Words byte_of(Words w, int number) { return shifted(w, 8 * number) & 255; }
LS_INLINE Words signed_byte_of(Words w, int number) { return w << (24 - 8 * number) >> 24; }
