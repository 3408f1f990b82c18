#include "cache.h"

#include "kernels.h"

namespace {

template <class Cell> void move_head(char* keys, char* values, int padded, int from, int to) {
    Cell* k = (Cell*)keys;
    Cell *source = k + (size_t)(from / 16) * padded * 16 + from % 16, *target = k + (size_t)(to / 16) * padded * 16 + to % 16;
    for (int i = 0; i < padded; i++) target[16 * i] = source[16 * i];
    memcpy((Cell*)values + (size_t)to * padded, (Cell*)values + (size_t)from * padded, sizeof(Cell) * padded);
}

// Fill in where each layer's keys and values lie; recurrent layers have none. Return the channels of a slot's keys in all.
template <class Use> int64_t each_place(const ls_model& model, const Use& use) {
    int64_t channels = 0;
    for (int i = 0; i < model.config.num_layers; i++) {
        const ls_layer& layer = model.layers[i];
        const ls_cache::Place place{i - layer.keys_from, layer.delta ? 0 : layer.num_kv_heads, ls::padded_head(layer.head_dim), channels};
        use(i, place);
        if (!layer.keys_from) channels += (int64_t)place.kv_heads * place.padded_dim;
    }
    return channels;
}

}  // namespace

bool ls_cache::shape_for(const ls_model& model) {
    if (!places.resize(sizeof(Place) * model.config.num_layers)) return false;
    layers = model.config.num_layers, format = model.config.cache_format;
    const int recurrent = model.recurrent_before(layers);
    if (recurrent) chains = true, states.shape(model.config.delta, recurrent, format);
    Place* to = (Place*)places.data();
    channels = each_place(model, [&](int i, const Place& own) { to[i] = own.layer == i ? own : to[own.layer]; });
    return true;
}

bool ls_cache::fits(const ls_model& model) const {
    const int recurrent = model.recurrent_before(model.config.num_layers);
    bool same = layers == model.config.num_layers && format == model.config.cache_format && chains == (recurrent > 0) &&
                (recurrent == 0 || states.serves(model.config.delta, recurrent));
    if (same) each_place(model, [&](int i, const Place& own) {
        const Place& p = place(i);
        same = same && p.layer == own.layer && p.kv_heads == own.kv_heads && p.padded_dim == own.padded_dim;
    });
    return same;
}

bool ls_cache::reserve(int wanted) {
    const int64_t more = ls::rounded_up(wanted, 16);
    if (more <= slots) return true;
    ls::Memory new_cells, new_positions;
    const size_t slot_bytes = 2 * (size_t)channels * cell_bytes();
    if (more > INT32_MAX || !new_positions.resize((size_t)more * 4) || !new_cells.resize(slot_bytes * more)) return false;
    copy_cells(new_cells.data(), more, length + rows);
    if (slots) memcpy(new_positions.data(), positions.data(), (size_t)slots * 4);
    for (int slot = slots; slot < more; slot++) ((int32_t*)new_positions.data())[slot] = slot;
    cells.swap(new_cells);
    positions.swap(new_positions);
    slots = (int32_t)more;
    return true;
}

void ls_cache::copy_cells(char* memory, int64_t room, int used) const {
    const size_t bytes = (size_t)ls::rounded_up(used, 16) * cell_bytes();  // whole blocks of keys
    for (int layer = 0; layer < layers && bytes; layer++) {
        const Place& p = place(layer);
        if (p.layer != layer) continue;
        const size_t new_head = (size_t)room * p.padded_dim * cell_bytes();
        char* to = memory + 2 * p.before * room * cell_bytes();
        for (int head = 0; head < 2 * p.kv_heads; head++)
            memcpy(to + new_head * head, keys(layer) + head_bytes(p) * head, bytes * p.padded_dim);
    }
}

bool ls_cache::copy(const ls_cache& from, int count, int wanted) {
    if (!places.resize(from.places.bytes())) return false;
    memcpy(places.data(), from.places.data(), from.places.bytes());
    layers = from.layers, format = from.format, channels = from.channels, chains = from.chains;
    if (!reserve(wanted) || (chains && !states.copy(from.states, count))) return false;
    from.copy_cells(cells.data(), slots, count);
    if (count) memcpy(positions.data(), from.positions.data(), (size_t)count * 4);
    length = count;
    return true;
}

void ls_cache::move(int from, int to) {
    if (from == to) return;
    position()[to] = position()[from];
    for (int layer = 0; layer < layers; layer++) {
        const Place& p = place(layer);
        for (int head = 0; head < p.kv_heads && p.layer == layer; head++) {
            char *k = keys(layer) + head_bytes(p) * head, *v = values(layer) + head_bytes(p) * head;
            if (format == LS_FP16) move_head<uint16_t>(k, v, p.padded_dim, from, to);
            else move_head<float>(k, v, p.padded_dim, from, to);
        }
    }
}
