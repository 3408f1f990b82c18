// Draft heads that read one row (Medusa).
#pragma once
#include "linear.h"

namespace ls {

int draft_heads(const ls_heads& heads, const ls_model& model, Pool& pool, const float* state, int32_t root, int count, float* logits);

}  // namespace ls
