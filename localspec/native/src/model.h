// A model: the structs it was made of, with norms and frequencies of its own; weights stay where they are.
#pragma once
#include "layout.h"

struct ls_model {
    ls_model_config config = {};
    ls_layer* layers = nullptr;
    ls::Memory memory;  // what was copied
};
