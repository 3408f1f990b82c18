// Attention. Keys lie in blocks of 16 slots, [slots / 16][head_dim][16], so that a vector is one channel of 16 slots; values
// lie [slots][padded head_dim]. Five tokens and a draft tree of three (a root with two children):
//
//   slot              0 1 2 3 4 | 5  6  7        5 is the root, 6 and 7 are its children
//   row of 7 sees     0 1 2 3 4   5     7        prefix 6 (slots 0-5 lie as they are seen), tail [7]
//   logical index     0 1 2 3 4   5     6
//
// A row's result depends only on its logical sequence: scores are computed in the lane of the logical index, and sums in
// logical order, in chunks that begin at multiples of CHUNK and are combined in order.

LS_INLINE v16 exp_of_difference(float a, float b) { return exponential(all(a - b)); }

// ---- before attention: norms, rotation, the new keys and values
void rotate(float* v, const float* cos, const float* sin, int half) {
    for (int i = 0; i < half; i += 16) {
        const int count = half - i;
        const v16 a = load_part(v + i, count), b = load_part(v + half + i, count);
        const v16 c = load_part(cos + i, count), s = load_part(sin + i, count);
        store_part(v + i, fma(-b, s, a * c), count);
        store_part(v + half + i, fma(a, s, b * c), count);
    }
}

// Rotate likewise, but pairs of neighbouring channels.
void rotate_neighbours(float* v, const float* cos, const float* sin, int half) {
    for (int i = 0; i < half; i += 16, v += 32) {
        const int count = smaller(16, half - i);
        float apart[32] = {};  // the first channels of the pairs, then the second ones
        for (int k = 0; k < count; k++) apart[k] = v[2 * k], apart[16 + k] = v[2 * k + 1];
        const v16 a = load(apart), b = load(apart + 16), c = load_part(cos + i, count), s = load_part(sin + i, count);
        store(apart, fma(-b, s, a * c));
        store(apart + 16, fma(a, s, b * c));
        for (int k = 0; k < count; k++) v[2 * k] = apart[k], v[2 * k + 1] = apart[16 + k];
    }
}

LS_INLINE void head_row(const Attending& a, const float* from, const float* norm, int row, float* to) {
    const int half = a.rotary_dim / 2;
    for (int i = 0; i < a.head_dim; i += 16) store(to + i, load_part(from + i, a.head_dim - i));  // zeros after the last
    if (norm) normalise(to, inverse_rms(to, a.head_dim, a.rms_norm_eps), norm, a.head_dim, to);
    (a.interleaved ? rotate_neighbours : rotate)(to, a.cos + (size_t)row * half, a.sin + (size_t)row * half, half);
}

template <class Cell>
void place_as(const Attending& a, int kv_head, int from_row, int to_row) {
    const int d = a.head_dim, padded = padded_head(d), group = a.num_heads / a.num_kv_heads;
    const float usual = 1.0f / __builtin_sqrtf(a.query_scalar);
    Cell* keys = (Cell*)a.keys + (size_t)kv_head * a.slots * padded;
    Cell* values = (Cell*)a.values + (size_t)kv_head * a.slots * padded;
    for (int row = from_row; row < to_row; row++) {
        const float* qkv = a.qkv + (size_t)row * a.qkv_stride;
        const v16 scale = all(a.factors ? usual * a.factors[row] : usual);
        float* queries = a.queries + ((size_t)row * a.num_heads + kv_head * group) * padded;
        // until the row's first query is written, its place holds the key and then the value
        if (a.own_keys) {
            const int slot = a.first_slot + row;
            head_row(a, qkv + (size_t)(a.first_key + kv_head) * d, a.k_norm, row, queries);
            Cell* key = keys + (size_t)(slot / 16) * padded * 16 + slot % 16;
            for (int i = 0; i < padded; i += 16) {
                Cell cells[16];
                store_cells(cells, load(queries + i));
                for (int k = 0; k < 16; k++) key[16 * (i + k)] = cells[k];
            }
            const float* value = qkv + (size_t)(a.first_value + kv_head) * d;
            if (a.value_norm) {
                normalise(value, inverse_rms(value, d, a.rms_norm_eps), nullptr, d, queries);
                value = queries;
            }
            for (int i = 0; i < d; i += 16) store_cells(values + (size_t)slot * padded + i, load_part(value + i, d - i));
        }
        for (int g = 0; g < group; g++, queries += padded) {
            head_row(a, qkv + (size_t)(kv_head * group + g) * (1 + a.gated) * d, a.q_norm, row, queries);
            for (int i = 0; i < padded; i += 16) store(queries + i, load(queries + i) * scale);
        }
    }
}

