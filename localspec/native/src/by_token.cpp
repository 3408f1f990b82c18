#include "functions.h"

namespace ls {
namespace {

constexpr float BOTH = 0.70710678118654752f;  // 1 / sqrt(2): the scaled sum of two vectors of mean square 1 has about mean square 1

// Read `count` columns of a token's row, starting at `first`.
void read_table(const ls_table& table, int columns, int token, int first, int count, float scale, float* x) {
    const size_t at = (size_t)token * columns + first;
    if (!table.rows) read_row(table.matrix, token, first, first + count, x);
    else if (table.format == LS_FP32) memcpy(x, (const float*)table.rows + at, sizeof(float) * count);
    else for (int i = 0; i < count; i++) x[i] = bf16_to_float(((const uint16_t*)table.rows)[at + i]);
    for (int i = 0; i < count && scale != 1; i++) x[i] = x[i] * scale;
}

}  // namespace

void embed(const ls_model& model, int token, float* x) {
    const ls_model_config& c = model.config;
    read_table(c.embed_tokens, c.hidden_size, token, 0, c.hidden_size, c.embed_scale, x);
}

void read_layer_inputs(const ls_model& model, Pool& pool, const int32_t* tokens, const float* x, int rows, const Inputs& room, float* inputs) {
    const ls_model_config& c = model.config;
    const ls_layer_inputs& given = c.layer_inputs;
    const Kernels& k = kernels();
    const int width = given.width, all = c.num_layers * width;
    multiply(pool, Linear{&given.projection, rows, x, c.hidden_size, nullptr, nullptr, Epilogue::store, inputs, all, nullptr, nullptr}, room);
    auto some = [&](int item, int to, int) {
        for (; item < to; item++) {
            const int row = item / c.num_layers, layer = item % c.num_layers;
            float *of_states = inputs + (size_t)item * width, of_token[MOST_LAYER_INPUTS];
            k.normalise(of_states, given.projection_scale, nullptr, width, of_states);
            k.normalise(of_states, k.inverse_rms(of_states, width, c.rms_norm_eps), given.norm, width, of_states);
            read_table(given.table, all, tokens[row], layer * width, width, given.table_scale, of_token);
            for (int i = 0; i < width; i++) of_states[i] = (of_states[i] + of_token[i]) * BOTH;
        }
    };
    pool.share(rows * c.num_layers, some, larger(1, 65536 / width));
}

}  // namespace ls
