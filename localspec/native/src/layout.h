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