void place(const Attending& a, int kv_head, int from_row, int to_row) {
    if (a.cache_format == LS_FP16) place_as<uint16_t>(a, kv_head, from_row, to_row);
    else place_as<float>(a, kv_head, from_row, to_row);
}

// ---- scores of Q queries with slots [16 * from, 16 * to) -> s [Q][stride]
template <int Q, class Cell>
void scores_of(const float* const* q, const Cell* keys, int d, int from, int to, float* s, int stride) {
    const int padded = padded_head(d);
    for (int block = from; block < to; block++) {
        const Cell* k = keys + (size_t)block * padded * 16;
        v16 sums[Q];
#pragma GCC unroll 8
        for (int i = 0; i < Q; i++) sums[i] = all(0.0f);
        for (int c = 0; c < d; c++, k += 16) {
            const v16 v = load_cells(k);
#pragma GCC unroll 8
            for (int i = 0; i < Q; i++) sums[i] = fma(all(q[i][c]), v, sums[i]);
        }
#pragma GCC unroll 8
        for (int i = 0; i < Q; i++) store(s + (size_t)i * stride + 16 * (block - from), sums[i]);
    }
}
template <class Cell>
void score(int count, const float* const* q, const Cell* keys, int d, int from, int to, float* s, int stride) {
    if (REGISTERS < 32 && count > 4) {  // the registers hold the sums of four queries
        scores_of<4>(q, keys, d, from, to, s, stride);
        score(count - 4, q + 4, keys, d, from, to, s + 4 * (size_t)stride, stride);
    } else if (count > 4) scores_of<8>(q, keys, d, from, to, s, stride);
    else if (count > 2) scores_of<4>(q, keys, d, from, to, s, stride);
    else if (count > 1) scores_of<2>(q, keys, d, from, to, s, stride);
    else scores_of<1>(q, keys, d, from, to, s, stride);
}

// ---- sums [Q][16 * W] += p [Q][count] times values [count][padded], in their order
template <int Q, int W, class Cell>
LS_INLINE void mix_part(const float* const* p, const Cell* values, int padded, int count, float* const* sums, int channel) {
    v16 kept[Q * W];
#pragma GCC unroll 16
    for (int i = 0; i < Q * W; i++) kept[i] = load(sums[i / W] + channel + 16 * (i % W));
    values += channel;
    for (int slot = 0; slot < count; slot++, values += padded) {
        v16 v[W];
#pragma GCC unroll 4
        for (int w = 0; w < W; w++) v[w] = load_cells(values + 16 * w);
#pragma GCC unroll 4
        for (int i = 0; i < Q; i++) {
            const v16 chance = all(p[i][slot]);
#pragma GCC unroll 4
            for (int w = 0; w < W; w++) kept[i * W + w] = fma(chance, v[w], kept[i * W + w]);
        }
    }
#pragma GCC unroll 16
    for (int i = 0; i < Q * W; i++) store(sums[i / W] + channel + 16 * (i % W), kept[i]);
}
template <int Q, class Cell>
void mix(const float* const* p, const Cell* values, int padded, int count, float* const* sums) {
    constexpr int WIDEST = REGISTERS >= 32 ? 4 : 2;  // vectors
    for (int channel = 0; count > 0 && channel < padded;) {
        const int vectors = (padded - channel) / 16;
        if (WIDEST == 4 && vectors >= 4) mix_part<Q, WIDEST>(p, values, padded, count, sums, channel), channel += 64;
        else if (vectors >= 2) mix_part<Q, 2>(p, values, padded, count, sums, channel), channel += 32;
        else mix_part<Q, 1>(p, values, padded, count, sums, channel), channel += 16;
    }
}

// ---- softmax, chunk by chunk. A state: [0] the largest score, [1] the sum of e^(score - largest), from [16] mixed values.
LS_INLINE void merge(float* state, const float* chunk, int padded) {
    const float top = chunk[0] > state[0] ? chunk[0] : state[0];
    const v16 old_part = exp_of_difference(state[0], top), new_part = exp_of_difference(chunk[0], top);
    state[1] = fma(all(state[1]), old_part, all(chunk[1]) * new_part)[0];
    state[0] = top;
    for (int i = 16; i < 16 + padded; i += 16) store(state + i, fma(load(state + i), old_part, load(chunk + i) * new_part));
}
LS_INLINE void write_mixed(const Attending& a, const float* state, int row, int head) {
    float* to = a.mixed + ((size_t)row * a.num_heads + head) * a.head_dim;
    const float* gate = a.qkv + (size_t)row * a.qkv_stride + (size_t)(2 * head + 1) * a.head_dim;
    const float sum = a.sinks ? state[1] + exponential(a.sinks[head] - state[0]) : state[1];
    for (int i = 0; i < a.head_dim; i += 16) {
        v16 v = load(state + 16 + i) / all(sum);
        if (a.gated) v = v / (all(1.0f) + exponential(-load_part(gate + i, a.head_dim - i)));
        store_part(to + i, v, a.head_dim - i);
    }
}
LS_INLINE bool sees(const Attending& a, int row, int chunk) {
    return a.visible_from[row] < (chunk + 1) * CHUNK && a.prefix[row] + a.tail_count[row] > chunk * CHUNK;
}

