// A linear layer: a tile (32 channels, up to 8 rows) for each panel and block of rows, then the epilogue.
//
// Every output is acc = fma(f, input scale, acc) over spans of 128 inputs, f = fma(integer sum, weight scale, f) over the
// groups of a span, in this order whatever rows or panels are computed with it. Dense: acc = fma(weight, input, acc).

// A part of one panel, and of one block of rows.
struct Slice {
    const uint8_t* weights;
    const int8_t* values;
    const int32_t* sums;
    const float* scales;
    const float* floats;  // dense weights, in place of the three above
    int count, group;     // groups, and inputs of each; dense: inputs
};

// Add the product of a slice to acc [R][32].
template <int R, int FETCH>
LS_INLINE void quantised_tile(const Slice& slice, v16* acc) {
    const int group = slice.group, span = span_of(group);
    const size_t bytes = record_bytes(group);
    const uint8_t* p = slice.weights;
    const int8_t* values = slice.values;
    const int32_t* sums = slice.sums;
    const float* scales = slice.scales;
    constexpr bool COPY = R <= 4 || FETCH;  // for more blocks a copy does not pay: each call is short, and registers are too few
    v16 copy[2 * R];
    v16* kept = COPY ? copy : acc;
#pragma GCC unroll 16
    for (int i = 0; i < 2 * R && COPY; i++) kept[i] = acc[i];
    for (int g = 0; g < slice.count; scales += R) {
        v16 f[2 * R];
        record<R, FETCH>(p, group, values, sums, f, true);
        p += bytes, values += (size_t)group * R, sums += R, g++;
        for (int i = 1; i < span && g < slice.count; i++) {
            record<R, FETCH>(p, group, values, sums, f, false);
            p += bytes, values += (size_t)group * R, sums += R, g++;
        }
#pragma GCC unroll 8
        for (int r = 0; r < R; r++) {
            const v16 scale = all(scales[r]);
            kept[2 * r] = fma(f[2 * r], scale, kept[2 * r]);
            kept[2 * r + 1] = fma(f[2 * r + 1], scale, kept[2 * r + 1]);
        }
    }
#pragma GCC unroll 16
    for (int i = 0; i < 2 * R && COPY; i++) acc[i] = kept[i];
}

constexpr int DENSE_ROWS = REGISTERS >= 32 ? 8 : 2;  // rows whose sums of 32 channels stay in registers
template <int FORMAT, int R, int STRIDE>
LS_INLINE void dense_rows(const char* w, const float* x, int inputs, v16* acc) {
    v16 kept[2 * R];
#pragma GCC unroll 16
    for (int i = 0; i < 2 * R; i++) kept[i] = acc[i];
    for (int i = 0; i < inputs; i++, x += STRIDE) {
        const v16 w0 = FORMAT == LS_FP32 ? load((const float*)w) : load_bf16((const uint16_t*)w);
        const v16 w1 = FORMAT == LS_FP32 ? load((const float*)w + 16) : load_bf16((const uint16_t*)w + 16);
        w += FORMAT == LS_FP32 ? 4 * PANEL : 2 * PANEL;
        prefetch(w + 2048);
#pragma GCC unroll 8
        for (int r = 0; r < R; r++) {
            const v16 v = all(x[r]);
            kept[2 * r] = fma(v, w0, kept[2 * r]);
            kept[2 * r + 1] = fma(v, w1, kept[2 * r + 1]);
        }
    }
#pragma GCC unroll 16
    for (int i = 0; i < 2 * R; i++) acc[i] = kept[i];
}
template <int FORMAT, int R, int STRIDE>
LS_INLINE void dense_blocks(const char* w, const float* x, int inputs, v16* acc) {
    constexpr int NOW = R < DENSE_ROWS ? R : DENSE_ROWS;
    dense_rows<FORMAT, NOW, STRIDE>(w, x, inputs, acc);
    if constexpr (R > NOW) dense_blocks<FORMAT, R - NOW, STRIDE>(w, x + NOW, inputs, acc + 2 * NOW);
}
template <int FORMAT, int R>
LS_INLINE void dense_tile(const Slice& slice, v16* acc) {
    constexpr int NEAR = 64;  // inputs whose weights stay in the first-level cache for all rows
    for (int i = 0; i < slice.count; i += NEAR) {
        const char* w = (const char*)slice.weights + (size_t)i * PANEL * (FORMAT == LS_FP32 ? 4 : 2);
        dense_blocks<FORMAT, R, R>(w, slice.floats + (size_t)i * R, smaller(NEAR, slice.count - i), acc);
    }
}

