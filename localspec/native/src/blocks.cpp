// Blocks transposed into panels: those of a GGUF file, and those that weights are rounded to.
#include "functions.h"

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

void pack_words(const BlockLayout& l, const uint8_t* const* blocks, int lanes, uint8_t* lines) {
    for (int word = 0; word < l.words; word++)
        for (int lane = 0; lane < lanes; lane++) memcpy(lines + LINE * line_of(l, word) + 4 * lane, blocks[lane] + l.words_at + 4 * word, 4);
    for (int lane = 0; lane < lanes && l.fifth_bits; lane++) {
        uint32_t bits;
        memcpy(&bits, lines + 4 * lane, 4);
        bits = spread(bits);
        memcpy(lines + 4 * lane, &bits, 4);
    }
}

// The row of the file that becomes this one.
int row_in_file(const ls_blocks_packing& p, int row) {
    if (!p.head_rows) return row;
    const int half = p.head_rows / 2, at = row % p.head_rows;
    return row - at + 2 * (at % half) + at / half;
}

}  // namespace

int pack_blocks(const ls_blocks_packing& p, uint8_t* target, int from_panel, int to_panel) {
    const BlockLayout& l = *find_layout(p.type);
    const size_t stride = row_bytes(l, p.in), bytes = (size_t)LINE * record_lines(l);
    uint8_t* to = target + block_panel_bytes(l, p.in) * from_panel;
    for (int panel = from_panel; panel < to_panel; panel++) {
        const int first = BLOCK_PANEL * panel, lanes = smaller(BLOCK_PANEL, p.out - first);
        const uint8_t* blocks[BLOCK_PANEL];
        for (int lane = 0; lane < lanes; lane++) blocks[lane] = (const uint8_t*)p.rows + stride * row_in_file(p, first + lane);
        for (int left = p.in / l.inputs; left > 0; left -= l.blocks, to += bytes) {
            memset(to, 0, lanes < BLOCK_PANEL || left < l.blocks ? bytes : LINE);
            for (int number = 0; number < smaller(l.blocks, left); number++) {
                for (int lane = 0; lane < lanes; lane++)
                    if (!pack_fields(l, blocks[lane], number, lane, to)) return row_in_file(p, first + lane);
                pack_words(l, blocks, lanes, to + LINE * (1 + l.words * number));
                for (int lane = 0; lane < lanes; lane++) blocks[lane] += l.bytes;
            }
        }
    }
    return -1;
}

}  // namespace ls

