// Picking tokens from logits: temperature, top-k, top-p, min-p in that order, then argmax(log p + Gumbel noise). The noise is a
// hash of (seed, position, id), the same as in localspec/decoding/sampling.py.
#pragma once
#include "isa.h"

namespace ls {
int pick(const float* logits, int vocab, const ls_sampling& sampling, int64_t position, const int32_t* ids, int32_t* id);
int probabilities(const float* logits, int vocab, const ls_sampling& sampling, double* p);
int top(const float* logits, int vocab, double temperature, int count, int32_t* tokens, float* chances, int32_t* found);
void add_noise(const ls_sampling& sampling, int64_t position, const int32_t* ids, int count, int32_t* tokens, float* chances, int32_t* found);
}  // namespace ls
