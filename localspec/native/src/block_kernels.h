// A linear layer whose weights are blocks (layout.h): 16 output channels, a lane each, for up to 8 rows.
//
// Every output is computed in this order, whatever rows are computed with it: acc = 0, then for each group of 32 inputs
//   one scale     acc = fma(float(i) * scale, s, acc); acc = fma(minimum, s * sum, acc)
//   two scales    t = float(i0) * scale0; t = fma(float(i1), scale1, t); acc = fma(t, s, acc);
//                 u = minimum0 * -sum0; u = fma(minimum1, -sum1, u); acc = fma(u, -s, acc)
// where s is the scale of the inputs and i the sum of (byte - offset) * input. Types without minima leave out the last step.

// 32 inputs share a scale, as in prepare_span (row_kernels.h).
LS_INLINE void prepare_group(const Preparing& p, int block, int r, int group) {
    const int R = p.blocks.size(block), start = p.blocks.start(block), row = p.row(start + r), groups = padded_inputs(p.matrix->in) / 32;
    const float* x = p.x + (size_t)row * p.stride;
    v16 inputs[2];
    for (int h = 0; h < 2; h++) inputs[h] = input_of(p, x, row, 32 * group + 16 * h);
    const int32_t top_bits = largest(larger_of(as_bits(inputs[0]) & 0x7fffffff, as_bits(inputs[1]) & 0x7fffffff));
    const bool finite_top = top_bits < 0x7f800000;
    const float top = bits_as<float>(larger(top_bits, bits_as<int32_t>(1e-30f)));
    const float scale = finite_top ? top / 127.0f : __builtin_nanf("");
    const v16 factor = all(finite_top ? 127.0f / top : 0.0f);
    const size_t at = (size_t)start * groups + (size_t)group * R + r;
    i16 v[2];
    for (int h = 0; h < 2; h++) {
        const v16 scaled = inputs[h] * factor;
        v[h] = rounded(chosen(scaled == scaled, scaled, all(0.0f)));  // NaN from inf * 0 becomes 0
        to_bytes(v[h], p.to.values + 32 * at + 16 * h);
    }
    const int32_t both = sum_of(v[0] + (v[1] << 16)), first = (int16_t)both, second = (both - first) >> 16;  // 12 bits each
    p.to.half_sums[2 * at] = -first, p.to.half_sums[2 * at + 1] = -second;
    p.to.scales[at] = scale;
    p.to.scaled_sums[at] = scale * (float)(first + second);
    p.to.sums[at] = -(first + second);
}

void prepare_blocks(const Preparing& p, int block, int from_span, int to_span) {
    constexpr int GROUPS = INPUTS_TOGETHER / 32;
    for (int r = 0; r < p.blocks.size(block); r++)
        for (int group = GROUPS * from_span; group < GROUPS * to_span; group++) prepare_group(p, block, r, group);
}

// Some rows of a block of rows, starting at a group.
struct BlockRows {
    const int8_t* values;
    const float *scales, *scaled_sums;
    const int32_t *sums, *half_sums;
    LS_INLINE void pass(size_t count) { values += 32 * count, scales += count, scaled_sums += count, sums += count, half_sums += 2 * count; }
};

template <class T, int N, int GROUP, int STEP> LS_INLINE void add_steps(const uint8_t* p, int chunk, const int8_t* values, Sum<T>* sums) {
    Words w = T::template word<GROUP, STEP>(p, chunk);
    if (UNSIGNED_WEIGHTS && T::SIGNED) w ^= every((int32_t)0x80808080);
#pragma GCC unroll 8
    for (int r = 0; r < N; r++) sums[r].template add<STEP>(w, values + 32 * r + 4 * STEP);
    if constexpr ((STEP + 1) % (8 / T::SCALES) != 0) add_steps<T, N, GROUP, STEP + 1>(p, chunk, values, sums);
}
template <class T> LS_INLINE Words begun(int32_t minus_sum) {
    constexpr int SHIFT = T::SIGNED ? (UNSIGNED_WEIGHTS ? 7 : -1) : T::OFFSET;
    return SHIFT < 0 ? Words{} : every(minus_sum) << (SHIFT < 0 ? 0 : SHIFT);
}

