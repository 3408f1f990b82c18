#include "cache.h"

namespace {

template <class Cell> void move_head(char* keys, char* values, int padded, int from, int to) {
    Cell* k = (Cell*)keys;
    Cell *source = k + (size_t)(from / 16) * padded * 16 + from % 16, *target = k + (size_t)(to / 16) * padded * 16 + to % 16;
    for (int i = 0; i < padded; i++) target[16 * i] = source[16 * i];
    memcpy((Cell*)values + (size_t)to * padded, (Cell*)values + (size_t)from * padded, sizeof(Cell) * padded);
}

}  // namespace

bool ls_cache::reserve(int wanted) {
    const int64_t more = ls::rounded_up(wanted, 16);
    if (more <= slots) return true;
    ls::Memory new_cells, new_positions;
    const size_t new_head = (size_t)more * padded_dim * cell_bytes(), heads = (size_t)2 * layers * kv_heads;
    if (more > INT32_MAX || !new_positions.resize((size_t)more * 4) || !new_cells.resize(new_head * heads)) return false;
    const size_t used = (size_t)ls::rounded_up(length + rows, 16) * padded_dim * cell_bytes();  // whole blocks of keys
    for (size_t head = 0; head < heads && used; head++)
        memcpy(new_cells.data() + new_head * head, cells.data() + head_bytes() * head, used);
    if (slots) memcpy(new_positions.data(), positions.data(), (size_t)slots * 4);
    for (int slot = slots; slot < more; slot++) ((int32_t*)new_positions.data())[slot] = slot;
    cells.swap(new_cells);
    positions.swap(new_positions);
    slots = (int32_t)more;
    return true;
}

void ls_cache::move(int from, int to) {
    if (from == to) return;
    position()[to] = position()[from];
    for (int layer = 0; layer < layers; layer++)
        for (int head = 0; head < kv_heads; head++) {
            char *k = keys(layer) + head_bytes() * head, *v = values(layer) + head_bytes() * head;
            if (format == LS_FP16) move_head<uint16_t>(k, v, padded_dim, from, to);
            else move_head<float>(k, v, padded_dim, from, to);
        }
}
