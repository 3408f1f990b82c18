#include "functions.h"

namespace ls {

int check_delta(const ls_delta_sizes& s) {
    const struct { const char* name; int value; } sizes[] = {
        {"key_heads", s.key_heads}, {"value_heads", s.value_heads}, {"key_dim", s.key_dim}, {"value_dim", s.value_dim}, {"taps", s.taps}};
    for (const auto& size : sizes)
        if (size.value < 1 || size.value > 65536) return fail(LS_WRONG, "%s = %d of recurrent layers is not possible.", size.name, size.value);
    if (s.value_heads % s.key_heads) return fail(LS_WRONG, "%d value heads cannot share %d key heads evenly.", s.value_heads, s.key_heads);
    const int64_t channels = 2 * (int64_t)s.key_heads * s.key_dim + (int64_t)s.value_heads * s.value_dim;
    if (channels * s.taps > LARGEST_SIZE) return fail(LS_WRONG, "A convolution of %lld channels over %d rows is too large.", (long long)channels, s.taps);
    if (channels + 2 * s.value_heads + (int64_t)s.value_heads * s.value_dim > LARGEST_SIZE) return fail(LS_WRONG, "Recurrent layers of %lld channels are too wide.", (long long)channels);
    return LS_OK;
}

const ls_delta* copied(Arena& arena, const ls_delta& from, const ls_delta_sizes& sizes, bool now) {
    States states;
    states.shape(sizes, 1, LS_FP32);
    const int stride = states.padded_channels();
    ls_delta* to = arena.take<ls_delta>(1);
    float *conv = arena.take<float>((size_t)sizes.taps * stride), *norm = arena.take<float>(sizes.value_dim);
    float *dt_bias = arena.take<float>(sizes.value_heads), *rates = arena.take<float>(sizes.value_heads);
    if (!now) return nullptr;
    for (int tap = 0; tap < sizes.taps; tap++)
        for (int i = 0; i < stride; i++) conv[(size_t)tap * stride + i] = i < states.channels() ? from.conv[(size_t)i * sizes.taps + tap] : 0.0f;
    memcpy(norm, from.value_norm, sizeof(float) * sizes.value_dim);
    memcpy(dt_bias, from.dt_bias, sizeof(float) * sizes.value_heads);
    for (int head = 0; head < sizes.value_heads; head++) {
        const double a = from.a_log[head];
        rates[head] = (float)-(a > 0 ? 1 / falling_exponential(-a) : falling_exponential(a));
    }
    *to = ls_delta{conv, dt_bias, rates, norm};
    return to;
}

void Delta::take(Arena& arena, const States& states, int rows) {
    const int most = larger(rows, smaller(States::RECENT, BATCH));  // rows that are read again are also read in batches
    window_ = arena.take<float>((size_t)(c_.delta.taps - 1 + most) * states.padded_channels());
    gates_ = arena.take<float>((size_t)most * 2 * c_.delta.value_heads);
    scratch_size_ = k_.recurring_scratch(c_.delta.key_dim, c_.delta.value_dim);
    scratch_ = arena.take<float>(scratch_size_ * pool_.threads());
}

void Delta::read(States& states, const States::Reading& reading, const ls_layer& layer, int number, const float* projected, int first, int rows, float* values) {
    if (first == 0 && reading.source_length < reading.length) again(states, reading, layer, number);
    const int from = first ? reading.after : reading.before, stride = states.padded_channels();
    begin(states, from, number);
    auto some = [&](int row, int to, int) {
        for (; row < to; row++) {
            const float* x = projected + (size_t)row * layer.qkv_proj.out;
            const int position = reading.length + first + row;
            char* cells = states.cells(number, position);
            float* gates = gates_ + (size_t)row * 2 * c_.delta.value_heads;
            k_.to_cells(x, states.channels(), c_.cache_format, cells);
            k_.from_cells(cells, stride, c_.cache_format, window_ + (size_t)(c_.delta.taps - 1 + row) * stride);
            k_.gates(x + states.channels(), layer.delta->dt_bias, layer.delta->a_log, c_.delta.value_heads, gates);
            memcpy(states.gates(number, position), gates, sizeof(float) * 2 * c_.delta.value_heads);
        }
    };
    if ((int64_t)rows * stride < 65536) some(0, rows, 0);
    else pool_.share(rows, some);
    advance(states, layer, number, from, reading.after, rows, projected, values);
}

// Read rows again, up to the state after the committed tokens.
void Delta::again(States& states, const States::Reading& reading, const ls_layer& layer, int number) {
    const int stride = states.padded_channels();
    int from = reading.source;
    for (int at = reading.source_length; at < reading.length; at += BATCH, from = reading.before) {
        const int rows = smaller(BATCH, reading.length - at);
        begin(states, from, number);
        for (int row = 0; row < rows; row++) {
            k_.from_cells(states.cells(number, at + row), stride, c_.cache_format, window_ + (size_t)(c_.delta.taps - 1 + row) * stride);
            memcpy(gates_ + (size_t)row * 2 * c_.delta.value_heads, states.gates(number, at + row), sizeof(float) * 2 * c_.delta.value_heads);
        }
        advance(states, layer, number, from, reading.before, rows, nullptr, nullptr);
    }
}

// Copy the rows before a state to the front of the window.
void Delta::begin(const States& states, int slot, int number) {
    const int count = states.padded_channels() * (c_.delta.taps - 1);
    if (slot == States::NOTHING) memset(window_, 0, sizeof(float) * count);
    else k_.from_cells(states.tail(slot, number), count, c_.cache_format, window_);
}

void Delta::advance(States& states, const ls_layer& layer, int number, int from, int to, int rows, const float* projected, float* values) {
    const ls_delta_sizes& s = c_.delta;
    Recurring r{};
    r.key_heads = s.key_heads, r.value_heads = s.value_heads, r.key_dim = s.key_dim, r.value_dim = s.value_dim, r.taps = s.taps, r.tiled = s.tiled;
    r.rows = rows, r.stride = states.padded_channels(), r.window = window_, r.gates = gates_;
    r.conv = layer.delta->conv, r.value_norm = layer.delta->value_norm, r.rms_norm_eps = c_.rms_norm_eps;
    r.before = from == States::NOTHING ? nullptr : states.matrices(from, number), r.after = states.matrices(to, number);
    if (projected) r.gate = projected + states.channels() + 2 * s.value_heads, r.gate_stride = layer.qkv_proj.out, r.values = values;
    pool_.share(s.value_heads, [&](int head, int end, int thread) {
        for (; head < end; head++) k_.recur(r, head, scratch_ + scratch_size_ * thread);
    });
    k_.to_cells(window_ + (size_t)rows * r.stride, r.stride * (s.taps - 1), c_.cache_format, states.tail(to, number));
}

}  // namespace ls