template <class T, int N, int GROUP> LS_INLINE void add_group(const uint8_t* p, int chunk, const BlockRows& x, const Reals* scale, const Reals* minimum, Reals* acc) {
    Sum<T> sums[N];
    if constexpr (T::SCALES == 1) {
#pragma GCC unroll 8
        for (int r = 0; r < N; r++) sums[r].begin(begun<T>(x.sums[r]));
        add_steps<T, N, GROUP, 0>(p, chunk, x.values, sums);
#pragma GCC unroll 8
        for (int r = 0; r < N; r++) {
            acc[r] = fma(reals(sums[r].total()) * scale[0], every(x.scales[r]), acc[r]);
            if (T::MINIMA) acc[r] = fma(minimum[0], every(x.scaled_sums[r]), acc[r]);
        }
    } else {
        Reals t[N];
#pragma GCC unroll 8
        for (int r = 0; r < N; r++) sums[r].begin(begun<T>(x.half_sums[2 * r]));
        add_steps<T, N, GROUP, 0>(p, chunk, x.values, sums);
#pragma GCC unroll 8
        for (int r = 0; r < N; r++) t[r] = reals(sums[r].total()) * scale[0];
#pragma GCC unroll 8
        for (int r = 0; r < N; r++) sums[r].begin(begun<T>(x.half_sums[2 * r + 1]));
        add_steps<T, N, GROUP, 4>(p, chunk, x.values, sums);
#pragma GCC unroll 8
        for (int r = 0; r < N; r++) {
            acc[r] = fma(fma(reals(sums[r].total()), scale[1], t[r]), every(x.scales[r]), acc[r]);
            if (!T::MINIMA) continue;
            const Reals u = fma(minimum[1], every((float)x.half_sums[2 * r + 1]), minimum[0] * every((float)x.half_sums[2 * r]));
            acc[r] = fma(u, every(-x.scales[r]), acc[r]);
        }
    }
}
template <class T, int N, int GROUP> LS_INLINE void add_groups(const uint8_t* p, int chunk, BlockRows x, int rows, const Reals* scale, const Reals* minimum, Reals* acc) {
    add_group<T, N, GROUP>(p, chunk, x, scale, minimum, acc);
    if constexpr (GROUP + 1 < T::GROUPS) {
        x.pass(rows);
        add_groups<T, N, GROUP + 1>(p, chunk, x, rows, scale + T::SCALES, minimum + T::SCALES, acc);
    }
}

struct Ahead {  // bytes from the read address to the prefetched one; 0: no prefetch
    int near, far;
};

// One panel for N of the `rows` rows of a block, starting at x; out [N][16].
template <class T, int N> __attribute__((noinline)) void block_tile(const uint8_t* p, int records, BlockRows x, int rows, Ahead ahead, float* out) {
    constexpr int LINES = record_lines(T::LAYOUT), PER_CHUNK = T::GROUPS * T::SCALES, SHARE = (LINES + T::CHUNKS - 1) / T::CHUNKS;
    Reals acc[PARTS][N] = {};
    for (int record = 0; record < records; record++, p += LINE * LINES) {
        for (int part = 0; part < PARTS; part++) {
            Reals scale[T::CHUNKS * PER_CHUNK], minimum[T::CHUNKS * PER_CHUNK];
            const uint8_t* words = p + LINE + WIDTH * part;
            T::scales(words, p + WIDTH / 2 * part, scale, minimum);
            BlockRows now = x;
            for (int chunk = 0; chunk < T::CHUNKS; chunk++) {
                if (part == 0 && ahead.near)
                    for (int line = 0; line < SHARE; line++) prefetch(p + LINE * (SHARE * chunk + line) + ahead.near);
                if (part == 0 && ahead.far)
                    for (int line = 0; line < SHARE; line++) prefetch_far(p + LINE * (SHARE * chunk + line) + ahead.far);
                add_groups<T, N, 0>(words, chunk, now, rows, scale + PER_CHUNK * chunk, minimum + PER_CHUNK * chunk, acc[part]);
                now.pass((size_t)T::GROUPS * rows);
            }
        }
        x.pass((size_t)T::CHUNKS * T::GROUPS * rows);
    }
    for (int part = 0; part < PARTS; part++)
        for (int r = 0; r < N; r++) memcpy(out + BLOCK_PANEL * r + LANES * part, &acc[part][r], WIDTH);
}
template <class T, int N> void tile_of_rows(int count, const uint8_t* p, int records, const BlockRows& x, int rows, Ahead ahead, float* out) {
    if constexpr (N > 1)
        if (count < N) return tile_of_rows<T, N - 1>(count, p, records, x, rows, ahead, out);
    block_tile<T, N>(p, records, x, rows, ahead, out);
}

