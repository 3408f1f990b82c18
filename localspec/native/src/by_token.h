// Rows that are read by a token's id: embeddings, and the inputs by token that each layer of Gemma 4 has.
#pragma once
#include "linear.h"
#include "model.h"

namespace ls {
void embed(const ls_model& model, int token, float* x);
// Inputs of all layers -> [rows, num_layers * width]; x [rows, hidden_size] are the rows' embeddings
void read_layer_inputs(const ls_model& model, Pool& pool, const int32_t* tokens, const float* x, int rows, const Inputs& room, float* inputs);
}  // namespace ls
