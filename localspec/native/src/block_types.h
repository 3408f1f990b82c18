// Readers of each type of block. A weight is scale * (byte - offset) + minimum.
//
// A record has CHUNKS * GROUPS groups of 32 inputs. `scales` gives SCALES of each group (for 32 inputs, or for 16), and as
// many minima where MINIMA; `word` gives the bytes of four inputs: number STEP of 8 in group GROUP of a chunk. `p` is the first
// word of the record, and for fields the first field, both at the lanes that are computed. OFFSET: the offset as a power of 2.

constexpr int32_t FOURS = 0x0f0f0f0f, TWOS = 0x03030303, ONES = 0x01010101;

template <int TYPE> struct Stored {
    static constexpr BlockLayout LAYOUT = *find_layout(TYPE);
    static constexpr int CHUNKS = 1, GROUPS = LAYOUT.blocks, SCALES = 1, MOST = 15, OFFSET = -1;
    static constexpr bool SIGNED = false, MINIMA = false;
    template <int GROUP> static LS_INLINE const uint8_t* block(const uint8_t* p) { return p + LINE * LAYOUT.words * GROUP; }
    static LS_INLINE void scales(const uint8_t*, const uint8_t* fields, Reals* scale, Reals* minimum) {
        scale[0] = halves_at(fields);
        if (LAYOUT.blocks == 2) scale[1] = halves_at(fields + LINE / 2);
        else if (LAYOUT.second_is_scale) minimum[0] = halves_at(fields + LINE / 2);
    }
};

// A byte has a weight of the first 16 inputs in its low half, and one of the last 16 in its high half.
template <int STEP> LS_INLINE Words nibbles(const uint8_t* p) {
    const Words w = words_at(p + LINE * (STEP % 4));
    return (STEP < 4 ? w : shifted(w, 4)) & FOURS;
}
template <int STEP> LS_INLINE Words fifth_bits(Words bits) { return (STEP < 4 ? bits << (4 - STEP) : shifted(bits, STEP - 4)) & ONES << 4; }

struct Q4_0 : Stored<LS_Q4_0> {
    static constexpr int OFFSET = 3;
    template <int GROUP, int STEP> static LS_INLINE Words word(const uint8_t* p, int) { return nibbles<STEP>(block<GROUP>(p)); }
};
struct Q4_1 : Stored<LS_Q4_1> {
    static constexpr bool MINIMA = true;
    template <int GROUP, int STEP> static LS_INLINE Words word(const uint8_t* p, int) { return nibbles<STEP>(p); }
};
struct Q5_0 : Stored<LS_Q5_0> {
    static constexpr int MOST = 31, OFFSET = 4;
    template <int GROUP, int STEP> static LS_INLINE Words word(const uint8_t* p, int) {
        return nibbles<STEP>(block<GROUP>(p) + LINE) | fifth_bits<STEP>(words_at(block<GROUP>(p)));
    }
};
struct Q5_1 : Stored<LS_Q5_1> {
    static constexpr int MOST = 31;
    static constexpr bool MINIMA = true;
    template <int GROUP, int STEP> static LS_INLINE Words word(const uint8_t* p, int) {
        return nibbles<STEP>(p + LINE) | fifth_bits<STEP>(words_at(p));
    }
};
struct Q8_0 : Stored<LS_Q8_0> {
    static constexpr bool SIGNED = true;
    template <int GROUP, int STEP> static LS_INLINE Words word(const uint8_t* p, int) { return words_at(block<GROUP>(p) + LINE * STEP); }
};

