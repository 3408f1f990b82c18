// The tokens that each row of a forward sees, as one logical sequence (drawn in attention_kernels.h), and its position.
#pragma once
#include "cache.h"
#include "pool.h"

namespace ls {

class Sequences {
  public:
    // `caches`: one for each row. Otherwise all rows are in `cache`, or, if that is `lent`, see only its committed tokens.
    // False: no memory.
    bool fill(Pool& pool, const ls_cache& cache, ls_cache* const* caches, const ls_request& request, bool lent);
    // The first logical index that a row sees through a window of this many positions, its own included; 0: sees everything.
    int visible_from(int row, int window) const;
    int length(int row) const { return prefix[row] + tail_count[row]; }

    // [rows]: the row sees slots [0, prefix) in order, then those of tails[row]
    int32_t *prefix, *tail_count, *positions;
    const int32_t** tails;

  private:
    int position(int row, int logical) const;
    const ls_cache& of(int row) const { return caches_ ? *caches_[row] : *cache_; }
    const ls_cache* cache_;
    ls_cache* const* caches_;
};

}  // namespace ls
