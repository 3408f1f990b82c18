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
