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

// Where v is rounded to `steps` of scales [16]: the sums of importance * v * step and importance * step^2. Their quotient
// is the scale that fits those steps best, and the first one's square by the second what it takes from the squared error.
void fit_steps(const float* v, const float* importance, int count, const float* scales, float* products, float* squares) {
    const v16 inverse = all(1.0f) / load(scales), shift = all(12582912.0f);
    v16 product = all(0.0f), square = all(0.0f);
    for (int i = 0; i < count; i++) {
        const v16 x = load(v + 16 * i);
        const v16 step = smaller_of(larger_of(x * inverse, all(-8.0f)), all(7.0f)) + shift - shift;
        const v16 weighted = step * all(importance[i]);
        product = product + weighted * x;
        square = square + weighted * step;
    }
    store(products, product);
    store(squares, square);
}

void quantise(const float* v, int count, const float* scales, float least, float most, int8_t* steps) {  // -> [count][16]
    const v16 scale = load(scales);
    for (int i = 0; i < count; i++) {
        const v16 ratio = load(v + 16 * i) / scale;
        const v16 known = chosen(ratio == ratio, ratio, all(least));
        to_bytes(rounded(smaller_of(larger_of(known, all(least)), all(most))), steps + 16 * i);
    }
}