struct Query {
    int row, head;
    int from, prefix, to;  // logical indexes: the row sees [from, to) of this chunk; below `prefix` the index is the slot
};

template <class Cell>
struct Head {  // keys and values of one key head
    const Cell *keys, *values;
    int d, padded;
    Head(const Attending& a, int kv_head) : d(a.head_dim), padded(padded_head(a.head_dim)) {
        keys = (const Cell*)a.keys + (size_t)kv_head * a.slots * padded;
        values = (const Cell*)a.values + (size_t)kv_head * a.slots * padded;
    }
};

// Scores of up to 8 queries by logical index -> s [8][CHUNK]; `tree` is room for [8][slots of the tree].
template <class Cell>
void score_chunk(const Attending& a, const Head<Cell>& h, int start, const Query* queries, int count, float* s, float* tree) {
    const float* q[BLOCK];
    int from = start + CHUNK, prefix = start, tails_to = 0;
    for (int i = 0; i < BLOCK; i++) {
        const Query& query = queries[i < count ? i : 0];
        q[i] = a.queries + ((size_t)query.row * a.num_heads + query.head) * h.padded;
        if (query.from < query.prefix) from = smaller(from, query.from), prefix = larger(prefix, query.prefix);
        if (query.prefix < query.to) tails_to = larger(tails_to, a.first_slot + query.row + 1);
    }
    if (from < prefix) score(count, q, h.keys, h.d, from / 16, ceil_div(prefix, 16), s + from / 16 * 16 - start, CHUNK);
    if (!tails_to) return;
    // scores of all slots of the tree first; then the scores of a row's ancestors move to their logical indexes
    const int tree_block = a.tree_slot / 16, to_block = ceil_div(tails_to, 16), tree_slots = (to_block - tree_block) * 16;
    score(count, q, h.keys, h.d, tree_block, to_block, tree, tree_slots);
    for (int i = 0; i < count; i++) {
        const int32_t* tail = a.tails[queries[i].row];
        for (int j = queries[i].prefix; j < queries[i].to; j++)
            s[i * CHUNK + j - start] = tree[(size_t)i * tree_slots + tail[j - a.prefix[queries[i].row]] - tree_block * 16];
    }
}

// Scores [from, to) of a chunk -> e^(score - largest), by vectors that begin at multiples of 16; state [0] and [1].
LS_INLINE void soften(float* scores, int from, int to, float* state) {
    const int begin = from / 16 * 16, end = ceil_div(to, 16) * 16;
    for (int j = begin; j < from; j++) scores[j] = -__builtin_inff();
    for (int j = to; j < end; j++) scores[j] = -__builtin_inff();
    v16 most = all(-__builtin_inff()), sum = all(0.0f);
    for (int j = begin; j < end; j += 16) most = larger_of(most, load(scores + j));
    state[0] = largest(most);
    for (int j = begin; j < end; j += 16) {
        const v16 e = exponential(load(scores + j) - all(state[0]));
        sum = sum + e;
        store(scores + j, e);
    }
    state[1] = total(sum);
}

template <class Cell>
void mix_alone(const Head<Cell>& h, int start, const float* s, int from, int to, float* const* sum) {
    const float* p = s + from - start;
    mix<1>(&p, h.values + (size_t)from * h.padded, h.padded, to - from, sum);
}

// Sums of values for up to 4 queries: over the part of the prefix that all see in one pass, over the rest one by one.
template <int Q, class Cell>
void mix_prefixes(const Head<Cell>& h, int start, const Query* queries, float* s, float* const* sums) {
    int from = 0, to = start + CHUNK;
    for (int i = 0; i < Q; i++) from = larger(from, queries[i].from), to = smaller(to, queries[i].prefix);
    if (from >= to) from = to = start;
    for (int i = 0; i < Q && from < to; i++) mix_alone(h, start, s + i * CHUNK, queries[i].from, from, sums + i);
    const float* p[Q];
    for (int i = 0; i < Q; i++) p[i] = s + i * CHUNK + from - start;
    if (from < to) mix<Q>(p, h.values + (size_t)from * h.padded, h.padded, to - from, sums);
    for (int i = 0; i < Q; i++) mix_alone(h, start, s + i * CHUNK, from < to ? to : queries[i].from, queries[i].prefix, sums + i);
}

