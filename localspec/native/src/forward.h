// One forward of a model: rows through all layers, by batches.
#pragma once
#include "by_token.h"
#include "cache.h"
#include "delta.h"

namespace ls {
// Arguments were checked by the caller. LS_NO_MEMORY leaves the cache unchanged.
int forward(const ls_model& model, ls_cache& cache, Pool& pool, const ls_request& request);
// One row behind the committed tokens of each cache.
int forward_each(const ls_model& model, ls_cache* const* caches, Pool& pool, const ls_request& request);
int head(const ls_model& model, Pool& pool, int rows, const float* hidden, float* logits, int32_t* argmax);
}  // namespace ls
