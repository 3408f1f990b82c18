// What packing computes for 16 channels at a time, a lane each: v [count][16] are `count` inputs that share a scale.

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

// The sum of importance * (v - rounded)^2, where v is rounded to steps of scales [16].
void squared_errors(const float* v, const float* importance, int count, const float* scales, float* errors) {
    const v16 scale = load(scales), inverse = all(1.0f) / scale, shift = all(12582912.0f);
    v16 sum = all(0.0f);
    for (int i = 0; i < count; i++) {
        const v16 x = load(v + 16 * i);
        const v16 step = smaller_of(larger_of(x * inverse, all(-8.0f)), all(7.0f)) + shift - shift;
        const v16 error = x - step * scale;
        sum = sum + error * error * load(importance + 16 * i);
    }
    store(errors, sum);
}

void quantise(const float* v, int count, const float* scales, float least, float most, int8_t* steps) {  // -> [count][16]
    const v16 scale = load(scales);
    for (int i = 0; i < count; i++) {
        const v16 ratio = load(v + 16 * i) / scale;
        const v16 known = chosen(ratio == ratio, ratio, all(least));
        to_bytes(rounded(smaller_of(larger_of(known, all(least)), all(most))), steps + 16 * i);
    }
}
