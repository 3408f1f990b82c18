// Rounding of weights to blocks, for 16 rows at a time, a lane each: v [inputs][16] of one block, as [i][row].
//
// A weight is scale * q + low. Scales and lows are searched: of several scales near the largest possible one, the scale with
// the least squared error is taken, weighted by importance, as in ggml's make_qkx2_quants and make_qx_quants. Integer scales
// of groups are tried one step up and down, too.

LS_INLINE v16 nearest(v16 v, float least, float most) {  // `least` if v is NaN
    const v16 shift = all(12582912.0f), known = chosen(v == v, v, all(least));
    return smaller_of(larger_of(known, all(least)), all(most)) + shift - shift;
}
LS_INLINE v16 inverse_of(v16 v) { return chosen(v != all(0.0f), all(1.0f) / v, all(0.0f)); }
LS_INLINE v16 absolute(v16 v) { return as_floats(as_bits(v) & 0x7fffffff); }

// To the nearest fp16 number that is not zero, or the largest one for numbers beyond it; zero and NaN stay.
LS_INLINE v16 in_halves(v16 v, uint16_t* halves) {
    v16 found;
    for (int j = 0; j < 16; j++) {
        uint16_t h = float_to_half(v[j]);
        if (v[j] == v[j] && (h & 0x7fff) >= 0x7c00) h = (uint16_t)((h & 0x8000) | 0x7bff);
        if (v[j] != 0 && (h & 0x7fff) == 0) h |= 1;
        halves[j] = h;
        found[j] = half_to_float(h);
    }
    return found;
}

struct Line { v16 scale, low; };

// The line through 32 weights whose integers are 0 to 15; its low is never above zero.
LS_INLINE Line fit_line(const float* v, const float* importance) {
    constexpr int count = 32;
    constexpr float most = 15;
    v16 least = load(v), greatest = least, weight = all(0.0f), sum = all(0.0f);
    for (int i = 0; i < count; i++) {
        const v16 x = load(v + 16 * i), w = all(importance[i]);
        least = smaller_of(least, x), greatest = larger_of(greatest, x);
        weight = weight + w, sum = fma(w, x, sum);
    }
    least = smaller_of(least, all(0.0f));
    const v16 range = greatest - least;
    Line best{range / all(most), least};
    v16 gained = all(-3e38f), inverse = inverse_of(range);
    constexpr int TRIED = 20;
    for (int t = 0; t <= TRIED + 1; t++) {
        // the last one begins with the best line of those before
        const v16 from = t <= TRIED ? least : best.low;
        const v16 factor = t <= TRIED ? all(most - 1.0f + 0.1f * (float)t) * inverse : inverse_of(best.scale);
        v16 q1 = all(0.0f), q2 = q1, qx = q1;
        for (int i = 0; i < count; i++) {
            const v16 x = load(v + 16 * i), q = nearest((x - from) * factor, 0, most), weighted = q * all(importance[i]);
            q1 = q1 + weighted, q2 = fma(weighted, q, q2), qx = fma(weighted, x, qx);
        }
        const v16 inverse_determinant = inverse_of(weight * q2 - q1 * q1);
        Line line{(weight * qx - sum * q1) * inverse_determinant, (q2 * sum - q1 * qx) * inverse_determinant};
        const i16 above = line.low > all(0.0f);
        line.scale = chosen(above, qx * inverse_of(q2), line.scale), line.low = chosen(above, all(0.0f), line.low);
        const v16 gain = fma(line.scale, qx, line.low * sum);  // by how much the line reduces the squared error
        const i16 better = (gain > gained) & (line.scale > all(0.0f));
        gained = chosen(better, gain, gained);
        best.scale = chosen(better, line.scale, best.scale), best.low = chosen(better, line.low, best.low);
    }
    return best;
}

// The scale of `count` weights whose integers are -half to half - 1; the largest weight becomes about -half.
LS_INLINE v16 fit_scale(const float* v, const float* importance, int count, float half) {
    v16 largest = all(0.0f);
    for (int i = 0; i < count; i++) {
        const v16 x = load(v + 16 * i);
        largest = chosen(absolute(x) > absolute(largest), x, largest);
    }
    const v16 inverse = inverse_of(largest);
    v16 best = largest / all(-half), gained = all(0.0f);
    constexpr int TRIED = 16;
    for (int t = 0; t <= TRIED + 1; t++) {
        const v16 factor = t <= TRIED ? all(-half * (1.03125f - 0.015625f * (float)t)) * inverse : inverse_of(best);
        v16 product = all(0.0f), square = product;
        for (int i = 0; i < count; i++) {
            const v16 x = load(v + 16 * i), q = nearest(x * factor, -half, half - 1), weighted = q * all(importance[i]);
            product = fma(weighted, x, product), square = fma(weighted, q, square);
        }
        const v16 scale = product * inverse_of(square), gain = product * scale;
        const i16 better = gain > gained;
        gained = chosen(better, gain, gained), best = chosen(better, scale, best);
    }
    return best;
}

LS_INLINE v16 error_of(const float* v, const float* importance, int count, v16 scale, v16 low, float least, float most) {
    const v16 inverse = inverse_of(scale);
    v16 error = all(0.0f);
    for (int i = 0; i < count; i++) {
        const v16 x = load(v + 16 * i), away = fma(nearest((x - low) * inverse, least, most), scale, low) - x;
        error = fma(away * all(importance[i]), away, error);
    }
    return error;
}

