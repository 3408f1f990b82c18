#include "blocks.h"

namespace ls {
namespace {

uint32_t spread(uint32_t bits) {  // bit 4 t + b to bit t of byte b
    uint32_t found = 0;
    for (int i = 0; i < 32; i++) found |= (bits >> i & 1) << (8 * (i % 4) + i / 4);
    return found;
}

bool is_finite(const uint8_t* half) { return (half[1] & 0x7c) != 0x7c; }

// Block number `number` of a record for the row in lane `lane`; false: a scale is not finite.
bool pack_fields(const BlockLayout& l, const uint8_t* block, int number, int lane, uint8_t* record) {
    if (l.kind == Fields::bytes) {
        record[4 * lane + number] = block[l.field_at[0]];
        return true;
    }
    bool finite = true;
    for (int field = 0; field < l.fields; field++) {
        const uint8_t* half = block + l.field_at[field];
        memcpy(record + LINE / 2 * (number + field) + 2 * lane, half, 2);
        finite = finite && (is_finite(half) || (field == 1 && !l.second_is_scale));
    }
    return finite;
}

void pack_words(const BlockLayout& l, const uint8_t* block, size_t stride, int lanes, uint8_t* lines) {
    for (int word = 0; word < l.words; word++)
        for (int lane = 0; lane < lanes; lane++)
            memcpy(lines + LINE * word + 4 * lane, block + stride * lane + l.words_at + 4 * word, 4);
    for (int lane = 0; lane < lanes && l.fifth_bits; lane++) {
        uint32_t bits;
        memcpy(&bits, lines + 4 * lane, 4);
        bits = spread(bits);
        memcpy(lines + 4 * lane, &bits, 4);
    }
}

}  // namespace

int pack_blocks(int type, int in, const uint8_t* rows, int count, uint8_t* to) {
    const BlockLayout& l = *find_layout(type);
    const size_t stride = row_bytes(l, in), bytes = (size_t)LINE * record_lines(l);
    const int blocks = in / l.inputs;
    for (int first = 0; first < count; first += BLOCK_PANEL) {
        const int lanes = smaller(BLOCK_PANEL, count - first);
        for (int record = 0; record < records_of(l, in); record++, to += bytes) {
            const int from = record * l.blocks, there = smaller(l.blocks, blocks - from);
            if (lanes < BLOCK_PANEL || there < l.blocks) memset(to, 0, bytes);
            else memset(to, 0, LINE);
            for (int number = 0; number < there; number++) {
                const uint8_t* block = rows + stride * first + (size_t)l.bytes * (from + number);
                for (int lane = 0; lane < lanes; lane++)
                    if (!pack_fields(l, block + stride * lane, number, lane, to)) return first + lane;
                pack_words(l, block, stride, lanes, to + LINE * (1 + l.words * number));
            }
        }
    }
    return -1;
}

void BlockInputRoom::need(int in, int rows) {
    const size_t groups = (size_t)rows * (padded_inputs(in) / 32);
    groups_ = groups > groups_ ? groups : groups_;
}

BlockInputs BlockInputRoom::take(Arena& arena) const {
    return {arena.take<int8_t>(32 * groups_), arena.take<float>(groups_), arena.take<float>(groups_), arena.take<int32_t>(groups_), arena.take<int32_t>(2 * groups_)};
}

void multiply_blocks(Pool& pool, const BlockLinear& l, const BlockInputs& room) {
    const ls_blocks& m = *l.matrix;
    const RowBlocks blocks(l.rows);
    const BlockPreparing preparing{m.in, blocks, l.x, l.stride, l.factors, l.norm, room};
    const int spans = padded_inputs(m.in) / INPUTS_TOGETHER, groups = INPUTS_TOGETHER / 32, units = blocks.count * spans;
    const Kernels& k = kernels();
    auto prepare = [&](int from, int to, int) {
        for (int unit = from; unit < to;) {
            const int block = unit / spans, until = smaller(to, (block + 1) * spans);
            k.prepare_blocks(preparing, block, (unit - block * spans) * groups, (until - block * spans) * groups);
            unit = until;
        }
    };
    if ((int64_t)l.rows * m.in < 16384) prepare(0, units, 0);  // sooner done than shared
    else pool.share(units, prepare);
    const BlockProduct product{&m, blocks, room, l.y, l.y_stride};
    const size_t bytes = block_panel_bytes(*find_layout(m.type), m.in);
    const int grain = smaller(64, larger(1, (int)((32 << 10) / (bytes * larger(1, l.rows / 4)))));  // some microseconds
    pool.share(block_panels(m.out), [&](int from, int to, int) { k.multiply_blocks(product, from, to); }, grain);
}

}  // namespace ls
