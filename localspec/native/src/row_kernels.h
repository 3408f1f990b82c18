// Kernels of single rows: the norm, the rounding of a linear's inputs to int8, low-rank adapters.

float inverse_rms(const float* x, int size, float eps) {
    v16 squares = all(0.0f);
    for (int i = 0; i < size; i += 16) {
        const v16 v = load_part(x + i, size - i);
        squares = fma(v, v, squares);
    }
    return 1.0f / __builtin_sqrtf(total(squares) / (float)size + eps);
}

void normalise(const float* x, float factor, const float* weight, int size, float* y) {
    for (int i = 0; i < size; i += 16) {
        v16 v = load_part(x + i, size - i) * all(factor);
        if (weight) v = v * load_part(weight + i, size - i);
        store_part(y + i, v, size - i);
    }
}

// Inputs [i, i + 16) of a row, after the norm; zeros beyond the last.
LS_INLINE v16 input_of(const Preparing& p, const float* x, int row, int i) {
    const int left = p.matrix->in - i;
    if (left <= 0) return all(0.0f);
    const v16 v = load_part(x + i, left);
    if (!p.factors) return v;
    const v16 scaled = v * all(p.factors[row]);
    return p.norm ? scaled * load_part(p.norm + i, left) : scaled;
}

// 128 inputs (or a group, if that is more) share a scale: the largest of them becomes 127. Integers compare as the
// absolute values do, and NaN and inf are the largest: they make the scale NaN, so that they are not hidden.
LS_INLINE void prepare_span(const Preparing& p, int block, int r, int span) {
    const ls_matrix& m = *p.matrix;
    const int R = p.blocks.size(block), start = p.blocks.start(block), row = p.row(start + r);
    const int groups = groups_of(m.in, m.group), spans = spans_of(m.format, m.in, m.group);
    const int from = span * span_of(m.group), to = smaller(groups, from + span_of(m.group));
    const float* x = p.x + (size_t)row * p.stride;
    constexpr int MOST = SCALED / 16;  // a group is no larger
    const int first = from * m.group, count = (to - from) * m.group / 16;
    v16 inputs[MOST];
    i16 most = {0};
    for (int i = 0; i < count; i++) {
        inputs[i] = input_of(p, x, row, first + 16 * i);
        most = larger_of(most, as_bits(inputs[i]) & 0x7fffffff);
    }
    const int32_t top_bits = largest(most);
    const bool finite_top = top_bits < 0x7f800000;
    const float top = bits_as<float>(larger(top_bits, bits_as<int32_t>(1e-30f)));
    p.to.scales[(size_t)start * spans + (size_t)span * R + r] = finite_top ? top / 127.0f : __builtin_nanf("");
    const v16 factor = all(finite_top ? 127.0f / top : 0.0f);
    const int offset = m.format == LS_INT8 ? 128 : 8;  // added to stored weights
    int32_t* values = (int32_t*)(p.to.values + (size_t)start * groups * m.group) + (size_t)first / 4 * R + r;
    int32_t* sums = p.to.sums + (size_t)start * groups + (size_t)from * R + r;
    for (int i = 0; i < count; sums += R) {
        i16 sum = {0};
        for (int end = i + m.group / 16; i < end; i++) {
            const v16 scaled = inputs[i] * factor;
            const i16 v = rounded(chosen(scaled == scaled, scaled, all(0.0f)));  // NaN from inf * 0 becomes 0
            sum += v;
            alignas(16) int32_t four[4];
            to_bytes(v, (int8_t*)four);
            for (int k = 0; k < 4; k++, values += R) *values = four[k];
        }
        *sums = -offset * sum_of(sum);
    }
}

void prepare(const Preparing& p, int block, int from_span, int to_span) {
    const int R = p.blocks.size(block), start = p.blocks.start(block), in = p.matrix->in;
    if (!is_dense(p.matrix->format)) {
        for (int r = 0; r < R; r++)
            for (int span = from_span; span < to_span; span++) prepare_span(p, block, r, span);
        return;
    }
    float* to = p.to.floats + (size_t)start * in;
    for (int r = 0; r < R; r++)
        for (int i = from_span * SCALED; i < smaller(in, to_span * SCALED); i += 16) {
            const v16 v = input_of(p, p.x + (size_t)p.row(start + r) * p.stride, p.row(start + r), i);
            for (int k = 0; k < smaller(16, in - i); k++) to[(size_t)(i + k) * R + r] = v[k];
        }
}

void shrink(const LowRank& l, int from, int to) {
    for (int number = from; number < to; number++) {
        const int row = number / l.adapter->rank, j = number % l.adapter->rank;
        const float *x = l.x + (size_t)row * l.in, *a = l.adapter->a + (size_t)j * l.in;
        v16 sum = all(0.0f);
        for (int i = 0; i < l.in; i += 16) sum = fma(load_part(a + i, l.in - i), load_part(x + i, l.in - i), sum);
        l.low[number] = total(sum);
    }
}

void expand(const LowRank& l, int from, int to) {
    const int rank = l.adapter->rank;
    for (int row = 0; row < l.rows; row++)
        for (int o = from; o < to; o += 16) {
            v16 sum = all(0.0f);
            for (int j = 0; j < rank; j++)
                sum = fma(all(l.low[(size_t)row * rank + j]), load_part(l.adapter->b + (size_t)j * l.out + o, to - o), sum);
            store_part(l.delta + (size_t)row * l.out + o, sum * all(l.adapter->scale), to - o);
        }
}

float maximum(const float* x, int size) {
    v16 most = all(-__builtin_inff());
    i16 nan = {0};
    for (int i = 0; i < size; i += 16) {
        const v16 v = load_part(x + i, size - i);
        nan |= v != v;
        most = larger_of(most, size - i < 16 ? all(x[i]) : v);
    }
    for (int i = size / 16 * 16; i < size; i++) most = larger_of(most, all(x[i]));
    return any(nan) ? __builtin_nanf("") : largest(most);
}

double exponential_sum(const float* x, float divisor, float largest_one, int size) {
    double sum = 0;
    for (int start = 0; start < size; start += 1024) {  // sums of 1024 in float, the total of these sums in double
        v16 part = all(0.0f);
        int i = start;
        for (; i + 16 <= smaller(size, start + 1024); i += 16) part = part + exponential(load(x + i) / all(divisor) - all(largest_one));
        sum += (double)total(part);
        for (; i < smaller(size, start + 1024); i++) sum += (double)exponential(x[i] / divisor - largest_one);
    }
    return sum;
}

uint64_t read(const void* data, size_t bytes) {
    typedef uint64_t words __attribute__((vector_size(64), aligned(1)));
    const char* p = (const char*)data;
    words sums[4] = {};
    for (size_t at = 0; at + 256 <= bytes; at += 256)
        for (int i = 0; i < 4; i++) {
            prefetch(p + at + 4096 + 64 * i);
            words w;
            memcpy(&w, p + at + 64 * i, 64);
            sums[i] += w;
        }
    uint64_t sum = 0;
    for (const words& s : sums)
        for (int i = 0; i < 8; i++) sum += s[i];
    return sum;
}
