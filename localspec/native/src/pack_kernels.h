// The kernels of packing, for 16 channels at a time, a lane each: v [count][16] are `count` inputs that share a scale.

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
