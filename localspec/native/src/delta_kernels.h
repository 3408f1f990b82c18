// Gated DeltaNet, one head and one row at a time. A state S [key_dim][value_dim] lies in blocks of 32 columns. A block is
// updated for all rows before the next block, so that it stays in the first-level cache.
//
//   S ← α S;   S ← S + k βᵀ(v − Sᵀk);   o = Sᵀq / √key_dim          (sums over even and over odd channels, then of both)

constexpr int ROWS_NEAR = 32;  // rows whose queries, keys and values are held at a time

LS_INLINE size_t delta_width(int key_dim, int value_dim) { return 2 * (size_t)padded_head(key_dim) + ceil_div(value_dim, COLUMNS) * COLUMNS; }
size_t recurring_scratch(int key_dim, int value_dim) { return ROWS_NEAR * delta_width(key_dim, value_dim); }

void to_cells(const float* x, int count, int format, void* cells) {  // there is room up to a multiple of 16
    for (int i = 0; i < count; i += 16) {
        if (format == LS_FP16) store_cells((uint16_t*)cells + i, load_part(x + i, count - i));
        else store_cells((float*)cells + i, load_part(x + i, count - i));
    }
}

void from_cells(const void* cells, int count, int format, float* x) {  // count: a multiple of 16
    for (int i = 0; i < count; i += 16) store(x + i, format == LS_FP16 ? load_cells((const uint16_t*)cells + i) : load_cells((const float*)cells + i));
}

// By value head: how much it changes, sigmoid(x), and how much of its state stays, e^(rate * log(1 + e^(x + bias))).
void gates(const float* x, const float* dt_bias, const float* rates, int heads, float* to) {
    for (int head = 0; head < heads; head++) {
        const double part = falling_exponential(x[head] > 0 ? -(double)x[head] : (double)x[head]);
        to[head] = (float)((x[head] > 0 ? 1 : part) / (1 + part));
    }
    for (int head = 0; head < heads; head++) {
        const float sum = x[heads + head] + dt_bias[head];
        const double small = falling_exponential(sum > 0 ? -(double)sum : (double)sum);
        const double rest = small >= 1e-4 ? logarithm(1 + small) : small - small * small * (0.5 - small / 3);  // NaN too
        to[heads + head] = (float)falling_exponential((double)rates[head] * ((sum > 0 ? (double)sum : 0) + rest));
    }
}

// The convolution of a row's channels, then SiLU; zeros up to a multiple of 16.
LS_INLINE void convolve(const Recurring& r, int row, int channel, int count, float* to) {
    const float* rows = r.window + (size_t)row * r.stride + channel;
    for (int i = 0; i < count; i += 16) {
        v16 sum = load_part(rows + i, count - i) * load_part(r.conv + channel + i, count - i);
        for (int tap = 1; tap < r.taps; tap++)
            sum = fma(load_part(rows + (size_t)tap * r.stride + i, count - i), load_part(r.conv + (size_t)tap * r.stride + channel + i, count - i), sum);
        store(to + i, silu(sum));
    }
}

LS_INLINE void to_length_one(float* x, int size, float scale) {
    v16 squares = all(0.0f);
    for (int i = 0; i < size; i += 16) squares = fma(load(x + i), load(x + i), squares);
    const float inverse = 1.0f / __builtin_sqrtf(total(squares) + 1e-6f);
    for (int i = 0; i < size; i += 16) store(x + i, load(x + i) * all(inverse) * all(scale));
}

