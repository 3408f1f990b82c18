// The layout of a weight [out, in] in memory: panels of 32 output channels, each read from its first byte to its last.
//
//   matrix       panel | panel | ...                panel = record | record | ...   a record: `group` inputs of 32 channels
//   int8 record  [32 fp16 scales] [step] [step] ... step: 4 inputs, a byte each (weight + 128), by channel:
//                                                   c0 i0 i1 i2 i3 | c1 i0 i1 i2 i3 | ... | c31 i0 i1 i2 i3
//   fp32, bf16   i0: c0 ... c31 | i1: c0 ... c31 | ...
//
// gate_up_proj is interleaved: a panel has 16 gate channels, then the 16 up channels that belong to them.
#pragma once
#include "common.h"

namespace ls {
namespace {

constexpr int PANEL = 32;                // output channels
constexpr int SCALED = 128;              // inputs that share a scale of the activations; never less than a group
constexpr int LARGEST_SIZE = 1 << 26;    // of out and in: products stay within 64 bits

LS_INLINE bool is_dense(int format) { return format == LS_FP32 || format == LS_BF16; }
LS_INLINE int panels_of(int out) { return ceil_div(out, PANEL); }
LS_INLINE int groups_of(int in, int group) { return ceil_div(in, group); }
LS_INLINE int span_of(int group) { return group < SCALED ? SCALED / group : 1; }  // groups that share a scale of the activations

LS_INLINE size_t record_bytes(int group) { return PANEL * 2 + (size_t)PANEL * group; }
LS_INLINE size_t panel_bytes(int format, int in, int group) {
    if (is_dense(format)) return (size_t)in * PANEL * (format == LS_FP32 ? 4 : 2);
    return record_bytes(group) * groups_of(in, group);
}
LS_INLINE int spans_of(int format, int in, int group) { return ceil_div(in, is_dense(format) || group < SCALED ? SCALED : group); }
LS_INLINE size_t panel_bytes(const ls_matrix& m) { return panel_bytes(m.format, m.in, m.group); }

// The model's channel that is number j of a panel, or -1 for padding.
LS_INLINE int channel_of(int panel, int j, int out, bool interleave) {
    if (!interleave) return panel * PANEL + j < out ? panel * PANEL + j : -1;
    const int half = out / 2, at = panel * 16 + j % 16;
    return at < half ? j / 16 * half + at : -1;
}

// The byte of channel j and input i of a record.
LS_INLINE size_t int8_at(int j, int i) { return (size_t)(i / 4) * 128 + j * 4 + i % 4; }

}  // namespace
}  // namespace ls

// The layout in memory of a part of a weight [out, in] that stays in the blocks of a GGUF file: panels of 16 output channels.
//
//   part     panel | panel | ...           each from its first byte to its last
//   panel    record | record | ...         a record: the same block, or 2 or 4 blocks, of 16 rows
//   record   [fields] [word] [word] ...    lines of 64 bytes
//   word     4 bytes of each row: r0 | r1 | ... | r15; of the first block of the record, then of the next; see line_of
//   fields   16 fp16 numbers for each of one or two fields: the scales of two blocks, or scale and minimum of one
//
// So a lane of a vector is an output channel, and no value of the file is changed. Two things differ from the file: the
// fields, and fifth bits: bit t of byte b of that word belongs to input 4 t + b. If rows end within a record, or `out`
// within a panel, zeros fill the rest.
namespace ls {
namespace {

constexpr int BLOCK_PANEL = 16;          // output channels
constexpr int LINE = 4 * BLOCK_PANEL;    // bytes
constexpr int INPUTS_TOGETHER = 128;     // inputs of a linear are padded to a multiple

enum class Fields { halves, bytes };     // fp16 numbers; or bytes, a word of four blocks

struct BlockLayout {
    int type, bytes, inputs;             // of a block in the file
    int blocks, words, words_at;         // blocks in a record; words of a block, and the byte where they begin
    int fields, field_at[2];             // of a block: how many, and the bytes where they are
    bool second_is_scale, fifth_bits;    // the second field is an fp16 number, too; the first word is fifth bits
    Fields kind;
};

constexpr BlockLayout BLOCK_LAYOUTS[] = {
    {LS_Q4_0, 18, 32, 2, 4, 2, 1, {0, 0}, false, false, Fields::halves},
    {LS_Q4_1, 20, 32, 1, 4, 4, 2, {0, 2}, true, false, Fields::halves},
    {LS_Q5_0, 22, 32, 2, 5, 2, 1, {0, 0}, false, true, Fields::halves},
    {LS_Q5_1, 24, 32, 1, 5, 4, 2, {0, 2}, true, true, Fields::halves},
    {LS_Q8_0, 34, 32, 2, 8, 2, 1, {0, 0}, false, false, Fields::halves},
    {LS_Q2_K, 84, 256, 1, 20, 0, 2, {80, 82}, true, false, Fields::halves},
    {LS_Q3_K, 110, 256, 1, 27, 0, 1, {108, 0}, false, false, Fields::halves},
    {LS_Q4_K, 144, 256, 1, 35, 4, 2, {0, 2}, true, false, Fields::halves},
    {LS_Q5_K, 176, 256, 1, 43, 4, 2, {0, 2}, true, false, Fields::halves},
    {LS_Q6_K, 210, 256, 1, 52, 0, 1, {208, 0}, false, false, Fields::halves},
    {LS_IQ4_NL, 18, 32, 2, 4, 2, 1, {0, 0}, false, false, Fields::halves},
    {LS_IQ4_XS, 136, 256, 1, 33, 4, 2, {0, 2}, false, false, Fields::halves},  // the second: high bits of scales
    {LS_MXFP4, 17, 32, 4, 4, 1, 1, {0, 0}, false, false, Fields::bytes},
};

constexpr const BlockLayout* find_layout(int type) {
    for (const BlockLayout& layout : BLOCK_LAYOUTS)
        if (layout.type == type) return &layout;
    return nullptr;
}
// The line of a block's word. Lines are in the order in which a product first reads them, so that processors prefetch well.
constexpr int line_of(const BlockLayout& l, int word) {
    if (l.type == LS_Q3_K) return word >= 24 ? word - 24 : word + 3;  // scales are first
    if (l.type != LS_Q6_K) return word;
    if (word >= 48) return word - 48;
    const bool high = word >= 32;
    const int step = word % (high ? 8 : 16), first = 4 + 24 * (high ? (word - 32) / 8 : word / 16);
    return high ? first + 2 * step : step < 8 ? first + 2 * step + 1 : first + 8 + step;
}
constexpr int record_lines(const BlockLayout& l) { return 1 + l.blocks * l.words; }
constexpr int record_inputs(const BlockLayout& l) { return l.blocks * l.inputs; }

LS_INLINE int block_panels(int out) { return ceil_div(out, BLOCK_PANEL); }
LS_INLINE int records_of(const BlockLayout& l, int in) { return ceil_div(in, record_inputs(l)); }
LS_INLINE size_t block_panel_bytes(const BlockLayout& l, int in) { return (size_t)LINE * record_lines(l) * records_of(l, in); }
LS_INLINE size_t row_bytes(const BlockLayout& l, int in) { return (size_t)in / l.inputs * l.bytes; }
LS_INLINE int padded_inputs(int in) { return ceil_div(in, INPUTS_TOGETHER) * INPUTS_TOGETHER; }

}  // namespace
}  // namespace ls
