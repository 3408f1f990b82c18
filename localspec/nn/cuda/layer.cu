// The operations between a layer's products, row by row. Results are rounded where torch's operations round them.

struct __align__(16) Several { number one[16 / sizeof(number)]; };  // read by a thread at once
#define SEVERAL (16 / sizeof(number))

__device__ __forceinline__ float rounded(float one) { return wider(narrower(one)); }

// sum = x + given, if it is given; normed = sum / root(mean of its squares + epsilon) * (weight + offset). One block per row.
extern "C" __global__ void __launch_bounds__(THREADS) add_norm(
    const Several* x, const Several* given, const Several* weight, Several* sum, Several* normed, int parts, float offset,
    float epsilon) {
    __shared__ float found[THREADS / 32];
    const size_t row = (size_t)blockIdx.x * parts;
    float squares = 0.0f;
    Several held[HELD];  // of a row of up to HELD * THREADS parts
#pragma unroll
    for (int turn = 0; turn < HELD; turn++) {
        const int part = threadIdx.x + turn * THREADS;
        if (part >= parts) break;
        held[turn] = x[row + part];
        if (given) {
            const Several other = given[row + part];
#pragma unroll
            for (int one = 0; one < SEVERAL; one++)
                held[turn].one[one] = narrower(wider(held[turn].one[one]) + wider(other.one[one]));
            sum[row + part] = held[turn];
        }
#pragma unroll
        for (int one = 0; one < SEVERAL; one++) squares = fmaf(wider(held[turn].one[one]), wider(held[turn].one[one]), squares);
    }
    for (int other = 16; other; other /= 2) squares += __shfl_xor_sync(~0u, squares, other);
    if (threadIdx.x % 32 == 0) found[threadIdx.x / 32] = squares;
    __syncthreads();
    squares = 0.0f;
    for (int warp = 0; warp < THREADS / 32; warp++) squares += found[warp];
    const float factor = rsqrtf(squares / (parts * SEVERAL) + epsilon);
#pragma unroll
    for (int turn = 0; turn < HELD; turn++) {
        const int part = threadIdx.x + turn * THREADS;
        if (part >= parts) break;
        const Several scale = weight[part];
        Several result;
#pragma unroll
        for (int one = 0; one < SEVERAL; one++)
            result.one[one] = narrower(wider(held[turn].one[one]) * factor * (wider(scale.one[one]) + offset));
        normed[row + part] = result;
    }
}

// out [rows, parts] = the activation of the first half of both [rows, 2 * parts], times the other half.
extern "C" __global__ void gated(const Several* both, Several* out, int rows, int parts) {
    const int place = blockIdx.x * blockDim.x + threadIdx.x;
    if (place >= rows * parts) return;
    const size_t from = (size_t)(place / parts) * 2 * parts + place % parts;
    const Several gate = both[from], up = both[from + parts];
    Several result;
#pragma unroll
    for (int one = 0; one < SEVERAL; one++) {
        const float x = wider(gate.one[one]);
#if GELU
        const float active = 0.5f * x * (1.0f + tanhf(0.79788456f * (x + 0.044715f * x * x * x)));
#else
        const float active = x / (1.0f + expf(-x));
#endif
        result.one[one] = narrower(rounded(active) * wider(up.one[one]));
    }
    out[place] = result;
}

// Rotate queries and keys of qkv [rows, heads + 2 * kv_heads, HEAD]. Put queries into grouped [kv_heads, group, rows, HEAD],
// and keys and values into a cache [kv_heads, capacity, HEAD], from slot `length` on, plus `start` if there is one.
// One block per row and head.
extern "C" __global__ void rotate_and_place(
    const number* qkv, const number* cosines, const number* sines, const long long* start, long long length,
    number* grouped, number* keys, number* values, int rows, int heads, int kv_heads, int rotary, long long head_stride) {
    const int row = blockIdx.x, head = blockIdx.y, group = heads / kv_heads, half = rotary / 2;
    const number* from = qkv + ((size_t)row * gridDim.y + head) * HEAD;
    number* to;
    if (head < heads)
        to = grouped + (((size_t)(head / group) * group + head % group) * rows + row) * HEAD;
    else
        to = (head < heads + kv_heads ? keys + (head - heads) * head_stride : values + (head - heads - kv_heads) * head_stride) +
             ((start ? *start : 0) + length + row) * HEAD;
    for (int channel = threadIdx.x; channel < HEAD; channel += blockDim.x) {
        if (head >= heads + kv_heads || channel >= rotary) {
            to[channel] = from[channel];
            continue;
        }
        const float turned = wider(from[channel < half ? channel + half : channel - half]);
        const float along = rounded(wider(from[channel]) * wider(cosines[row * rotary + channel]));
        to[channel] = narrower(fmaf(turned, wider(sines[row * rotary + channel]), along));
    }
}
