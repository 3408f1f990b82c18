// Draft heads that read one row (Medusa), as localspec.h describes them.
#pragma once
#include "linear.h"

namespace ls {

// -> logits [count, tokens] of the first `count` heads; state [hidden_size]
int draft_heads(const ls_heads& heads, const ls_model& model, Pool& pool, const float* state, int32_t root, int count, float* logits);

}  // namespace ls
