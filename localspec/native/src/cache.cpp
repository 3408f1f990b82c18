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

namespace ls {
namespace {

constexpr int WIDEST = States::RECENT / 2;  // most tokens between two states with rows after them, if there is a choice

}  // namespace

void States::shape(const ls_delta_sizes& sizes, int layers, int format) {
    sizes_ = sizes, layers_ = layers, format_ = format;
    channels_ = 2 * sizes.key_heads * sizes.key_dim + sizes.value_heads * sizes.value_dim;
}

size_t States::bytes() const {
    size_t all = recent_.bytes();
    for (const Memory& slot : slots_) all += slot.bytes();
    return all;
}

int States::reachable(int length) const {
    int nearest = 0;
    for (int i = 0; i < count_ && held_[i].length <= length; i++) nearest = held_[i].length;
    return nearest >= low_ && length <= high_ ? length : nearest;
}

bool States::begin(int length, int rows, Reading* reading) {
    State held[HELD + 2];
    int count = count_;
    while (held_[count - 1].length > length) count--;
    memcpy(held, held_, sizeof(State) * count);
    const State source = held[count - 1];
    const bool again = source.length < length;
    const bool follows = low_ <= length && length <= high_;  // else no earlier row is stored
    const int low = larger(follows ? low_ : length, length + rows - RECENT);
    auto taken = [&](int slot) {
        bool found = false;
        for (int i = 0; i < count; i++) found = found || held[i].slot == slot;
        return found;
    };
    auto used = [&] {
        int slots = 0;
        for (int slot = 0; slot < HELD; slot++) slots += taken(slot);
        return slots;
    };
    while (used() + (again ? 2 : 1) > HELD) thin(held, &count, length, low);
    auto put = [&](int at) {
        int slot = 0;
        while (taken(slot)) slot++;
        held[count++] = State{at, slot};
        return slot;
    };
    *reading = Reading{source.slot, source.length, again ? put(length) : source.slot, put(length + rows), length};
    if (!recent_.at_least(row_bytes() * RECENT * layers_)) return false;
    if (again && !slots_[reading->before].at_least(slot_bytes() * layers_)) return false;
    if (!slots_[reading->after].at_least(slot_bytes() * layers_)) return false;
    memcpy(held_, held, sizeof(State) * count);
    count_ = count, low_ = low, high_ = length + rows;
    return true;
}

bool States::copy(const States& from, int length) {
    sizes_ = from.sizes_, layers_ = from.layers_, channels_ = from.channels_, format_ = from.format_;
    count_ = 0, low_ = smaller(from.low_, length), high_ = smaller(from.high_, length);
    for (int i = 0; i < from.count_ && from.held_[i].length <= length; i++) {
        const State& one = held_[count_++] = from.held_[i];
        if (one.slot == NOTHING) continue;
        if (!slots_[one.slot].resize(slot_bytes() * layers_)) return false;
        memcpy(slots_[one.slot].data(), from.slots_[one.slot].data(), slot_bytes() * layers_);
    }
    if (high_ > low_) {
        if (!recent_.resize(row_bytes() * RECENT * layers_)) return false;
        memcpy(recent_.data(), from.recent_.data(), row_bytes() * RECENT * layers_);
    }
    return true;
}

void States::assume(int from, int length) {
    int latest = 0;
    while (latest + 1 < count_ && held_[latest + 1].length <= from) latest++;
    held_[1] = State{length, held_[latest].slot};
    count_ = 2, low_ = high_ = length;
}

// Drop one state: the one that leaves the smallest gap for its age. The first and the last stay, and so do those
// that are needed to read the stored rows again.
void States::thin(State* held, int* count, int length, int low) const {
    int chosen = 0;
    double least = 0;
    for (int pass = 0; pass < 2 && !chosen; pass++)
        for (int i = 1; i + 1 < *count; i++) {
            const int before = held[i - 1].length, after = held[i + 1].length;
            const bool needed = before >= low ? after - before > WIDEST : held[i].length >= low && length - after < WIDEST;
            if (held[i].slot == NOTHING || (needed && pass == 0)) continue;
            const double gap = (double)(after - before) / (double)(held[*count - 1].length - before);
            if (!chosen || gap < least) chosen = i, least = gap;
        }
    for (int i = chosen; i + 1 < *count; i++) held[i] = held[i + 1];
    --*count;
}

}  // namespace ls
