// A recurrent layer of a forward: it saves its inputs and updates its state; threads share its heads.
#pragma once
#include "isa.h"
#include "model.h"
#include "pool.h"
#include "states.h"

namespace ls {

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

}  // namespace ls
