#include "pack.h"

#include <cmath>

namespace ls {
namespace {

float read_weight(const void* weights, int source, size_t at) {
    if (source == LS_FP32) return ((const float*)weights)[at];
    const uint16_t h = ((const uint16_t*)weights)[at];
    return source == LS_BF16 ? bf16_to_float(h) : half_to_float(h);
}

uint16_t float_to_bf16(float f) {  // to the nearest, ties to even
    uint32_t b = bits_as<uint32_t>(f);
    if ((b & 0x7fffffff) > 0x7f800000) return (uint16_t)(b >> 16 | 0x40);
    return (uint16_t)((b + 0x7fff + (b >> 16 & 1)) >> 16);
}

int nearest(float f, int least, int most) {
    if (!(f > (float)least)) return least;  // NaN too
    return f >= (float)most ? most : (int)floorf(f + 0.5f);
}

// A scale is never zero: it is divided by. One that fp16 cannot hold is the largest that it can; NaN stays, and shows.
uint16_t scale_of(float f) {
    const uint16_t h = float_to_half(f);
    if (f != f) return h;
    if ((h & 0x7fff) == 0) return 1;
    return (h & 0x7fff) >= 0x7c00 ? (uint16_t)((h & 0x8000) | 0x7bff) : h;
}

struct Extremes {
    float largest;  // of the absolute values
    float signed_largest;
};
Extremes extremes(const float* v, int count) {
    Extremes e{0, 0};
    for (int i = 0; i < count; i++) {
        if (v[i] - v[i] != 0) return {NAN, NAN};  // NaN or inf: the scale shows it
        if (fabsf(v[i]) > e.largest) e = {fabsf(v[i]), v[i]};
    }
    return e;
}

void pack_int8(const float* v, int group, int j, uint8_t* record) {
    const uint16_t h = scale_of(extremes(v, group).largest / 127);
    const float scale = half_to_float(h);
    ((uint16_t*)record)[j] = h;
    for (int i = 0; i < group; i++) record[64 + int8_at(j, i)] = (uint8_t)(nearest(v[i] / scale, -127, 127) + 128);
}

// The scale of 4 bits with the least weighted squared error among those near `largest / -8`, whose sign puts the largest
// weight at -8; as ggml's make_qx_quants. Without an importance, large weights count for more.
uint16_t searched_scale(const float* v, const float* importance, int group) {
    const Extremes e = extremes(v, group);
    uint16_t best = 1;
    float least = INFINITY;
    if (e.largest != e.largest) return scale_of(e.largest);
    for (int step = -4; step <= 8 && e.largest > 0; step++) {
        const uint16_t h = scale_of(-e.signed_largest / (7.75f + 0.25f * (float)step));
        const float scale = half_to_float(h);
        float error = 0;
        for (int i = 0; i < group; i++) {
            const float d = v[i] - (float)nearest(v[i] / scale, -8, 7) * scale;
            error += d * d * (importance ? importance[i] : v[i] * v[i] + 1e-3f * e.largest * e.largest);
        }
        if (error < least) least = error, best = h;
    }
    return best;
}

void pack_int4(const float* v, const float* importance, int group, int j, uint8_t* record) {
    const uint16_t h = searched_scale(v, importance, group);
    const float scale = half_to_float(h);
    ((uint16_t*)record)[j] = h;
    for (int i = 0; i < group; i++) {
        uint8_t* byte = record + 64 + int4_at(j, i);
        const int shift = int4_shift(i), value = v[i] == 0 ? 8 : nearest(v[i] / scale, -8, 7) + 8;
        *byte = (uint8_t)((*byte & ~(15 << shift)) | value << shift);
    }
}

}  // namespace

void pack(const ls_packing& p, uint8_t* target, int from_panel, int to_panel, float* v) {
    const size_t panel_size = panel_bytes(p.format, p.in, p.group);
    const bool dense = is_dense(p.format);
    const int group = dense ? 1 : p.group;
    for (int panel = from_panel; panel < to_panel; panel++)
        for (int j = 0; j < PANEL; j++) {
            const int channel = channel_of(panel, j, p.out, p.interleave);
            uint8_t* record = target + panel_size * panel;
            for (int first = 0; first < p.in; first += group) {
                for (int i = 0; i < group; i++)
                    v[i] = channel >= 0 && first + i < p.in ? read_weight(p.weights, p.source, (size_t)channel * p.in + first + i) : 0;
                if (p.format == LS_FP32) ((float*)record)[(size_t)first * PANEL + j] = v[0];
                if (p.format == LS_BF16) ((uint16_t*)record)[(size_t)first * PANEL + j] = float_to_bf16(v[0]);
                if (dense) continue;
                if (p.format == LS_INT8) pack_int8(v, group, j, record);
                else pack_int4(v, p.importance && first + group <= p.in ? p.importance + first : nullptr, group, j, record);
                record += record_bytes(p.format, group);
            }
        }
}

namespace {
float unpacked(const ls_matrix& m, int panel, int j, int input) {
    const uint8_t* data = (const uint8_t*)m.data + panel_bytes(m) * panel;
    const size_t dense_at = (size_t)input * PANEL + j;
    if (m.format == LS_FP32) return ((const float*)data)[dense_at];
    if (m.format == LS_BF16) return bf16_to_float(((const uint16_t*)data)[dense_at]);
    data += record_bytes(m.format, m.group) * (input / m.group);
    const int i = input % m.group;
    const int value = m.format == LS_INT8 ? data[64 + int8_at(j, i)] - 128 : (data[64 + int4_at(j, i)] >> int4_shift(i) & 15) - 8;
    return (float)value * half_to_float(((const uint16_t*)data)[j]);
}
}  // namespace

void unpack(const ls_matrix& m, bool interleave, float* weights) {
    for (int panel = 0; panel < panels_of(m.out); panel++)
        for (int j = 0; j < PANEL; j++) {
            const int channel = channel_of(panel, j, m.out, interleave);
            for (int i = 0; channel >= 0 && i < m.in; i++) weights[(size_t)channel * m.in + i] = unpacked(m, panel, j, i);
        }
}

float weight_at(const ls_matrix& m, int channel, int input) { return unpacked(m, channel / PANEL, channel % PANEL, input); }

}  // namespace ls
