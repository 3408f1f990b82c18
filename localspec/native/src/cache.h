// Keys and values of a text. For each layer with keys and values, and each of its key heads: keys [slots / 16][padded
// head_dim][16], values [slots][padded head_dim]; a cell is fp16 or fp32. A slot is not a position: `positions`
// has the position of each slot.
#pragma once
#include "model.h"

// The states of recurrent layers: the present ones, some earlier ones (the older, the sparser), and the rows read lately.
// A text is cut by reading rows again from the nearest state before the cut, in the same order and with the same bits.
//
//   states   0        │         │       │   │ ││        of all layers; the state of the empty text is zeros, and takes no memory
//   rows                     aaaaaaaaaaaaaaaaaaa        the last RECENT, each at its position modulo RECENT
namespace ls {

constexpr int COLUMNS = 32;  // neighbouring channels of a value in a state

class States {
  public:
    static constexpr int HELD = 8;      // states that take memory
    static constexpr int RECENT = 256;  // rows
    static constexpr int NOTHING = -1;  // instead of a slot: zeros

    struct Reading {  // slots: the state where a forward begins, the one after the committed tokens, and the one after its rows
        int source, source_length, before, after;
        int length;  // of the committed tokens
    };

    void shape(const ls_delta_sizes& sizes, int layers, int format);
    bool serves(const ls_delta_sizes& sizes, int layers) const { return layers == layers_ && memcmp(&sizes, &sizes_, sizeof sizes) == 0; }
    size_t bytes() const;
    bool reaches(int length) const { return reachable(length) == length; }
    int reachable(int length) const;  // the longest text of at most `length` tokens that can be restored
    // Find room for a forward of this many rows, and forget everything after `length` tokens; `length` must be reachable.
    // False: no memory, and nothing changed.
    bool begin(int length, int rows, Reading* reading);
    bool copy(const States& from, int length);  // the states of the first tokens, which must be reachable; false: no memory
    void assume(int from, int length);  // use the latest state of a text of `from` tokens as the one after `length`

    int channels() const { return channels_; }            // of the convolution
    int padded_channels() const { return (channels_ + 15) / 16 * 16; }
    float* matrices(int slot, int layer) const { return (float*)(slots_[slot].data() + slot_bytes() * layer); }
    char* tail(int slot, int layer) const { return (char*)matrices(slot, layer) + matrix_bytes(); }  // [taps - 1][padded]
    char* cells(int layer, int position) const { return recent_.data() + row_bytes() * (RECENT * layer + position % RECENT); }
    float* gates(int layer, int position) const { return (float*)(cells(layer, position) + cells_bytes()); }
    size_t cells_bytes() const { return (size_t)padded_channels() * (format_ == LS_FP16 ? 2 : 4); }  // of one row

  private:
    struct State {
        int length, slot;
    };
    size_t matrix_bytes() const { return (size_t)sizes_.value_heads * ceil_div(sizes_.value_dim, COLUMNS) * COLUMNS * sizes_.key_dim * 4; }
    size_t slot_bytes() const { return rounded_up(matrix_bytes() + cells_bytes() * (sizes_.taps - 1), 64); }  // of one layer
    size_t row_bytes() const { return rounded_up(cells_bytes() + (size_t)sizes_.value_heads * 8, 64); }
    void thin(State* held, int* count, int length, int low) const;

    ls_delta_sizes sizes_ = {};
    int layers_ = 0, channels_ = 0, format_ = LS_FP32;
    State held_[HELD + 2] = {{0, NOTHING}};  // by length; the first takes no memory
    int count_ = 1, low_ = 0, high_ = 0;     // rows [low, high) are there
    Memory slots_[HELD], recent_;
};

}  // namespace ls

struct ls_cache {
    struct Place {  // where a layer's keys and values are
        int32_t layer;       // the layer that they belong to
        int32_t kv_heads, padded_dim;
        int64_t before;      // channels of a slot's keys in the layers before
    };
    int32_t layers = 0, format = LS_FP32;
    int32_t slots = 0, length = 0, rows = 0;  // rows: those of the last forward, which follow the committed tokens
    int64_t channels = 0;                     // of a slot's keys in all layers; values have as many
    ls::Memory places;                        // Place [layers]
    ls::Memory cells;                         // layer by layer its keys, then its values
    ls::Memory positions;                     // int32 [slots]
    bool chains = false;                      // whether there are recurrent layers, with these states
    ls::States states;

    const Place& place(int layer) const { return ((const Place*)places.data())[layer]; }
    size_t cell_bytes() const { return format == LS_FP16 ? 2 : 4; }
    size_t head_bytes(const Place& p) const { return (size_t)slots * p.padded_dim * cell_bytes(); }  // of keys, or values
    char* keys(int layer) const { return cells.data() + 2 * place(layer).before * slots * cell_bytes(); }
    char* values(int layer) const { return keys(layer) + head_bytes(place(layer)) * place(layer).kv_heads; }
    int32_t* position() const { return (int32_t*)positions.data(); }
    bool shape_for(const ls_model& model);  // false: no memory
    bool fits(const ls_model& model) const;
    // Copies keys and values of the first `used` slots, in whole blocks, to memory for `room` slots of the same shape.
    void copy_cells(char* memory, int64_t room, int used) const;
    bool reserve(int slots);  // false: no memory, and nothing changed
    bool copy(const ls_cache& from, int length, int slots);  // into a new cache: the first tokens; false: no memory
    void move(int from, int to);  // one slot, in all layers and heads
};
