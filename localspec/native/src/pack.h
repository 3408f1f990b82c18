// Packing: weights of a model -> panels, and back.
#pragma once
#include "layout.h"

namespace ls {
void pack(const ls_packing& packing, uint8_t* target, int from_panel, int to_panel);
void unpack(const ls_matrix& matrix, bool interleave, float* weights);
void read_row(const ls_matrix& matrix, int row, int from, int to, float* weights);  // weights [from, to) of a row; of blocks, too
}  // namespace ls
