// The merges that make the pieces of a SentencePiece vocabulary: neighbours, the best pair first, as the tokenizer does.
#pragma once
#include "common.h"

namespace ls {
int piece_cuts(const char* text, const int32_t* lengths, const double* costs, int64_t count, uint64_t seed, int32_t* cuts);
}  // namespace ls
