// A model: copies of the structs it was made of, with norms and frequencies; weights stay where they are.
#pragma once
#include "layout.h"

namespace ls {
constexpr int MOST_LAYER_INPUTS = 4096;  // channels

// A layer as the caller gave it, with the model's sizes where the layer has none.
inline ls_layer with_sizes(const ls_model_config& c, const ls_layer& given) {
    ls_layer layer = given;
    if (!layer.num_kv_heads) layer.num_kv_heads = c.num_kv_heads;
    if (!layer.head_dim) layer.head_dim = c.head_dim;
    if (!layer.intermediate_size) layer.intermediate_size = c.intermediate_size;
    return layer;
}
}  // namespace ls

struct ls_model {
    ls_model_config config = {};
    ls_layer* layers = nullptr;  // with all their sizes
    ls::Memory memory;  // the copies

    bool borrows() const { return config.num_layers && layers[0].keys_from < 0; }  // from another model
    int recurrent_before(int layer) const {  // layers with a recurrent state
        int count = 0;
        for (int i = 0; i < layer; i++) count += layers[i].delta != nullptr;
        return count;
    }
};
