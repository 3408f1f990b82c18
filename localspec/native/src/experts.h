// A mixture of experts in a layer: the choice of experts for each row, and their products. Rows are grouped by expert, so that
// an expert's weights are read once for all rows that chose it. The result of a row depends on that row only.
// A pair is a row and one of its `used` experts. Pairs are ordered by expert, and those of an expert by row.
#pragma once
#include "linear.h"
#include "model.h"

namespace ls {

int check_experts(const ls_expert_sizes& sizes, int hidden_size);  // LS_OK if such sizes are possible

class Experts {
  public:
    Experts(Pool& pool, const ls_model_config& config) : pool_(pool), c_(config), k_(kernels()) {}
    void take(Arena& arena, const ls_layer* layers, int num_layers, int rows);  // take memory for up to `rows` rows
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
    void multiply_groups(const ls_matrix& m, Preparing preparing, bool same_row, Epilogue epilogue, float* y, int y_stride);

    Pool& pool_;
    const ls_model_config& c_;
    const Kernels& k_;
    float *logits_, *weights_, *act_, *given_;  // [rows, experts], [rows, used], [pairs, size], outputs [pairs, hidden_size]
    int32_t *chosen_, *place_;     // [rows, used]: the experts of a row, the largest logit first; the index of each pair
    int32_t *row_;                 // [pairs]: the row of a pair
    int32_t *start_, *with_rows_;  // [experts + 1]: the first pair of an expert; [num_groups_]: the experts that have rows
    int num_groups_ = 0;
    Group* groups_;
    Inputs inputs_;
};

}  // namespace ls
