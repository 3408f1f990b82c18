#include "linear.h"

namespace ls {

void InputRoom::need(const ls_matrix& m, int rows) {
    auto at_least = [](size_t& room, size_t count) { room = count > room ? count : room; };
    if (is_dense(m.format)) return at_least(floats_, (size_t)rows * m.in);
    const size_t groups = groups_of(m.in, m.group);
    at_least(values_, rows * groups * m.group);
    at_least(scales_, (size_t)rows * spans_of(m.format, m.in, m.group));
    at_least(sums_, rows * groups);
}

Inputs InputRoom::take(Arena& arena) const {
    return {arena.take<int8_t>(values_), arena.take<float>(scales_), arena.take<int32_t>(sums_), arena.take<float>(floats_)};
}

void multiply(Pool& pool, const Linear& l, const Inputs& room) {
    const ls_matrix& m = *l.matrix;
    const RowBlocks blocks(l.rows);
    const Preparing preparing{&m, blocks, l.x, l.stride, l.factors, l.norm, room};
    const int spans = spans_of(m.format, m.in, m.group), units = blocks.count * spans;
    const Kernels& k = kernels();
    auto prepare = [&](int from, int to, int) {
        for (int unit = from; unit < to;) {
            const int block = unit / spans, until = smaller(to, (block + 1) * spans);
            k.prepare(preparing, block, unit - block * spans, until - block * spans);
            unit = until;
        }
    };
    if ((int64_t)l.rows * m.in < 16384) prepare(0, units, 0);  // sooner done than shared
    else pool.share(units, prepare);
    const Product product{&m, blocks, room, l.epilogue, l.y, l.y_stride, l.delta, l.best, l.cap};
    const int grain = smaller(64, larger(1, (int)((32 << 10) / (panel_bytes(m) * larger(1, l.rows / 4)))));  // some microseconds
    pool.share(panels_of(m.out), [&](int from, int to, int thread) { k.multiply(product, from, to, thread); }, grain);
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
