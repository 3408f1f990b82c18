#include "linear.h"

namespace ls {

void InputRoom::need(const ls_matrix& m, int rows) {
    auto at_least = [](size_t& room, size_t count) { room = count > room ? count : room; };
    if (is_dense(m.format)) return at_least(floats_, (size_t)rows * m.in);
    const bool blocks = m.format == LS_BLOCKS;
    const int group = blocks ? 32 : m.group;
    const size_t groups = blocks ? padded_inputs(m.in) / 32 : groups_of(m.in, group);
    at_least(values_, rows * groups * group);
    at_least(scales_, blocks ? rows * groups : (size_t)rows * spans_of(m.format, m.in, group));
    at_least(sums_, rows * groups);
    if (blocks) at_least(half_sums_, 2 * rows * groups);
}

Inputs InputRoom::take(Arena& arena) const {
    return {arena.take<int8_t>(values_), arena.take<float>(scales_), arena.take<int32_t>(sums_), arena.take<int32_t>(half_sums_),
            arena.take<float>(half_sums_ / 2), arena.take<float>(floats_)};
}

void multiply(Pool& pool, const Linear& l, const Inputs& room) {
    const ls_matrix& m = *l.matrix;
    const RowBlocks blocks(l.rows);
    const Preparing preparing{&m, blocks, l.x, l.stride, l.factors, l.norm, room, nullptr};
    const int spans = spans_of(m.format, m.in, m.group), units = blocks.count * spans;
    const Kernels& k = kernels();
    const auto prepare_spans = m.format == LS_BLOCKS ? k.prepare_blocks : k.prepare;
    const auto multiply_units = m.format == LS_BLOCKS ? k.multiply_blocks : k.multiply;
    auto prepare = [&](int from, int to, int) {
        for (int unit = from; unit < to;) {
            const int block = unit / spans, until = smaller(to, (block + 1) * spans);
            prepare_spans(preparing, block, unit - block * spans, until - block * spans);
            unit = until;
        }
    };
    if ((int64_t)l.rows * m.in < 16384) prepare(0, units, 0);  // too little work to share
    else pool.share(units, prepare);
    const Product product{&m, blocks, room, l.epilogue, l.y, l.y_stride, l.delta, l.best, l.cap};
    const int grain = smaller(64, larger(1, (int)((32 << 10) / (unit_bytes(m) * larger(1, l.rows / 4)))));  // some microseconds
    pool.share(units_of(m, l.epilogue), [&](int from, int to, int thread) { multiply_units(product, from, to, thread); }, grain);
}

void reset(Best* best, int threads, int rows) {
    for (int i = 0; i < threads * rows; i++) best[i] = {-__builtin_inff(), INT32_MAX};
}

void settle(const Best* best, int threads, int rows, int32_t* argmax) {
    for (int row = 0; row < rows; row++) {
        Best found = best[row];
        for (int t = 1; t < threads; t++) {
            const Best& other = best[(size_t)t * rows + row];
            const bool larger_one = other.logit > found.logit || (other.logit == found.logit && other.id < found.id);
            if (found.id >= 0 && (other.id < 0 || larger_one)) found = other;
        }
        argmax[row] = found.id == INT32_MAX ? 0 : found.id;
    }
}

}  // namespace ls