namespace ls {
namespace {

constexpr int MOST_INPUTS = 256;  // of a block

struct alignas(64) Block16 {  // one block of each of 16 rows
    float v[MOST_INPUTS][BLOCK_PANEL], importance[MOST_INPUTS];
    RoundedBlock rounded;
};

template <class Number, class Convert>
void read_rows(const ls_packing& p, int row, int first, int count, Block16* to, Convert convert) {
    const int lanes = smaller(BLOCK_PANEL, p.out - row);
    for (int lane = 0; lane < BLOCK_PANEL; lane++) {
        const Number* numbers = (const Number*)p.weights + (size_t)(row + smaller(lane, lanes - 1)) * p.in + first;
        for (int i = 0; i < count; i++) to->v[i][lane] = convert(numbers[i]);
    }
}

void read_block(const ls_packing& p, int row, int first, int count, Block16* to) {
    if (p.source == LS_FP32) read_rows<float>(p, row, first, count, to, [](float f) { return f; });
    else if (p.source == LS_BF16) read_rows<uint16_t>(p, row, first, count, to, [](uint16_t h) { return bf16_to_float(h); });
    else read_rows<uint16_t>(p, row, first, count, to, [](uint16_t h) { return half_to_float(h); });
    for (int i = 0; i < count; i++) to->importance[i] = p.importance ? p.importance[first + i] : 1.0f;
}

// Write to `count` bytes, at bit `at_bit` of each, `bits` bits of the steps from `first` on plus `add`, starting at `from_bit`.
void put_bits(const RoundedBlock& r, int lane, int first, int count, int add, int from_bit, int bits, int at_bit, uint8_t* to) {
    for (int i = 0; i < count; i++) to[i] |= (uint8_t)(((r.steps[first + i][lane] + add) >> from_bit & ((1 << bits) - 1)) << at_bit);
}

void put_q4_0(const RoundedBlock& r, int lane, uint8_t* to) {
    memcpy(to, &r.scale[lane], 2);
    for (int half = 0; half < 2; half++) put_bits(r, lane, 16 * half, 16, 8, 0, 4, 4 * half, to + 2);
}

void put_q5_0(const RoundedBlock& r, int lane, uint8_t* to) {
    memcpy(to, &r.scale[lane], 2);
    for (int i = 0; i < 32; i++) to[2 + i / 8] |= (uint8_t)(((r.steps[i][lane] + 16) >> 4 & 1) << i % 8);
    for (int half = 0; half < 2; half++) put_bits(r, lane, 16 * half, 16, 16, 0, 4, 4 * half, to + 6);
}

void put_q8_0(const RoundedBlock& r, int lane, uint8_t* to) {
    memcpy(to, &r.scale[lane], 2);
    put_bits(r, lane, 0, 32, 0, 0, 8, 0, to + 2);
}

void put_q4_k(const RoundedBlock& r, int lane, uint8_t* to) {
    memcpy(to, &r.scale[lane], 2), memcpy(to + 2, &r.minimum[lane], 2);
    uint8_t* sixes = to + 4;
    for (int g = 0; g < 8; g++) {
        const int scale = r.scales[g][lane], minimum = r.minima[g][lane];
        if (g < 4) sixes[g] |= (uint8_t)scale, sixes[4 + g] |= (uint8_t)minimum;
        else {
            sixes[g - 4] |= (uint8_t)(scale >> 4 << 6), sixes[g] |= (uint8_t)(minimum >> 4 << 6);
            sixes[4 + g] = (uint8_t)((scale & 15) | (minimum & 15) << 4);
        }
    }
    for (int g = 0; g < 8; g++) put_bits(r, lane, 32 * g, 32, 0, 0, 4, g % 2 * 4, to + 16 + g / 2 * 32);
}

void put_q6_k(const RoundedBlock& r, int lane, uint8_t* to) {
    for (int g = 0; g < 8; g++) {
        put_bits(r, lane, 32 * g, 32, 32, 0, 4, g % 4 / 2 * 4, to + g / 4 * 64 + g % 2 * 32);
        put_bits(r, lane, 32 * g, 32, 32, 4, 2, g % 4 * 2, to + 128 + g / 4 * 32);
    }
    for (int g = 0; g < 16; g++) to[192 + g] = (uint8_t)r.scales[g][lane];
    memcpy(to + 208, &r.scale[lane], 2);
}

}  // namespace

bool can_round_to(int type) { return type == LS_Q4_0 || type == LS_Q5_0 || type == LS_Q8_0 || type == LS_Q4_K || type == LS_Q6_K; }

int round_to_blocks(const ls_packing& p, int type, uint8_t* target, int from_panel, int to_panel) {
    const BlockLayout& l = *find_layout(type);
    const size_t stride = row_bytes(l, p.in);
    Memory room;
    if (!room.resize(sizeof(Block16) + BLOCK_PANEL * stride)) return NO_ROOM;
    Block16& block = *(Block16*)room.data();
    uint8_t* rows = (uint8_t*)room.data() + sizeof(Block16);
    for (int panel = from_panel; panel < to_panel; panel++) {
        const int row = BLOCK_PANEL * panel, lanes = smaller(BLOCK_PANEL, p.out - row);
        memset(rows, 0, BLOCK_PANEL * stride);
        for (int number = 0; number < p.in / l.inputs; number++) {
            read_block(p, row, l.inputs * number, l.inputs, &block);
            kernels().round_block(type, block.v[0], block.importance, &block.rounded);
            for (int lane = 0; lane < lanes; lane++) {
                uint8_t* to = rows + stride * lane + (size_t)l.bytes * number;
                if (type == LS_Q4_K) put_q4_k(block.rounded, lane, to);
                else if (type == LS_Q6_K) put_q6_k(block.rounded, lane, to);
                else if (type == LS_Q4_0) put_q4_0(block.rounded, lane, to);
                else if (type == LS_Q5_0) put_q5_0(block.rounded, lane, to);
                else put_q8_0(block.rounded, lane, to);
            }
        }
        const ls_blocks_packing whole{rows, (int64_t)stride * lanes, type, lanes, p.in, 0};
        const int bad = pack_blocks(whole, target + block_panel_bytes(l, p.in) * panel, 0, 1);
        if (bad >= 0) return row + bad;
    }
    return -1;
}

}  // namespace ls