// One row and 32 columns of a state, `from` -> `to`, which may be the same; v becomes the row's output.
LS_INLINE void change(const float* from, float* to, int key_dim, const float* q, const float* k, float* v, float beta, float decay) {
    const v16 stays = all(decay);
    v16 even0 = all(0.0f), even1 = all(0.0f), odd0 = all(0.0f), odd1 = all(0.0f);
    int i = 0;
    for (; i + 1 < key_dim; i += 2) {
        const float* s = from + (size_t)i * COLUMNS;
        even0 = fma(load(s) * stays, all(k[i]), even0);
        even1 = fma(load(s + 16) * stays, all(k[i]), even1);
        odd0 = fma(load(s + 32) * stays, all(k[i + 1]), odd0);
        odd1 = fma(load(s + 48) * stays, all(k[i + 1]), odd1);
    }
    if (i < key_dim) {
        even0 = fma(load(from + (size_t)i * COLUMNS) * stays, all(k[i]), even0);
        even1 = fma(load(from + (size_t)i * COLUMNS + 16) * stays, all(k[i]), even1);
    }
    const v16 change0 = (load(v) - (even0 + odd0)) * all(beta), change1 = (load(v + 16) - (even1 + odd1)) * all(beta);
    even0 = even1 = odd0 = odd1 = all(0.0f);
    for (i = 0; i + 1 < key_dim; i += 2) {
        const float* s = from + (size_t)i * COLUMNS;
        float* t = to + (size_t)i * COLUMNS;
        const v16 a = fma(all(k[i]), change0, load(s) * stays), b = fma(all(k[i]), change1, load(s + 16) * stays);
        const v16 c = fma(all(k[i + 1]), change0, load(s + 32) * stays), d = fma(all(k[i + 1]), change1, load(s + 48) * stays);
        store(t, a), store(t + 16, b), store(t + 32, c), store(t + 48, d);
        even0 = fma(a, all(q[i]), even0), even1 = fma(b, all(q[i]), even1);
        odd0 = fma(c, all(q[i + 1]), odd0), odd1 = fma(d, all(q[i + 1]), odd1);
    }
    if (i < key_dim) {
        const float* s = from + (size_t)i * COLUMNS;
        float* t = to + (size_t)i * COLUMNS;
        const v16 a = fma(all(k[i]), change0, load(s) * stays), b = fma(all(k[i]), change1, load(s + 16) * stays);
        store(t, a), store(t + 16, b);
        even0 = fma(a, all(q[i]), even0), even1 = fma(b, all(q[i]), even1);
    }
    store(v, even0 + odd0), store(v + 16, even1 + odd1);
}

// The output of a value head: its norm times SiLU of its gate.
LS_INLINE void give(const Recurring& r, int row, int head, float* o) {
    const int size = r.value_dim;
    const float* gate = r.gate + (size_t)row * r.gate_stride + (size_t)head * size;
    float* to = r.values + ((size_t)row * r.value_heads + head) * size;
    normalise(o, inverse_rms(o, size, r.rms_norm_eps), r.value_norm, size, o);
    for (int i = 0; i < size; i += 16) store_part(to + i, load(o + i) * silu(load_part(gate + i, size - i)), size - i);
}

void recur(const Recurring& r, int head, float* scratch) {
    const int kd = r.key_dim, vd = r.value_dim, padded = padded_head(kd), blocks = ceil_div(vd, COLUMNS);
    const int key_head = r.tiled ? head % r.key_heads : head / (r.value_heads / r.key_heads), keys = r.key_heads * kd;
    const size_t block = (size_t)kd * COLUMNS, width = delta_width(kd, vd);
    const float scale = 1.0f / __builtin_sqrtf((float)kd);
    const float* from = r.before ? r.before + block * blocks * head : nullptr;
    float* to = r.after + block * blocks * head;
    if (!from) memset(to, 0, sizeof(float) * block * blocks), from = to;
    for (int start = 0; start < r.rows; start += ROWS_NEAR, from = to) {
        const int count = smaller(ROWS_NEAR, r.rows - start);
        for (int i = 0; i < count; i++) {
            float *q = scratch + width * i, *k = q + padded, *v = k + padded;
            convolve(r, start + i, key_head * kd, kd, q);
            convolve(r, start + i, keys + key_head * kd, kd, k);
            convolve(r, start + i, 2 * keys + head * vd, vd, v);
            to_length_one(q, padded, scale);
            to_length_one(k, padded, 1.0f);
            for (int c = padded_head(vd); c < blocks * COLUMNS; c += 16) store(v + c, all(0.0f));
        }
        for (int b = 0; b < blocks; b++) {
            const float* s = from + block * b;
            for (int i = 0; i < count; i++, s = to + block * b) {
                float* q = scratch + width * i;
                const float* gates = r.gates + (size_t)(start + i) * 2 * r.value_heads;
                change(s, to + block * b, kd, q, q + padded, q + 2 * padded + b * COLUMNS, gates[head], gates[r.value_heads + head]);
            }
        }
        for (int i = 0; i < count && r.values; i++) give(r, start + i, head, scratch + width * i + 2 * padded);
    }
}
