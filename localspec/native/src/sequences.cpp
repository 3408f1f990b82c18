#include "sequences.h"

namespace ls {

bool Sequences::fill(Pool& pool, const ls_cache& cache, ls_cache* const* caches, const ls_request& q, bool lent) {
    cache_ = &cache, caches_ = caches;
    const size_t rows = (size_t)q.rows;
    if (!pool.sequences.at_least(rows * (3 * sizeof(int32_t) + sizeof(int32_t*)) + 512)) return false;
    Arena arena(pool.sequences.data());
    tails = arena.take<const int32_t*>(rows);
    prefix = arena.take<int32_t>(rows), tail_count = arena.take<int32_t>(rows), positions = arena.take<int32_t>(rows);
    size_t all_tails = 0;
    for (int row = 0; row < q.rows; row++) {
        const int parent = caches ? -1 : q.parents ? q.parents[row] : row - 1, length = of(row).length, slot = length + (caches ? 0 : row);
        prefix[row] = parent < 0 ? length : prefix[parent];
        tail_count[row] = parent < 0 ? 0 : tail_count[parent];
        if (lent) prefix[row] = cache.length, tail_count[row] = 0;
        else if (tail_count[row] == 0 && prefix[row] == slot) prefix[row]++;
        else tail_count[row]++;
        all_tails += tail_count[row];
        positions[row] = q.positions ? q.positions[row] : parent < 0 ? length : positions[parent] + 1;
    }
    if (!pool.tails.at_least(all_tails * sizeof(int32_t))) return false;
    int32_t* tail = (int32_t*)pool.tails.data();
    for (int row = 0; row < q.rows; row++) {
        const int count = tail_count[row];
        tails[row] = tail;
        for (int i = 0; i + 1 < count; i++) tail[i] = tails[q.parents[row]][i];
        if (count) tail[count - 1] = cache.length + row;
        tail += count;
    }
    return true;
}

int Sequences::position(int row, int logical) const {
    const int slot = logical < prefix[row] ? logical : tails[row][logical - prefix[row]];
    const ls_cache& cache = of(row);
    return slot < cache.length ? cache.position()[slot] : positions[caches_ ? row : slot - cache.length];
}

int Sequences::visible_from(int row, int window) const {
    int from = 0, to = length(row) - 1;
    if (window == 0 || (int64_t)positions[row] - window < position(row, 0)) return 0;
    while (from < to) {  // positions never decrease along a path
        const int middle = from + (to - from) / 2;
        if (position(row, middle) > positions[row] - window) to = middle;
        else from = middle + 1;
    }
    return from;
}

}  // namespace ls
