#include "functions.h"

#include <cmath>

namespace ls {
namespace {

struct Piece {
    const char* text;
    int32_t bytes;
    double cost;
};

// Costs by text: open addressing, at most half full. Because of the seed, no file can choose texts that collide.
struct Costs {
    const Piece* pieces;
    int32_t* slots;  // 0: empty, else a piece's number + 1
    uint64_t mask, seed;

    uint64_t slot_of(const char* text, int32_t bytes) const {
        uint64_t hash = seed;
        for (int32_t i = 0; i < bytes; i++) {
            hash = (hash ^ (uint8_t)text[i]) * 0x9e3779b97f4a7c15u;
            hash ^= hash >> 29;
        }
        uint64_t at = hash & mask;
        while (slots[at]) {
            const Piece& other = pieces[slots[at] - 1];
            if (other.bytes == bytes && !memcmp(other.text, text, (size_t)bytes)) break;
            at = (at + 1) & mask;
        }
        return at;
    }
    double of(const char* first, const char* end) const {
        const int32_t found = slots[slot_of(first, (int32_t)(end - first))];
        return found ? pieces[found - 1].cost : INFINITY;
    }
};

// The byte at which the last two parts of a piece meet; 0 if more than two parts are left, or it is one character.
// starts [bytes + 1] and ways [bytes] are scratch memory.
int32_t cut_of(const Piece& piece, const Costs& costs, const char** starts, double* ways) {
    int32_t parts = 0;
    for (int32_t i = 0; i < piece.bytes; i++)
        if (i == 0 || (piece.text[i] & 0xc0) != 0x80) starts[parts++] = piece.text + i;
    starts[parts] = piece.text + piece.bytes;
    for (int32_t i = 0; i + 1 < parts; i++) ways[i] = parts > 2 ? costs.of(starts[i], starts[i + 2]) : 0;
    while (parts > 2) {
        int32_t best = 0;
        for (int32_t i = 1; i + 1 < parts; i++)
            if (ways[i] < ways[best]) best = i;
        if (ways[best] == INFINITY) return 0;
        memmove(starts + best + 1, starts + best + 2, (size_t)(parts - best - 1) * sizeof *starts);
        memmove(ways + best, ways + best + 1, (size_t)(parts - best - 2) * sizeof *ways);
        if (--parts == 2) break;
        if (best + 1 < parts) ways[best] = costs.of(starts[best], starts[best + 2]);
        if (best) ways[best - 1] = costs.of(starts[best - 1], starts[best + 1]);
    }
    if (parts < 2 || costs.of(starts[0], starts[1]) == INFINITY || costs.of(starts[1], starts[2]) == INFINITY) return 0;
    return (int32_t)(starts[1] - starts[0]);
}

}  // namespace

int piece_cuts(const char* text, const int32_t* lengths, const double* costs, int64_t count, uint64_t seed, int32_t* cuts) {
    uint64_t room = 16;
    while (room < 2 * (uint64_t)count) room *= 2;
    int32_t longest = 0;
    for (int64_t i = 0; i < count; i++)
        if (lengths[i] > longest) longest = lengths[i];
    Piece* pieces = (Piece*)malloc((size_t)(count + 1) * sizeof *pieces);
    int32_t* slots = (int32_t*)calloc(room, sizeof *slots);
    const char** starts = (const char**)malloc((size_t)(longest + 1) * sizeof *starts);
    double* ways = (double*)malloc((size_t)(longest + 1) * sizeof *ways);
    int code = LS_OK;
    if (pieces && slots && starts && ways) {
        const Costs known{pieces, slots, room - 1, seed};
        for (int64_t i = 0; i < count; text += lengths[i++]) {
            pieces[i] = {text, lengths[i], costs[i]};
            slots[known.slot_of(text, lengths[i])] = (int32_t)i + 1;
        }
        for (int64_t i = 0; i < count; i++) cuts[i] = cut_of(pieces[i], known, starts, ways);
    } else code = fail(LS_NO_MEMORY, "There is no memory for a vocabulary of %lld pieces.", (long long)count);
    free(pieces), free(slots), free(starts), free(ways);
    return code;
}

}  // namespace ls
