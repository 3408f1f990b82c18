// Packing: weights of a model -> panels, and back.
#pragma once
#include "layout.h"

namespace ls {
void pack(const ls_packing& packing, uint8_t* target, int from_panel, int to_panel);
void unpack(const ls_matrix& matrix, bool interleave, float* weights);
float weight_at(const ls_matrix& matrix, int channel, int input);  // of a dense matrix that is not interleaved
}  // namespace ls
