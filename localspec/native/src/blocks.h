// Blocks transposed into panels: those of a GGUF file, and those that weights are rounded to.
#pragma once
#include "block_layout.h"

namespace ls {
int pack_blocks(const ls_blocks_packing& p, uint8_t* target, int from_panel, int to_panel);  // -> a row with a scale that is not finite, or -1

constexpr int NO_ROOM = -2;
bool can_round_to(int type);
// -> a row with a weight that is not finite, -1, or NO_ROOM where there is no memory; of the packing no format, group and halves count
int round_to_blocks(const ls_packing& p, int type, uint8_t* target, int from_panel, int to_panel);
}
