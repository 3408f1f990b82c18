#include "states.h"

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
