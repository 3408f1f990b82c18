// Keys and values of a text. For each layer that has its own, and each of its key heads: keys [slots / 16][padded
// head_dim][16], values [slots][padded head_dim]; a cell is fp16 or fp32. A slot is not a position: each slot has its
// position next to it.
#pragma once
#include "model.h"
#include "states.h"

struct ls_cache {
    struct Place {  // of a layer's keys and values
        int32_t layer;       // that they belong to
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
