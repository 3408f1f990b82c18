// The functions of each source file that other files call.
#pragma once
#include "layout.h"
#include "cache.h"
#include "linear.h"
#include "model.h"

namespace ls {

// rotary.cpp: cos, sin [count] of position * inv_freq, rounded to float as the models do, times scaling. They are computed in
// double by our own polynomials: libraries differ in the last bit.
void cos_sin(int position, const float* inv_freq, int count, float scaling, float* cos, float* sin);

// pieces.cpp: the merges that make the pieces of a SentencePiece vocabulary: the best pair of neighbours first, as in the tokenizer.
int piece_cuts(const char* text, const int32_t* lengths, const double* costs, int64_t count, uint64_t seed, int32_t* cuts);

// pack.cpp: weights of a model -> panels, and back.
void pack(const ls_packing& packing, uint8_t* target, int from_panel, int to_panel);
void unpack(const ls_matrix& matrix, bool interleave, float* weights);
void read_row(const ls_matrix& matrix, int row, int from, int to, float* weights);  // weights [from, to) of a row; of blocks, too

// blocks.cpp: blocks transposed into panels: those of a GGUF file, and those that weights are rounded to.
int pack_blocks(const ls_blocks_packing& p, uint8_t* target, int from_panel, int to_panel);  // -> a row with a scale that is not finite, or -1
constexpr int NO_ROOM = -2;
bool can_round_to(int type);
// -> a row with a weight that is not finite, -1, or NO_ROOM without memory; format, group and interleave of the packing have no effect
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
// One row after the committed tokens of each cache.
int forward_each(const ls_model& model, ls_cache* const* caches, Pool& pool, const ls_request& request);
int head(const ls_model& model, Pool& pool, int rows, const float* hidden, float* logits, int32_t* argmax);

// delta.cpp: a recurrent layer of a forward: it saves its inputs and updates its state; threads share its heads.
const ls_delta* copied(Arena& arena, const ls_delta& from, const ls_delta_sizes& sizes, bool now);  // as kernels read it
int check_delta(const ls_delta_sizes& sizes);  // LS_OK if these sizes are possible

class Delta {
  public:
    Delta(Pool& pool, const ls_model_config& config) : pool_(pool), c_(config), k_(kernels()) {}
    void take(Arena& arena, const States& states, int rows);
    // Rows [first, first + rows) of a forward, of which `projected` [rows, in_proj] are those of this batch; -> values
    // [rows, value_heads * value_dim]. `number` counts recurrent layers.
    void read(States& states, const States::Reading& reading, const ls_layer& layer, int number, const float* projected, int first, int rows, float* values);

  private:
    void again(States& states, const States::Reading& reading, const ls_layer& layer, int number);
    void begin(const States& states, int slot, int number);
    void advance(States& states, const ls_layer& layer, int number, int from, int to, int rows, const float* projected, float* values);

    Pool& pool_;
    const ls_model_config& c_;
    const Kernels& k_;
    float *window_, *gates_, *scratch_;
    size_t scratch_size_;
};

// mapped.cpp: advice to the system about a mapped file: expect_random: read a missing page without its neighbours, because pages are
// used in no order; read_soon: begin to read all pages now.
void expect_random(const void* data, size_t bytes);
void read_soon(const void* data, size_t bytes);

// experts.cpp: a mixture of experts in a layer: the choice of experts for each row, and their products. Rows are grouped by expert, so that
// an expert's weights are read once for all rows that chose it. The result of a row depends on that row only.
// A pair is a row and one of its `used` experts. Pairs are ordered by expert, and those of an expert by row.
int check_experts(const ls_expert_sizes& sizes, int hidden_size);  // LS_OK if these sizes are possible
void expect_few(const ls_layer& layer);  // expect_random for its experts on the disk: a forward reads few of them

class Experts {
  public:
    Experts(Pool& pool, const ls_model_config& config) : pool_(pool), c_(config), k_(kernels()) {}
    void take(Arena& arena, const ls_layer* layers, int num_layers, int rows);  // take memory for up to `rows` rows of any layer
    float* logits() const { return logits_; }  // [rows, experts]: the caller writes the router's logits here
    // Write to y [rows, hidden_size] the weighted sum of the outputs of the experts that the logits choose. Their inputs are
    // x [rows, hidden_size], multiplied by `factors` [rows] and `norm` [hidden_size]. `gate` is the activation.
    void mix(const ls_layer& layer, int rows, const float* x, const float* factors, const float* norm, Epilogue gate, float* y);

  private:
    struct Group {  // the product of one expert with its rows
        ls_matrix matrix;
        Product product;
        int first_unit;  // units of work of all groups are numbered in turn, so that threads share them
    };
    void choose(int row, const float* scale);
    void group(int rows);
    void request(const ls_matrix& all);
    void multiply_groups(const ls_matrix& m, Preparing preparing, bool same_row, Epilogue epilogue, float* y, int y_stride);

    Pool& pool_;
    const ls_model_config& c_;
    const Kernels& k_;
    float *logits_, *weights_;     // [rows, experts], and [rows, used]: of the chosen experts
    float *act_, *given_;          // [pairs, size]: after the activation; [pairs, hidden_size]: outputs of the experts
    int32_t *chosen_, *place_;     // [rows, used]: the experts of a row, the largest logit first; the indices of its pairs
    int32_t *row_;                 // [pairs]: the row of a pair
    int32_t *start_, *with_rows_;  // [experts + 1]: the first pair of an expert; [num_groups_]: the experts that have rows
    int num_groups_ = 0;
    Group* groups_;
    Inputs inputs_;
};

}  // namespace ls
