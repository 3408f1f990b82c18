// A linear layer: a tile (32 channels, up to 8 rows) for each panel and block of rows, then what follows the sum.
//
// Every output is acc = fma(f, input scale, acc) over spans of 128 inputs, f = fma(integer sum, weight scale, f) over the
// groups of a span, in this order whatever rows or panels are computed beside it. Dense: acc = fma(weight, input, acc).

// Adds what groups (dense: inputs) [from, to) of one panel give for one block of rows to acc [R][32].
template <int FORMAT, int R, bool FETCH>
LS_INLINE void quantised_tile(const ls_matrix& m, const uint8_t* panel, const Inputs& in, int start, int from, int to, v16* acc) {
    const int group = m.group, span = span_of(group), groups = groups_of(m.in, group), spans = spans_of(FORMAT, m.in, group);
    const size_t bytes = record_bytes(FORMAT, group);
    const uint8_t* p = panel + bytes * from;
    const int8_t* values = in.values + (size_t)start * groups * group + (size_t)from * group * R;
    const int32_t* sums = in.sums + (size_t)start * groups + (size_t)from * R;
    const float* scales = in.scales + (size_t)start * spans + (size_t)(from / span) * R;
    constexpr bool COPY = R <= 4 || FETCH;  // else the call is a short one, and there are too many for the registers
    v16 copy[2 * R];
    v16* kept = COPY ? copy : acc;
#pragma GCC unroll 16
    for (int i = 0; i < 2 * R && COPY; i++) kept[i] = acc[i];
    for (int g = from; g < to; scales += R) {
        v16 f[2 * R];
        record<FORMAT, R, FETCH>(p, group, values, sums, f, true);
        p += bytes, values += (size_t)group * R, sums += R, g++;
        for (int i = 1; i < span && g < to; i++) {
            record<FORMAT, R, FETCH>(p, group, values, sums, f, false);
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
    for (int i = 0; i < 2 * R; i++) acc[i] = kept[i];
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
LS_INLINE void dense_tile(const ls_matrix& m, const uint8_t* panel, const Inputs& in, int start, int from, int to, v16* acc) {
    constexpr int NEAR = 64;  // inputs whose weights stay in the first cache while all rows pass
    for (int i = from; i < to; i += NEAR) {
        const char* w = (const char*)panel + (size_t)i * PANEL * (FORMAT == LS_FP32 ? 4 : 2);
        dense_blocks<FORMAT, R, R>(w, in.floats + (size_t)start * m.in + (size_t)i * R, smaller(NEAR, to - i), acc);
    }
}

template <int FORMAT, int R, bool FETCH>
__attribute__((noinline)) void tile(const ls_matrix& m, const uint8_t* panel, const Inputs& in, int start, int from, int to, v16* acc) {
    if constexpr (FORMAT == LS_FP32 || FORMAT == LS_BF16) dense_tile<FORMAT, R>(m, panel, in, start, from, to, acc);
    else quantised_tile<FORMAT, R, FETCH>(m, panel, in, start, from, to, acc);
}

template <int FORMAT, bool FETCH>
void tile_of(int R, const ls_matrix& m, const uint8_t* panel, const Inputs& in, int start, int from, int to, v16* acc) {
    switch (R) {
        case 1: return tile<FORMAT, 1, FETCH>(m, panel, in, start, from, to, acc);
        case 2: return tile<FORMAT, 2, FETCH>(m, panel, in, start, from, to, acc);
        case 3: return tile<FORMAT, 3, FETCH>(m, panel, in, start, from, to, acc);
        case 4: return tile<FORMAT, 4, FETCH>(m, panel, in, start, from, to, acc);
        case 5: return tile<FORMAT, 5, FETCH>(m, panel, in, start, from, to, acc);
        case 6: return tile<FORMAT, 6, FETCH>(m, panel, in, start, from, to, acc);
        case 7: return tile<FORMAT, 7, FETCH>(m, panel, in, start, from, to, acc);
        default: return tile<FORMAT, 8, FETCH>(m, panel, in, start, from, to, acc);
    }
}

// One panel times the blocks [from_block, to_block). Many blocks: in turns, a span each, so that memory is read once.
template <int FORMAT>
void panel_of(const Product& p, const uint8_t* panel, int from_block, int to_block, v16* out) {
    const ls_matrix& m = *p.matrix;
    const bool dense = is_dense(FORMAT);
    const int units = dense ? m.in : groups_of(m.in, m.group), span = dense ? SCALED : span_of(m.group);
    const int first = p.blocks.start(from_block);
    if (to_block - from_block == 1)
        return tile_of<FORMAT, true>(p.blocks.size(from_block), m, panel, p.inputs, first, 0, units, out);
    for (int from = 0; from < units; from += span)
        for (int block = from_block; block < to_block; block++) {
            const int start = p.blocks.start(block), R = p.blocks.size(block), to = smaller(units, from + span);
            v16* acc = out + 2 * (start - first);
            if (block == from_block) tile_of<FORMAT, true>(R, m, panel, p.inputs, start, from, to, acc);
            else tile_of<FORMAT, FORMAT == LS_FP32 || FORMAT == LS_BF16>(R, m, panel, p.inputs, start, from, to, acc);
        }
}

LS_INLINE void note_best(Best& best, v16 u, v16 v, int first, int count) {
    const v16 least = all(best.logit);
    if (!any(~((u < least) & (v < least)))) return;  // NaN is not smaller
    float s[PANEL];
    store(s, u);
    store(s + 16, v);
    for (int j = 0; j < count; j++) {
        if (s[j] != s[j]) best = Best{__builtin_inff(), -1};
        if (s[j] > best.logit || (s[j] == best.logit && first + j < best.id)) best = Best{s[j], first + j};
    }
}

// y of one row and panel: bias, an adapter's part, then the epilogue.
LS_INLINE void finish(const Product& p, int row, int panel, int thread, v16 u, v16 v) {
    const bool gate = p.epilogue == Epilogue::gate;
    const int out = p.matrix->out, half = out / 2, width = gate ? 16 : PANEL;
    const int first = panel * width, second = gate ? half + first : first + 16;  // channels of u and of v
    const int u_count = (gate ? half : out) - first, v_count = out - second;
    if (const float* bias = p.matrix->bias) {
        u = u + load_part(bias + first, u_count);
        if (v_count > 0) v = v + load_part(bias + second, v_count);
    }
    if (p.delta) {
        const float* delta = p.delta + (size_t)row * out;
        u = u + load_part(delta + first, u_count);
        if (v_count > 0) v = v + load_part(delta + second, v_count);
    }
    if (p.epilogue == Epilogue::head) note_best(p.best[(size_t)thread * p.blocks.rows + row], u, v, first, smaller(PANEL, u_count));
    if (!p.y) return;
    float* y = p.y + row * p.stride + first;
    if (gate) return store_part(y, silu(u) * v, u_count);
    if (p.epilogue == Epilogue::silu) u = silu(u), v = silu(v);
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
    for (int panel = from_panel; panel < to_panel; panel++)
        for (int block = 0; block < p.blocks.count; block += PASS / BLOCK) {
            const int to_block = smaller(p.blocks.count, block + PASS / BLOCK), first = p.blocks.start(block);
            const int rows = p.blocks.start(to_block) - first;
            for (int i = 0; i < 2 * rows; i++) out[i] = all(0.0f);
            const uint8_t* data = (const uint8_t*)m.data + bytes * panel;
            switch (m.format) {
                case LS_FP32: panel_of<LS_FP32>(p, data, block, to_block, out); break;
                case LS_BF16: panel_of<LS_BF16>(p, data, block, to_block, out); break;
                case LS_INT8: panel_of<LS_INT8>(p, data, block, to_block, out); break;
                default: panel_of<LS_INT4>(p, data, block, to_block, out);
            }
            for (int r = 0; r < rows; r++) finish(p, first + r, panel, thread, out[2 * r], out[2 * r + 1]);
        }
}