template <class T, int NUMBER> LS_INLINE void list_words(const uint8_t* p, int chunk, Words* to) {
    to[NUMBER] = T::template word<NUMBER / 8, NUMBER % 8>(p, chunk);
    if constexpr (NUMBER + 1 < 8 * T::GROUPS) list_words<T, NUMBER + 1>(p, chunk, to);
}
// Weights [from, to) of the row in a lane of a panel.
template <class T> __attribute__((noinline)) void read_lane(const uint8_t* panel, int row, int from, int to, float* weights) {
    constexpr int LINES = record_lines(T::LAYOUT), INPUTS = record_inputs(T::LAYOUT), PER_CHUNK = T::GROUPS * T::SCALES, STEPS = 8 / T::SCALES;
    constexpr int OFFSET = T::OFFSET < 0 ? 0 : 1 << (T::OFFSET & 31);
    const int part = row / LANES, lane = row % LANES;
    int first = from / INPUTS * INPUTS;
    for (const uint8_t* p = panel + (size_t)LINE * LINES * (from / INPUTS); first < to; p += LINE * LINES) {
        Reals scale[T::CHUNKS * PER_CHUNK], minimum[T::CHUNKS * PER_CHUNK];
        const uint8_t* words = p + LINE + WIDTH * part;
        T::scales(words, p + WIDTH / 2 * part, scale, minimum);
        for (int chunk = 0; chunk < T::CHUNKS; chunk++, first += 32 * T::GROUPS) {
            Words listed[8 * T::GROUPS];
            list_words<T, 0>(words, chunk, listed);
            for (int i = larger(0, from - first); i < smaller(32 * T::GROUPS, to - first); i++) {
                const int at = PER_CHUNK * chunk + i / 4 / STEPS, byte = listed[i / 4][lane] >> 8 * (i % 4) & 255;
                float v = (float)((T::SIGNED ? (int8_t)byte : byte) - OFFSET) * scale[at][lane];
                if (T::MINIMA) v = v + minimum[at][lane];
                weights[first + i - from] = v;
            }
        }
    }
}

// Call `work` with the type of a matrix.
template <class Work> LS_INLINE void with_block_type(int type, const Work& work) {
    switch (type) {
        case LS_Q4_0: return work(Q4_0());
        case LS_Q4_1: return work(Q4_1());
        case LS_Q5_0: return work(Q5_0());
        case LS_Q5_1: return work(Q5_1());
        case LS_Q8_0: return work(Q8_0());
        case LS_Q2_K: return work(Q2_K());
        case LS_Q3_K: return work(Q3_K());
        case LS_Q4_K: return work(Q4_K());
        case LS_Q5_K: return work(Q5_K());
        case LS_Q6_K: return work(Q6_K());
        case LS_IQ4_NL: return work(IQ4_NL());
        case LS_IQ4_XS: return work(IQ4_XS());
        case LS_MXFP4: return work(MXFP4());
    }
}

void read_blocks(const ls_blocks& part, int in, int row, int from, int to, float* weights) {
    const uint8_t* data = (const uint8_t*)part.data + block_panel_bytes(*find_layout(part.type), in) * (row / BLOCK_PANEL);
    with_block_type(part.type, [&](auto type) { read_lane<decltype(type)>(data, row % BLOCK_PANEL, from, to, weights); });
}