template <int FORMAT, int R, int FETCH>
__attribute__((noinline)) void tile(const Slice& slice, v16* acc) {
    if constexpr (FORMAT == LS_FP32 || FORMAT == LS_BF16) dense_tile<FORMAT, R>(slice, acc);
    else quantised_tile<R, FETCH>(slice, acc);
}

template <int FORMAT, int FETCH>
void tile_of(int R, const Slice& slice, v16* acc) {
    switch (R) {
        case 1: return tile<FORMAT, 1, FETCH>(slice, acc);
        case 2: return tile<FORMAT, 2, FETCH>(slice, acc);
        case 3: return tile<FORMAT, 3, FETCH>(slice, acc);
        case 4: return tile<FORMAT, 4, FETCH>(slice, acc);
        case 5: return tile<FORMAT, 5, FETCH>(slice, acc);
        case 6: return tile<FORMAT, 6, FETCH>(slice, acc);
        case 7: return tile<FORMAT, 7, FETCH>(slice, acc);
        default: return tile<FORMAT, 8, FETCH>(slice, acc);
    }
}

// A single block of rows prefetches what comes next.
template <int FORMAT>
void fetching_tile_of(int R, const Slice& slice, v16* acc) {
    if constexpr (MAKERS_DIFFER && FORMAT != LS_FP32 && FORMAT != LS_BF16)
        if (made_by_intel) return tile_of<FORMAT, INTEL>(R, slice, acc);
    tile_of<FORMAT, USUAL>(R, slice, acc);
}

// The blocks of rows that share a panel, with quotients that are the same for every tile.
struct Pass {
    int first, rows, blocks, start[PASS / BLOCK], size[PASS / BLOCK];
    int units, step, group, spans;  // groups (dense: inputs) of a row, how many at a time, inputs of each; their scales
    Pass(const Product& p, int from_block, int to_block) : blocks(to_block - from_block) {
        for (int i = 0; i < blocks; i++) start[i] = p.blocks.start(from_block + i), size[i] = p.blocks.size(from_block + i);
        first = start[0], rows = start[blocks - 1] + size[blocks - 1] - first;
        const ls_matrix& m = *p.matrix;
        const bool dense = is_dense(m.format);
        units = dense ? m.in : groups_of(m.in, m.group), step = dense ? SCALED : span_of(m.group);
        group = dense ? 1 : m.group, spans = ceil_div(units, step);
    }
};

// One panel. Many blocks take turns, a span each, so that memory is read once.
template <int FORMAT>
void panel_of(const Pass& pass, const Inputs& in, const uint8_t* panel, v16* out) {
    constexpr bool DENSE = FORMAT == LS_FP32 || FORMAT == LS_BF16;
    const size_t bytes = FORMAT == LS_FP32 ? PANEL * 4 : FORMAT == LS_BF16 ? PANEL * 2 : record_bytes(pass.group);
    const int step = pass.blocks == 1 ? pass.units : pass.step;
    for (int from = 0, span = 0; from < pass.units; from += step, span++)
        for (int block = 0; block < pass.blocks; block++) {
            const size_t start = pass.start[block], R = pass.size[block], row_units = start * pass.units + from * R;
            Slice slice{panel + bytes * from, nullptr, nullptr, nullptr, nullptr, smaller(step, pass.units - from), pass.group};
            if (DENSE) slice.floats = in.floats + row_units;
            else slice.values = in.values + row_units * pass.group, slice.sums = in.sums + row_units, slice.scales = in.scales + start * pass.spans + span * R;
            v16* acc = out + 2 * (pass.start[block] - pass.first);
            if (DENSE || pass.blocks == 1) {
                fetching_tile_of<FORMAT>((int)R, slice, acc);
                continue;
            }
            // each block prefetches its share of the span after the next; all of it would be too many requests at once
            const size_t turn = bytes * step, share = turn / pass.blocks;
            for (size_t at = 0; at < share && pass.blocks > 2; at += 64) prefetch(slice.weights + 2 * turn + share * block + at);
            if (pass.blocks == 2 && block == 0) {
                fetching_tile_of<FORMAT>((int)R, slice, acc);
                continue;
            }
            tile_of<FORMAT, NOTHING>((int)R, slice, acc);
        }
}

