// Keys and values of a text. For each layer that attends, and key head: keys [slots / 16][padded head_dim][16], values [slots][padded
// head_dim]; a cell is fp16 or fp32. A slot is not a position: each slot has its position beside it.
#pragma once
#include "states.h"

struct ls_cache {
    int32_t layers = 0, kv_heads = 0, padded_dim = 0, format = LS_FP32;
    int32_t slots = 0, length = 0, rows = 0;  // rows: of the last forward, behind the committed tokens
    ls::Memory cells;                         // all keys, then all values
    ls::Memory positions;                     // int32 [slots]
    bool chains = false;                      // whether there are recurrent layers, with these states
    ls::States states;

    size_t cell_bytes() const { return format == LS_FP16 ? 2 : 4; }
    size_t head_bytes() const { return (size_t)slots * padded_dim * cell_bytes(); }  // of one head's keys, or values
    size_t layer_bytes() const { return head_bytes() * kv_heads; }
    char* keys(int layer) const { return cells.data() + layer_bytes() * layer; }
    char* values(int layer) const { return cells.data() + layer_bytes() * (layers + layer); }
    int32_t* position() const { return (int32_t*)positions.data(); }
    bool reserve(int slots);  // false: no memory, and nothing changed
    void move(int from, int to);  // one slot, in all layers and heads
};