alignas(16) constexpr int8_t UNEVEN[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
struct IQ4_NL : Stored<LS_IQ4_NL> {
    static constexpr bool SIGNED = true;
    template <int GROUP, int STEP> static LS_INLINE Words word(const uint8_t* p, int) {
        return looked_up(UNEVEN, nibbles<STEP>(block<GROUP>(p)));
    }
};

// 16 + twice each number of e2m1.
alignas(16) constexpr int8_t E2M1[16] = {16, 17, 18, 19, 20, 22, 24, 28, 16, 15, 14, 13, 12, 10, 8, 4};
struct MXFP4 : Stored<LS_MXFP4> {
    static constexpr int MOST = 28, OFFSET = 4;
    static LS_INLINE void scales(const uint8_t* p, const uint8_t*, Reals* scale, Reals*) {  // half of 2^(byte - 127), as in ggml
        const Words four = words_at(p - LINE);
        for (int i = 0; i < 4; i++) {
            const Words e = byte_of(four, i), small = e < 2;
            scale[i] = (Reals)((small & (every(0x200000) << e)) | (~small & (e - 1) << 23));
        }
    }
    template <int GROUP, int STEP> static LS_INLINE Words word(const uint8_t* p, int) {
        return looked_up(E2M1, nibbles<STEP>(block<GROUP>(p)));
    }
};

// Scales and minima of 6 bits, as bytes of four words; 256 inputs, of which byte i of 32 has those of groups 2 c and 2 c + 1.
struct SixBits {
    static LS_INLINE void scales(const uint8_t* p, const uint8_t* fields, Reals* scale, Reals* minimum) {
        const Reals d = halves_at(fields), least = -halves_at(fields + LINE / 2);
        const Words low = words_at(p), high = words_at(p + LINE), both = words_at(p + 2 * LINE);
        const Words s[2] = {low & 0x3f3f3f3f, (both & FOURS) | (shifted(low, 2) & 0x30303030)};
        const Words m[2] = {high & 0x3f3f3f3f, (shifted(both, 4) & FOURS) | (shifted(high, 2) & 0x30303030)};
#pragma GCC unroll 8
        for (int g = 0; g < 8; g++) scale[g] = reals(byte_of(s[g / 4], g % 4)) * d, minimum[g] = reals(byte_of(m[g / 4], g % 4)) * least;
    }
};
struct Q4_K : Stored<LS_Q4_K>, SixBits {
    using SixBits::scales;
    static constexpr int CHUNKS = 4, GROUPS = 2;
    static constexpr bool MINIMA = true;
    template <int GROUP, int STEP> static LS_INLINE Words word(const uint8_t* p, int chunk) {
        return shifted(words_at(p + LINE * (3 + 8 * chunk + STEP)), 4 * GROUP) & FOURS;
    }
};
struct Q5_K : Stored<LS_Q5_K>, SixBits {
    using SixBits::scales;
    static constexpr int CHUNKS = 4, GROUPS = 2, MOST = 31;
    static constexpr bool MINIMA = true;
    template <int GROUP, int STEP> static LS_INLINE Words word(const uint8_t* p, int chunk) {
        const Words fifth = shifted(words_at(p + LINE * (3 + STEP)), 2 * chunk + GROUP) & ONES;
        return (shifted(words_at(p + LINE * (11 + 8 * chunk + STEP)), 4 * GROUP) & FOURS) | fifth << 4;
    }
};

// 256 inputs in two chunks of 128, and 16 scales.
struct Q6_K : Stored<LS_Q6_K> {
    static constexpr int CHUNKS = 2, GROUPS = 4, SCALES = 2, MOST = 63, OFFSET = 5;
    static LS_INLINE void scales(const uint8_t* p, const uint8_t* fields, Reals* scale, Reals*) {
        const Reals d = halves_at(fields);
#pragma GCC unroll 16
        for (int i = 0; i < 16; i++) scale[i] = reals(signed_byte_of(words_at(p + LINE * line_of(LAYOUT, 48 + i / 4)), i % 4)) * d;
    }
    template <int GROUP, int STEP> static LS_INLINE Words word(const uint8_t* p, int chunk) {
        p += LINE * 24 * chunk;
        const Words low = words_at(p + LINE * line_of(LAYOUT, 8 * (GROUP % 2) + STEP)), high = words_at(p + LINE * line_of(LAYOUT, 32 + STEP));
        return (shifted(low, GROUP / 2 * 4) & FOURS) | (shifted(high, 2 * GROUP) & TWOS) << 4;
    }
};
struct Q3_K : Stored<LS_Q3_K> {
    static constexpr int CHUNKS = 2, GROUPS = 4, SCALES = 2, MOST = 7, OFFSET = 2;
    static LS_INLINE void scales(const uint8_t* p, const uint8_t* fields, Reals* scale, Reals*) {
        const Reals d = halves_at(fields);
        const Words high = words_at(p + LINE * line_of(LAYOUT, 26));
#pragma GCC unroll 16
        for (int i = 0; i < 16; i++) {
            const Words low = shifted(words_at(p + LINE * line_of(LAYOUT, 24 + i / 4 % 2)), i / 8 * 4) & FOURS;
            scale[i] = reals(byte_of(low | (shifted(high, i / 4 * 2) & TWOS) << 4, i % 4) - 32) * d;
        }
    }
    template <int GROUP, int STEP> static LS_INLINE Words word(const uint8_t* p, int chunk) {
        const Words third = shifted(words_at(p + LINE * line_of(LAYOUT, STEP)), 4 * chunk + GROUP) & ONES;
        return (shifted(words_at(p + LINE * line_of(LAYOUT, 8 + 8 * chunk + STEP)), 2 * GROUP) & TWOS) | third << 2;
    }
};
struct Q2_K : Stored<LS_Q2_K> {
    static constexpr int CHUNKS = 2, GROUPS = 4, SCALES = 2, MOST = 3;
    static constexpr bool MINIMA = true;
    static LS_INLINE void scales(const uint8_t* p, const uint8_t* fields, Reals* scale, Reals* minimum) {
        const Reals d = halves_at(fields), least = -halves_at(fields + LINE / 2);
#pragma GCC unroll 16
        for (int i = 0; i < 16; i++) {
            const Words both = byte_of(words_at(p + LINE * (i / 4)), i % 4);
            scale[i] = reals(both & 15) * d, minimum[i] = reals(shifted(both, 4)) * least;
        }
    }
    template <int GROUP, int STEP> static LS_INLINE Words word(const uint8_t* p, int chunk) {
        return shifted(words_at(p + LINE * (4 + 8 * chunk + STEP)), 2 * GROUP) & TWOS;
    }
};
struct IQ4_XS : Stored<LS_IQ4_XS> {
    static constexpr int CHUNKS = 8, GROUPS = 1;
    static constexpr bool SIGNED = true;
    static LS_INLINE void scales(const uint8_t* p, const uint8_t* fields, Reals* scale, Reals*) {
        const Reals d = halves_at(fields);
        const Words low = words_at(p), high = shorts_at(fields + LINE / 2);
#pragma GCC unroll 8
        for (int g = 0; g < 8; g++) scale[g] = reals(((shifted(low, 4 * g) & 15) | (shifted(high, 2 * g) & 3) << 4) - 32) * d;
    }
    template <int GROUP, int STEP> static LS_INLINE Words word(const uint8_t* p, int chunk) {
        return looked_up(UNEVEN, nibbles<STEP>(p + LINE * (1 + 4 * chunk)));
    }
};
