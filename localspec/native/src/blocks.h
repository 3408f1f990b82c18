// Blocks of a GGUF file, transposed into panels.
#pragma once
#include "block_layout.h"

namespace ls {
int pack_blocks(const ls_blocks_packing& p, uint8_t* target, int from_panel, int to_panel);  // -> a row with a scale that is not finite, or -1
}
