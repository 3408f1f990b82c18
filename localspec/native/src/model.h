// A model: the structs it was made of, with norms and frequencies of its own; weights stay where they are.
#pragma once
#include "layout.h"

struct ls_model {
    ls_model_config config = {};
    ls_layer* layers = nullptr;
    ls::Memory memory;  // what was copied

    // How many layers before this one have a recurrent state, or have none.
    int before(int layer, bool recurrent) const {
        int count = 0;
        for (int i = 0; i < layer; i++) count += recurrent == (layers[i].delta != nullptr);
        return count;
    }
};
