// A mixture of experts in a layer: which of them each row is given to, and their products, rows grouped by expert, so that an
// expert's weights are read once for all rows that chose it. What a row gets depends on that row only.
#pragma once
#include "linear.h"
#include "model.h"

namespace ls {

int check_experts(const ls_expert_sizes& sizes, int hidden_size);  // LS_OK where such sizes are possible

class Experts {
  public:
    Experts(Pool& pool, const ls_model_config& config) : pool_(pool), c_(config), k_(kernels()) {}
    void take(Arena& arena, const ls_layer* layers, int num_layers, int rows);
    float* logits() const { return logits_; }  // [rows, experts]: what the router is to give
    // Rows [0, rows) of x [rows, hidden_size], which are multiplied by their factors and the norm first -> those of y
    // [rows, hidden_size]: the sum of the experts that the logits choose, each times its weight.
    void mix(const ls_layer& layer, int rows, const float* x, const float* factors, const float* norm, Epilogue gate, float* y);

  private:
    struct Group {  // the rows of one expert
        ls_matrix matrix;
        Product product;
        int first_unit;
    };
    void choose(int row, const float* scale);
    void group(int rows);
    void multiply_groups(const ls_matrix& m, Preparing preparing, bool same_row, Epilogue epilogue, float* y, int y_stride);

    Pool& pool_;
    const ls_model_config& c_;
    const Kernels& k_;
    float *logits_, *weights_, *act_, *given_;  // [rows, experts], [rows, used], [pairs, size], [pairs, hidden_size]
    // pairs of a row and an expert, by expert: [rows, used], in the order of the row's own choices; [rows, used], where each
    // is; [pairs], its row; [experts + 1], the first of each expert; [experts that have rows]
    int32_t *chosen_, *place_, *row_, *start_, *with_rows_;
    int num_groups_ = 0;
    Group* groups_;
    Inputs inputs_;
};

}  // namespace ls