LS_INLINE void note_best(Best& best, v16 u, v16 v, int first, int count) {
    const v16 least = all(best.logit);
    if (!any(~((u < least) & (v < least)))) return;  // comparisons with NaN are false
    float s[PANEL];
    store(s, u);
    store(s + 16, v);
    for (int j = 0; j < count; j++) {
        if (s[j] != s[j]) best = Best{__builtin_inff(), -1};
        if (s[j] > best.logit || (s[j] == best.logit && first + j < best.id)) best = Best{s[j], first + j};
    }
}

// The output channels of a unit: 16 from `first` on and 16 from `second` on, or as many as are left.
struct Channels {
    int first, second, first_left, second_left;
};
LS_INLINE Channels following(int first, int left) { return {first, first + 16, left, left - 16}; }
LS_INLINE Channels gate_and_up(int first, int half) { return {first, half + first, half - first, half - first}; }

// y of one row and unit: bias, an adapter's part, then the epilogue.
LS_INLINE void finish(const Product& p, int row, const Channels& c, int thread, v16 u, v16 v) {
    const int first = c.first, second = c.second, u_count = c.first_left, v_count = c.second_left;
    if (const float* bias = p.matrix->bias) {
        u = u + load_part(bias + first, u_count);
        if (v_count > 0) v = v + load_part(bias + second, v_count);
    }
    if (p.delta) {
        const float* delta = p.delta + (size_t)row * p.matrix->out;
        u = u + load_part(delta + first, u_count);
        if (v_count > 0) v = v + load_part(delta + second, v_count);
    }
    if (p.epilogue == Epilogue::head && p.cap > 0) u = capped(u, p.cap), v = capped(v, p.cap);
    if (p.epilogue == Epilogue::head) note_best(p.best[(size_t)thread * p.blocks.rows + row], u, v, first, smaller(PANEL, u_count));
    if (!p.y) return;
    float* y = p.y + row * p.stride + first;
    if (p.epilogue == Epilogue::clamped_gate) return store_part(y, clamped_gate(u, v, p.cap), u_count);
    if (is_gate(p.epilogue)) return store_part(y, (p.epilogue == Epilogue::gelu_gate ? gelu(u) : silu(u)) * v, u_count);
    if (p.epilogue == Epilogue::silu) u = silu(u), v = silu(v);
    if (p.epilogue == Epilogue::gelu) u = gelu(u), v = gelu(v);
    if (p.epilogue == Epilogue::add) {
        u = load_part(y, u_count) + u;
        if (v_count > 0) v = load_part(y + 16, v_count) + v;
    }
    store_part(y, u, u_count);
    if (v_count > 0) store_part(y + 16, v, v_count);
}

void multiply(const Product& p, int from_panel, int to_panel, int thread) {
    v16 out[2 * PASS];
    const ls_matrix& m = *p.matrix;
    const size_t bytes = panel_bytes(m);
    constexpr int BLOCKS = PASS / BLOCK;
    for (int panel = from_panel; panel < to_panel; panel++) {
        const Channels channels = is_gate(p.epilogue) ? gate_and_up(16 * panel, m.out / 2) : following(PANEL * panel, m.out - PANEL * panel);
        for (int block = 0; block < p.blocks.count; block += BLOCKS) {
            const Pass pass(p, block, smaller(p.blocks.count, block + BLOCKS));
            for (int i = 0; i < 2 * pass.rows; i++) out[i] = all(0.0f);
            const uint8_t* data = (const uint8_t*)m.data + bytes * panel;
            switch (m.format) {
                case LS_FP32: panel_of<LS_FP32>(pass, p.inputs, data, out); break;
                case LS_BF16: panel_of<LS_BF16>(pass, p.inputs, data, out); break;
                default: panel_of<LS_INT8>(pass, p.inputs, data, out);
            }
            for (int r = 0; r < pass.rows; r++) finish(p, pass.first + r, channels, thread, out[2 * r], out[2 * r + 1]);
        }
    }
}
