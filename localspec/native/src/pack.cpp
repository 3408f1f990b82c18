#include "functions.h"

#include <cmath>

namespace ls {
namespace {

constexpr int MOST_INPUTS = 128;  // of a tile
constexpr int LANES = 16;

// Inputs [first, first + count) of a panel's 32 channels as [2][count][16], one half for each call of a kernel; zeros beyond.
struct alignas(64) Tile {
    float v[2][MOST_INPUTS * LANES];
};

template <class Stored, class Convert>
void read_tile(const ls_packing& p, int panel, int first, int count, Tile* tile, Convert convert) {
    const int there = smaller(count, p.in - first);
    for (int j = 0; j < PANEL; j++) {
        const int channel = channel_of(panel, j, p.out, p.interleave);
        const Stored* row = (const Stored*)p.weights + (size_t)larger(channel, 0) * p.in + first;
        float* v = tile->v[j / LANES] + j % LANES;
        for (int i = 0; i < there; i++) v[i * LANES] = channel < 0 ? 0 : convert(row[i]);
        for (int i = there; i < count; i++) v[i * LANES] = 0;
    }
}

void read_tile(const ls_packing& p, int panel, int first, int count, Tile* tile) {
    if (p.source == LS_FP32) read_tile<float>(p, panel, first, count, tile, [](float f) { return f; });
    else if (p.source == LS_BF16) read_tile<uint16_t>(p, panel, first, count, tile, [](uint16_t h) { return bf16_to_float(h); });
    else read_tile<uint16_t>(p, panel, first, count, tile, [](uint16_t h) { return half_to_float(h); });
}

uint16_t float_to_bf16(float f) {  // to the nearest, ties to even
    uint32_t b = bits_as<uint32_t>(f);
    if ((b & 0x7fffffff) > 0x7f800000) return (uint16_t)(b >> 16 | 0x40);
    return (uint16_t)((b + 0x7fff + (b >> 16 & 1)) >> 16);
}

// A scale is never zero, because weights are divided by it. One too large for fp16 becomes its largest; NaN stays NaN.
uint16_t scale_of(float f) {
    const uint16_t h = float_to_half(f);
    if (f != f) return h;
    if ((h & 0x7fff) == 0) return 1;
    return (h & 0x7fff) >= 0x7c00 ? (uint16_t)((h & 0x8000) | 0x7bff) : h;
}

// Scales of 8 bits: the largest weight becomes 127.
void largest_scales(const float* largest, uint16_t* scales) {
    for (int j = 0; j < LANES; j++) scales[j] = scale_of(fabsf(largest[j]) / 127);
}

void pack_record(const ls_packing& p, const Tile& tile, uint8_t* record) {
    const Kernels& k = kernels();
    const int group = p.group;
    for (int half = 0; half < 2; half++) {
        const float* v = tile.v[half];
        alignas(64) float largest[LANES], scales[LANES];
        alignas(64) int8_t steps[MOST_INPUTS * LANES];
        uint16_t* halves = (uint16_t*)record + half * LANES;
        k.extremes(v, group, largest);
        largest_scales(largest, halves);
        for (int j = 0; j < LANES; j++) scales[j] = half_to_float(halves[j]);
        k.quantise(v, group, scales, steps);
        for (int i = 0; i < group; i++)
            for (int j = 0; j < LANES; j++) record[64 + int8_at(half * LANES + j, i)] = (uint8_t)(steps[i * LANES + j] + 128);
    }
}

void pack_dense(const ls_packing& p, const Tile& tile, int first, int count, uint8_t* panel) {
    for (int i = 0; i < smaller(count, p.in - first); i++)
        for (int j = 0; j < PANEL; j++) {
            const float f = tile.v[j / LANES][i * LANES + j % LANES];
            const size_t at = (size_t)(first + i) * PANEL + j;
            if (p.format == LS_FP32) ((float*)panel)[at] = f;
            else ((uint16_t*)panel)[at] = float_to_bf16(f);
        }
}

}  // namespace

void pack(const ls_packing& p, uint8_t* target, int from_panel, int to_panel) {
    const bool dense = is_dense(p.format);
    const int count = dense ? MOST_INPUTS : p.group;
    Tile tile;
    for (int panel = from_panel; panel < to_panel; panel++) {
        uint8_t* to = target + panel_bytes(p.format, p.in, p.group) * panel;
        for (int first = 0; first < p.in; first += count) {
            read_tile(p, panel, first, count, &tile);
            if (dense) pack_dense(p, tile, first, count, to);
            else pack_record(p, tile, to + record_bytes(p.group) * (first / p.group));
        }
    }
}

namespace {
// Weights [from, to) of channel j of a panel.
void unpack_channel(const ls_matrix& m, const uint8_t* panel, int j, int from, int to, float* weights) {
    for (int i = from; i < to && is_dense(m.format); i++) {
        const size_t at = (size_t)i * PANEL + j;
        weights[i - from] = m.format == LS_FP32 ? ((const float*)panel)[at] : bf16_to_float(((const uint16_t*)panel)[at]);
    }
    for (int g = is_dense(m.format) ? 0 : from / m.group; !is_dense(m.format) && g * m.group < to; g++) {
        const uint8_t* record = panel + record_bytes(m.group) * g;
        const int first = g * m.group;
        const float scale = half_to_float(((const uint16_t*)record)[j]);
        const uint8_t* stored = record + 2 * PANEL;
        for (int i = larger(0, from - first); i < smaller(m.group, to - first); i++)
            weights[first + i - from] = (float)(stored[int8_at(j, i)] - 128) * scale;
    }
}
}  // namespace

void unpack(const ls_matrix& m, bool interleave, float* weights) {
    for (int panel = 0; panel < panels_of(m.out); panel++)
        for (int j = 0; j < PANEL; j++) {
            const int channel = channel_of(panel, j, m.out, interleave);
            const uint8_t* data = (const uint8_t*)m.data + panel_bytes(m) * panel;
            if (channel >= 0) unpack_channel(m, data, j, 0, m.in, weights + (size_t)channel * m.in);
        }
}

void read_row(const ls_matrix& m, int row, int from, int to, float* weights) {
    if (m.format != LS_BLOCKS)
        return unpack_channel(m, (const uint8_t*)m.data + panel_bytes(m) * (row / PANEL), row % PANEL, from, to, weights);
    const ls_blocks* part = m.parts;
    for (; row >= part->out; part++) row -= part->out;
    kernels().read_blocks(*part, m.in, row, from, to, weights);
}

}  // namespace ls
