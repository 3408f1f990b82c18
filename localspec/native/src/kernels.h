// The functions that are compiled for each instruction set, as a table, and the plain structs that they take.
// kernels_*.cpp compile the same sources (vector.h, tile.h, linear_kernels.h, ...) once for each instruction set.
#pragma once
#include "cache.h"
#include "layout.h"

namespace ls {

constexpr int BLOCK = 8;     // rows that share one pass over a weight
constexpr int PASS = 64;     // rows that share one reading of a panel from memory
constexpr int CHUNK = 256;   // logical slots that attention handles at a time, by any thread
extern const bool made_by_intel;  // whether the processor is Intel's; see isa.cpp
extern const bool prefetches_alone;  // whether the processor's own prefetching suffices for one or two rows
constexpr int NOTHING = 0, USUAL = 1, INTEL = 2;  // what a tile prefetches

// Rows in blocks of nearly equal size.
struct RowBlocks {
    int rows, count;
    explicit RowBlocks(int n) : rows(n), count((n + BLOCK - 1) / BLOCK) {}
    int start(int block) const {
        const int size = rows / count, extra = rows % count;
        return block * size + (block < extra ? block : extra);
    }
    int size(int block) const { return rows / count + (block < rows % count); }
};

// The inputs of a linear, by blocks of R rows. Quantised: values [inputs / 4][R][4], scales [spans][R] (see SCALED) and
// sums [groups][R], the correction for weights that are stored unsigned. Dense: floats [in][R]. For weights in blocks, by
// groups of 32 inputs, padded with zeros to 128: values [groups][R][32], scales [groups][R], sums (-sum) [groups][R],
// half_sums (sums of the two halves of a group) [groups][R][2], scaled_sums (scale * sum) [groups][R].
struct Inputs {
    int8_t* values;
    float* scales;
    int32_t *sums, *half_sums;
    float *scaled_sums, *floats;
};

struct Preparing {  // rows x [rows, in] -> Inputs, after the norm if there is one
    const ls_matrix* matrix;
    RowBlocks blocks;
    const float* x;
    int stride;
    const float* factors;      // [rows]: 1 / root mean square, or another factor of all inputs; NULL: none
    const float* norm;         // [in], or NULL
    Inputs to;
    const int32_t* rows;       // [blocks.rows]: which rows of x; NULL: the first blocks.rows rows
    int row(int number) const { return rows ? rows[number] : number; }
};

enum class Epilogue { store, add, silu, gelu, gate, gelu_gate, clamped_gate, head };

LS_INLINE bool is_gate(Epilogue e) { return e == Epilogue::gate || e == Epilogue::gelu_gate || e == Epilogue::clamped_gate; }
LS_INLINE Epilogue gate_of(int gate) { return gate == LS_GELU ? Epilogue::gelu_gate : gate == LS_CLAMPED_SILU ? Epilogue::clamped_gate : Epilogue::gate; }

// A unit of work of a linear: one packed panel; in blocks two panels of a part, or one of the gate and one of up.
LS_INLINE int units_of(const ls_matrix& m, Epilogue epilogue) {
    if (m.format != LS_BLOCKS || is_gate(epilogue)) return panels_of(m.out);
    int units = 0;
    for (int i = 0; i < m.num_parts; i++) units += panels_of(m.parts[i].out);
    return units;
}
LS_INLINE size_t unit_bytes(const ls_matrix& m) {
    return m.format == LS_BLOCKS ? 2 * block_panel_bytes(*find_layout(m.parts[0].type), m.in) : panel_bytes(m);
}

struct Best {  // the largest logit of a row so far, the first of equal ones; id -1 if one was NaN
    float logit;
    int32_t id;
};

struct Product {
    const ls_matrix* matrix;
    RowBlocks blocks;
    Inputs inputs;
    Epilogue epilogue;
    float* y;                  // [rows, stride]; of a head: logits, or NULL
    int64_t stride;
    const float* delta;        // [rows, out] of an adapter, added before the epilogue, or NULL
    Best* best;                // of a head: [threads][rows]
    float cap;                 // of a head: the bound of logits, by tanh; 0: none. Of a clamped gate: its limit
};

struct LowRank {
    const ls_adapter* adapter;
    int rows, in, out;
    const float* x;            // [rows, in]
    float* low;                // [rows, rank]: A x
    float* delta;              // [rows, out]: scale * B (A x)
};

struct Attending {  // one layer, some rows of a forward
    int num_heads, num_kv_heads, head_dim, rotary_dim, cache_format, slots;
    int rows, first_slot;                  // the slot of the first row's keys and values
    int tree_slot;                         // the first slot after the committed tokens
    float rms_norm_eps, query_scalar;
    // qkv [rows, qkv_stride]: queries of all heads, each followed by its gate if they are gated, then keys, then values.
    // No values if the keys before norm and rotation serve as values; only queries if an earlier layer has keys and values.
    int qkv_stride, first_key, first_value;  // which heads of qkv are the first key and value
    bool own_keys, value_norm, interleaved;
    const float *qkv, *q_norm, *k_norm;
    const float *cos, *sin;                // [rows, rotary_dim / 2]
    const float* factors;                  // [rows]: queries are multiplied by them; or NULL
    int gated;                             // 1: a query is followed by the gate of its head's output
    const float* sinks;                    // [heads]: scores that only add to the sum of a row's weights; or NULL
    float* queries;                        // [rows, heads, padded head_dim]
    void *keys, *values;                   // of this layer, see cache.h
    // A row sees slots [0, prefix), then those of its tail, as one logical sequence; from `visible_from` on.
    const int32_t *prefix, *tail_count, *visible_from;  // [rows]
    const int32_t* const* tails;           // [rows][tail_count]
    float* mixed;                          // -> [rows, heads * head_dim]
    float* partials;                       // [chunks][rows][heads][state], if threads share chunks
    int chunks;
};

struct Recurring {  // one recurrent layer, some rows of a text
    int key_heads, value_heads, key_dim, value_dim, taps, tiled, rows;
    int stride;                // of rows of the window, and of taps
    float rms_norm_eps;
    const float* window;       // [taps - 1 + rows, stride]: channels before the convolution
    const float* gates;        // [rows, 2, value_heads]: how much each head changes, and how much of its state stays
    const float *conv, *value_norm;  // [taps, stride], [value_dim]
    const float* before;       // states (delta_kernels.h) before the first row; NULL: zeros
    float* after;              // states after the last row, in the same memory or other
    const float* gate;         // [rows, gate_stride]: of values
    int gate_stride;
    float* values;             // -> [rows, value_heads * value_dim], or NULL
};

LS_INLINE int padded_head(int head_dim) { return (head_dim + 15) / 16 * 16; }
LS_INLINE int state_floats(int head_dim) { return padded_head(head_dim) + 16; }  // largest score, sum, mixed values
LS_INLINE int rows_together(const Attending& a) { return larger(1, 64 / (a.num_heads / a.num_kv_heads)); }
LS_INLINE size_t attention_scratch(const Attending& a, int tree_slots) {  // floats a thread needs
    const int queries = rows_together(a) * (a.num_heads / a.num_kv_heads);
    return (size_t)BLOCK * (CHUNK + tree_slots + 32) + (size_t)(queries + BLOCK) * state_floats(a.head_dim);
}

struct alignas(64) RoundedBlock {  // blocks of 16 rows, a lane each, as far as their type has it
    uint16_t scale[16], minimum[16];         // fp16
    int8_t scales[16][16], minima[8][16];    // of the groups
    int8_t steps[256][16];
};

struct Kernels {
    float (*inverse_rms)(const float* x, int size, float eps);
    void (*normalise)(const float* x, float factor, const float* weight, int size, float* y);  // weight NULL: none
    void (*prepare)(const Preparing& p, int block, int from_span, int to_span);  // spans: see spans_of
    void (*multiply)(const Product& p, int from_unit, int to_unit, int thread);
    void (*prepare_blocks)(const Preparing& p, int block, int from_span, int to_span);  // these two are for weights in blocks
    void (*multiply_blocks)(const Product& p, int from_unit, int to_unit, int thread);
    void (*shrink)(const LowRank& l, int from, int to);   // products number [from, to) of rows * rank
    void (*expand)(const LowRank& l, int from, int to);   // output channels [from, to) of all rows
    void (*place)(const Attending& a, int kv_head, int from_row, int to_row);  // norms, rotates, writes keys and values
    void (*attend)(const Attending& a, int kv_head, int from_row, int to_row, int chunk /* -1: all */, float* scratch);
    void (*combine)(const Attending& a, int row, float* scratch);
    void (*to_cells)(const float* x, int count, int format, void* cells);
    void (*from_cells)(const void* cells, int count, int format, float* x);
    void (*gates)(const float* x, const float* dt_bias, const float* rates, int heads, float* to);
    void (*recur)(const Recurring& r, int value_head, float* scratch);
    size_t (*recurring_scratch)(int key_dim, int value_dim);  // floats a thread needs for that
    float (*maximum)(const float* x, int size);  // NaN if one is NaN
    double (*exponential_sum)(const float* x, float divisor, float largest, int size);  // of e^(x / divisor - largest)
    uint64_t (*read)(const void* data, size_t bytes);
    void (*extremes)(const float* v, int count, float* found);
    void (*quantise)(const float* v, int count, const float* scales, int8_t* steps);
    void (*read_blocks)(const ls_blocks& part, int in, int row, int from, int to, float* weights);  // [from, to) of a row
    void (*round_block)(int type, const float* v, const float* importance, RoundedBlock* to);  // v [inputs of a block][16 rows]
};

const Kernels* c_kernels();
const Kernels* neon_kernels();       // these four: NULL in builds for another kind of CPU
const Kernels* avx2_kernels();
const Kernels* avx_vnni_kernels();
const Kernels* avx512_kernels();

// The instruction set in use. The CPU is queried by hand, because zig's runtime returns 0 from __builtin_cpu_supports.
bool isa_supported(int isa);
const char* isa_name(int isa);  // NULL for an unknown one
int isa_in_use();
void isa_use(int isa);
const Kernels& kernels();  // the ones in use

}  // namespace ls