// One chunk for up to 8 queries -> states [count][state_floats].
template <class Cell>
void attend_chunk(const Attending& a, const Head<Cell>& h, int start, const Query* queries, int count, float* scratch, float* states) {
    float *s = scratch, *sums[BLOCK];
    score_chunk(a, h, start, queries, count, s, scratch + BLOCK * CHUNK);
    for (int i = 0; i < count; i++) {
        float* state = states + (size_t)i * state_floats(h.d);
        soften(s + i * CHUNK, queries[i].from - start, queries[i].to - start, state);
        sums[i] = state + 16;
        for (int c = 0; c < h.padded; c += 16) store(sums[i] + c, all(0.0f));
    }
    constexpr int TOGETHER = REGISTERS >= 32 ? 4 : 2;
    int i = 0;
    for (; i + TOGETHER <= count; i += TOGETHER) mix_prefixes<TOGETHER>(h, start, queries + i, s + i * CHUNK, sums + i);
    for (; i < count; i++) mix_prefixes<1>(h, start, queries + i, s + i * CHUNK, sums + i);
    for (i = 0; i < count; i++)
        for (int j = queries[i].prefix; j < queries[i].to; j++) {
            const float* p = s + i * CHUNK + j - start;
            const int slot = a.tails[queries[i].row][j - a.prefix[queries[i].row]];
            mix<1>(&p, h.values + (size_t)slot * h.padded, h.padded, 1, sums + i);
        }
}

template <class Cell>
void attend_as(const Attending& a, int kv_head, int from_row, int to_row, int only_chunk, float* scratch) {
    const int group = a.num_heads / a.num_kv_heads, total_queries = (to_row - from_row) * group, size = state_floats(a.head_dim);
    const Head<Cell> h(a, kv_head);
    float* chunk_states = scratch;
    float* running = chunk_states + BLOCK * size;                  // [queries][size]
    float* scores = running + (size_t)rows_together(a) * group * size;
    const int from_chunk = only_chunk < 0 ? 0 : only_chunk, to_chunk = only_chunk < 0 ? a.chunks : only_chunk + 1;
    for (int chunk = from_chunk; chunk < to_chunk; chunk++) {
        const int start = chunk * CHUNK;
        for (int next = 0; next < total_queries;) {
            Query queries[BLOCK];
            int count = 0, numbers[BLOCK];
            for (; next < total_queries && count < BLOCK; next++) {
                const int row = from_row + next / group;
                if (!sees(a, row, chunk)) continue;
                const int from = larger(start, a.visible_from[row]), to = smaller(start + CHUNK, a.prefix[row] + a.tail_count[row]);
                numbers[count] = next;
                queries[count++] = Query{row, kv_head * group + next % group, from, larger(from, smaller(to, a.prefix[row])), to};
            }
            if (!count) break;
            attend_chunk(a, h, start, queries, count, scores, chunk_states);
            for (int i = 0; i < count; i++) {
                const Query& query = queries[i];
                const float* state = chunk_states + (size_t)i * size;
                float* to = running + (size_t)numbers[i] * size;
                if (only_chunk >= 0) to = a.partials + (((size_t)chunk * a.rows + query.row) * a.num_heads + query.head) * size;
                if (only_chunk >= 0 || chunk == a.visible_from[query.row] / CHUNK) memcpy(to, state, sizeof(float) * size);
                else merge(to, state, h.padded);
            }
        }
    }
    for (int i = 0; i < total_queries && only_chunk < 0; i++)
        write_mixed(a, running + (size_t)i * size, from_row + i / group, kv_head * group + i % group);
}

void attend(const Attending& a, int kv_head, int from_row, int to_row, int chunk, float* scratch) {
    if (a.cache_format == LS_FP16) attend_as<uint16_t>(a, kv_head, from_row, to_row, chunk, scratch);
    else attend_as<float>(a, kv_head, from_row, to_row, chunk, scratch);
}

// Combine, in order, the chunks that several threads computed.
void combine(const Attending& a, int row, float* scratch) {
    const int size = state_floats(a.head_dim), first = a.visible_from[row] / CHUNK;
    for (int head = 0; head < a.num_heads; head++) {
        for (int chunk = first; chunk < a.chunks && sees(a, row, chunk); chunk++) {
            const float* state = a.partials + (((size_t)chunk * a.rows + row) * a.num_heads + head) * size;
            if (chunk == first) memcpy(scratch, state, sizeof(float) * size);
            else merge(scratch, state, padded_head(a.head_dim));
        }
        write_mixed(a, scratch, row, head);
    }
}
