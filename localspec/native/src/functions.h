// The functions of each source file that others call.
#pragma once
#include "block_layout.h"
#include "cache.h"
#include "delta.h"
#include "linear.h"
#include "model.h"

namespace ls {

// rotary.cpp: cos, sin [count] of position * inv_freq, rounded to float as the models do, times scaling. They are computed in
// double by our own polynomials: libraries differ in the last bit.
void cos_sin(int position, const float* inv_freq, int count, float scaling, float* cos, float* sin);

// pieces.cpp: the merges that make the pieces of a SentencePiece vocabulary: neighbours, the best pair first, as the tokenizer does.
int piece_cuts(const char* text, const int32_t* lengths, const double* costs, int64_t count, uint64_t seed, int32_t* cuts);

// pack.cpp: weights of a model -> panels, and back.
void pack(const ls_packing& packing, uint8_t* target, int from_panel, int to_panel);
void unpack(const ls_matrix& matrix, bool interleave, float* weights);
void read_row(const ls_matrix& matrix, int row, int from, int to, float* weights);  // weights [from, to) of a row; of blocks, too

// blocks.cpp, rounding.cpp: blocks transposed into panels: those of a GGUF file, and those that weights are rounded to.
int pack_blocks(const ls_blocks_packing& p, uint8_t* target, int from_panel, int to_panel);  // -> a row with a scale that is not finite, or -1
constexpr int NO_ROOM = -2;
bool can_round_to(int type);
// -> a row with a weight that is not finite, -1, or NO_ROOM where there is no memory; of the packing no format, group and halves count
int round_to_blocks(const ls_packing& p, int type, uint8_t* target, int from_panel, int to_panel);

// pick.cpp: tokens from logits: temperature, top-k, top-p, min-p in that order, then argmax(log p + Gumbel noise). The noise is a
// hash of (seed, position, id), the same as in localspec/decoding/sampling.py.
int pick(const float* logits, int vocab, const ls_sampling& sampling, int64_t position, const int32_t* ids, int32_t* id);
int probabilities(const float* logits, int vocab, const ls_sampling& sampling, double* p);
int top(const float* logits, int vocab, double temperature, int count, int32_t* tokens, float* chances, int32_t* found);
void add_noise(const ls_sampling& sampling, int64_t position, const int32_t* ids, int count, int32_t* tokens, float* chances, int32_t* found);

// heads.cpp: draft heads that read one row (Medusa), as localspec.h describes them; state [hidden_size] -> logits [count, tokens]
int draft_heads(const ls_heads& heads, const ls_model& model, Pool& pool, const float* state, int32_t root, int count, float* logits);

// by_token.cpp: rows that are read by a token's id: embeddings, and the inputs by token that each layer of Gemma 4 has.
void embed(const ls_model& model, int token, float* x);
// Inputs of all layers -> [rows, num_layers * width]; x [rows, hidden_size] are the rows' embeddings
void read_layer_inputs(const ls_model& model, Pool& pool, const int32_t* tokens, const float* x, int rows, const Inputs& room, float* inputs);

// forward.cpp: rows through all layers, by batches. Arguments were checked by the caller. LS_NO_MEMORY leaves the cache unchanged.
int forward(const ls_model& model, ls_cache& cache, Pool& pool, const ls_request& request);
// One row behind the committed tokens of each cache.
int forward_each(const ls_model& model, ls_cache* const* caches, Pool& pool, const ls_request& request);
int head(const ls_model& model, Pool& pool, int rows, const float* hidden, float* logits, int32_t* argmax);

}  // namespace ls