// A part of a weight, with values that are the same for every panel.
struct BlockPart {
    const uint8_t* data;
    size_t panel_bytes;
    int records;
    void (*tile)(int count, const uint8_t* p, int records, const BlockRows& x, int rows, Ahead ahead, float* out);
    void set(const ls_blocks& part, int in) {
        const BlockLayout& layout = *find_layout(part.type);
        data = (const uint8_t*)part.data, panel_bytes = block_panel_bytes(layout, in), records = records_of(layout, in);
        with_block_type(part.type, [&](auto type) { tile = tile_of_rows<decltype(type), TURN>; });
    }
};

// One panel and one block of rows; out [rows][16].
LS_INLINE void block_panel(const BlockPart& part, int panel, BlockRows x, int rows, bool first, float* out) {
    const uint8_t* data = part.data + part.panel_bytes * panel;
    // Measured on AMD (Zen 4, Q4_K and Q6_K): the processor prefetches enough for a row or two, and more is 15 to 30 % slower;
    // for four rows and more it is up to 70 % faster. Zen 5: a row in Q4_K is 20 % faster, too. Intel: see tile.h.
    const Ahead ahead = !first || (rows <= 2 && prefetches_alone) ? Ahead{0, 0} : made_by_intel ? Ahead{1024, 8192} : Ahead{0, 8192};
    for (int r = 0; r < rows; r += TURN, x.pass(TURN))
        part.tile(smaller(TURN, rows - r), data, part.records, x, rows, r ? Ahead{0, 0} : ahead, out + BLOCK_PANEL * r);
}

// Two panels and their output channels.
struct BlockUnit {
    int parts[2], panels[2];
    Channels channels;
    BlockUnit(const ls_matrix& m, bool gate, int unit) {
        if (gate) {
            parts[0] = 0, parts[1] = 1, panels[0] = panels[1] = unit;
            channels = gate_and_up(BLOCK_PANEL * unit, m.parts[0].out);
            return;
        }
        int before = 0, part = 0;
        for (; unit >= panels_of(m.parts[part].out); part++) unit -= panels_of(m.parts[part].out), before += m.parts[part].out;
        parts[0] = parts[1] = part, panels[0] = 2 * unit, panels[1] = 2 * unit + 1;
        channels = following(before + PANEL * unit, m.parts[part].out - PANEL * unit);
    }
};

void multiply_blocks(const Product& p, int from_unit, int to_unit, int thread) {
    constexpr int NEAR = 384 << 10;  // bytes of inputs that stay in the second-level cache from panel to panel
    constexpr int MOST = 32;         // blocks of rows
    const ls_matrix& m = *p.matrix;
    float u[BLOCK * BLOCK_PANEL], v[BLOCK * BLOCK_PANEL] = {};
    BlockPart parts[sizeof m.parts / sizeof *m.parts];
    for (int i = 0; i < m.num_parts; i++) parts[i].set(m.parts[i], m.in);
    const int groups = padded_inputs(m.in) / 32, turn = smaller(MOST, larger(1, NEAR / (BLOCK * 32 * groups)));
    for (int from = 0; from < p.blocks.count; from += turn) {
        BlockRows rows[MOST];
        int first[MOST], size[MOST];
        const int count = smaller(turn, p.blocks.count - from);
        for (int i = 0; i < count; i++) {
            first[i] = p.blocks.start(from + i), size[i] = p.blocks.size(from + i);
            rows[i] = {p.inputs.values, p.inputs.scales, p.inputs.scaled_sums, p.inputs.sums, p.inputs.half_sums};
            rows[i].pass((size_t)first[i] * groups);
        }
        for (int number = from_unit; number < to_unit; number++) {
            const BlockUnit unit(m, is_gate(p.epilogue), number);
            for (int i = 0; i < count; i++) {
                block_panel(parts[unit.parts[0]], unit.panels[0], rows[i], size[i], i == 0, u);
                if (unit.channels.second_left > 0) block_panel(parts[unit.parts[1]], unit.panels[1], rows[i], size[i], i == 0, v);
                for (int r = 0; r < size[i]; r++) finish(p, first[i] + r, unit.channels, thread, load(u + BLOCK_PANEL * r), load(v + BLOCK_PANEL * r));
            }
        }
    }
}