LS_INLINE void take_steps(const float* v, int count, v16 scale, v16 low, float least, float most, int8_t* steps) {
    const v16 inverse = inverse_of(scale);
    for (int i = 0; i < count; i++) to_bytes(rounded(nearest((load(v + 16 * i) - low) * inverse, least, most)), steps + 16 * i);
}

LS_INLINE v16 within(v16 v, float least, float most) { return smaller_of(larger_of(v, all(least)), all(most)); }

void round_q4_k(const float* v, const float* importance, RoundedBlock* to) {
    Line lines[8];
    v16 largest = all(0.0f), lowest = all(0.0f);
    for (int g = 0; g < 8; g++) {
        lines[g] = fit_line(v + 512 * g, importance + 32 * g);
        largest = larger_of(largest, lines[g].scale), lowest = larger_of(lowest, -lines[g].low);
    }
    const v16 d = in_halves(largest / all(63.0f), to->scale), e = in_halves(lowest / all(63.0f), to->minimum);
    for (int g = 0; g < 8; g++) {
        const float *x = v + 512 * g, *w = importance + 32 * g;
        const v16 scale = nearest(lines[g].scale * inverse_of(d), 0, 63), minimum = nearest(-lines[g].low * inverse_of(e), 0, 63);
        v16 least = all(3e38f), scales = scale, minima = minimum;
        for (int t = 0; t < 9; t++) {
            const v16 s = within(scale + all((float)(t % 3 - 1)), 0, 63), m = within(minimum + all((float)(t / 3 - 1)), 0, 63);
            const v16 error = error_of(x, w, 32, s * d, -(m * e), 0, 15);
            const i16 better = error < least;
            least = chosen(better, error, least), scales = chosen(better, s, scales), minima = chosen(better, m, minima);
        }
        to_bytes(rounded(scales), to->scales[g]), to_bytes(rounded(minima), to->minima[g]);
        take_steps(x, 32, scales * d, -(minima * e), 0, 15, to->steps[32 * g]);
    }
}

void round_q6_k(const float* v, const float* importance, RoundedBlock* to) {
    v16 found[16], largest = all(0.0f);
    for (int g = 0; g < 16; g++) {
        found[g] = fit_scale(v + 256 * g, importance + 16 * g, 16, 32);
        largest = chosen(absolute(found[g]) > absolute(largest), found[g], largest);
    }
    const v16 d = in_halves(largest / all(-128.0f), to->scale);  // so that the largest becomes -128
    for (int g = 0; g < 16; g++) {
        const float *x = v + 256 * g, *w = importance + 16 * g;
        const v16 scale = nearest(found[g] * inverse_of(d), -128, 127);
        v16 least = all(3e38f), scales = scale;
        for (int t = -1; t <= 1; t++) {
            const v16 s = within(scale + all((float)t), -128, 127), error = error_of(x, w, 16, s * d, all(0.0f), -32, 31);
            const i16 better = error < least;
            least = chosen(better, error, least), scales = chosen(better, s, scales);
        }
        to_bytes(rounded(scales), to->scales[g]);
        take_steps(x, 16, scales * d, all(0.0f), -32, 31, to->steps[16 * g]);
    }
}

void round_to_half(const float* v, const float* importance, float half, RoundedBlock* to) {  // Q4_0 and Q5_0
    const v16 scale = in_halves(fit_scale(v, importance, 32, half), to->scale);
    take_steps(v, 32, scale, all(0.0f), -half, half - 1, to->steps[0]);
}

void round_to_eight(const float* v, RoundedBlock* to) {  // the largest weight becomes 127
    v16 largest = all(0.0f);
    for (int i = 0; i < 32; i++) largest = larger_of(largest, absolute(load(v + 16 * i)));
    take_steps(v, 32, in_halves(largest / all(127.0f), to->scale), all(0.0f), -127, 127, to->steps[0]);
}

void round_block(int type, const float* v, const float* importance, RoundedBlock* to) {
    switch (type) {
        case LS_Q4_0: round_to_half(v, importance, 8, to); break;
        case LS_Q5_0: round_to_half(v, importance, 16, to); break;
        case LS_Q8_0: round_to_eight(v, to); break;
        case LS_Q4_K: round_q4_k(v, importance, to); break;
        case LS_Q6_K: round_q6_k(v, importance, to); break;
    }
    i16 odd = {0};
    for (int i = 0; i < find_layout(type)->inputs; i++) odd |= load(v + 16 * i) - load(v + 16 * i) != all(0.0f);
    for (int j = 0; j < 16; j++)
        if (odd[j]) to->scale[j] = 0x7e00;  // NaN, which the caller refuses
}

// Packing, for 16 channels at a time, a lane each: v [count][16] are `count` inputs that share a scale.

void extremes(const float* v, int count, float* found) {  // of the largest absolute value, with its sign; NaN for NaN and inf
    v16 largest = all(0.0f);
    i16 odd = {0};
    for (int i = 0; i < count; i++) {
        const v16 x = load(v + 16 * i);
        odd |= x - x != all(0.0f);
        largest = chosen((as_bits(x) & 0x7fffffff) > (as_bits(largest) & 0x7fffffff), x, largest);
    }
    store(found, chosen(odd, all(__builtin_nanf("")), largest));
}

void quantise(const float* v, int count, const float* scales, int8_t* steps) {  // -> [count][16], -127 to 127
    const v16 scale = load(scales);
    for (int i = 0; i < count; i++) {
        const v16 ratio = load(v + 16 * i) / scale;
        const v16 known = chosen(ratio == ratio, ratio, all(-127.0f));
        to_bytes(rounded(smaller_of(larger_of(known, all(-127.0f)), all(127.0f))), steps + 16 * i);
    }
}
