// y [rows, out] = x [rows, in] W^T + b for up to 8 * TILES rows, with W in NF4. Bits of a row as in linear_dense.
//
// W is laid out by `row_kernels.tiled`: for 16 channels and a block of 64 inputs, the 32 threads of a warp read neighbouring
// parts of 16 bytes each. Thread (g, t) = (lane / 4, lane % 4) has inputs 16t to 16t+15 of channels g and g+8; two levels
// a byte, the first in its upper half. A block of a channel has a scale of eight bits, and 256 of these share another scale.
//
// Each warp multiplies every WARPS-th block by levels without their scale; the sum over the block is multiplied by it. The
// levels of a byte are looked up in shared memory, in a separate table for each lane, since lanes that read the same bank
// wait for each other. A warp computes four blocks in turn: thread t finds the scales of the t-th. While one is computed,
// the next ones are loaded, also those of the next channels.

struct Scales {  // of channels g and g+8 in the block of this thread
    uchar2 bits[TALL];
    float scale[TALL][2];
};

__device__ __forceinline__ uint4 once(const uint4* place) {
    uint4 read;
    asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
        : "=r"(read.x), "=r"(read.y), "=r"(read.z), "=r"(read.w) : "l"(place));
    return read;
}

// The two levels of a byte of `four`; `lane_bits` is where this lane's table begins.
__device__ __forceinline__ u32 meant(const u32* table, u32 four, u32 byte, u32 lane_bits) {
    const u32 moved = byte == 0 ? four << 7 : four >> (8 * byte - 7);  // by 128 bytes for each
    return *(const u32*)((const char*)table + ((moved & 0x7f80) | lane_bits));
}

extern "C" __global__ void __launch_bounds__(32 * WARPS) linear_nf4(
    const uint4* packed, const uchar2* scales, const float* scale_code, const float* scale_scales, const float* offset,
    const float* levels, const uint4* x, const u16* bias, u16* y, u32 rows, u32 blocks, u32 out) {
    __shared__ __align__(16) float found[WARPS][128];
    __shared__ __align__(128) u32 meaning[256][32];
    __shared__ float code[256];
    const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
    const u32 fours = (blocks + 4 * WARPS - 1) / (4 * WARPS);  // of blocks of a warp for the same channels
    const u32 stride = gridDim.x * 16 * TALL;

    u32 first_to_load = blockIdx.x * 16 * TALL, four_to_load = 0;
    u32 tiles[TALL], place_to_load = warp;  // of which four blocks are loaded next

    auto next_four = [&]() {
        place_to_load = warp + four_to_load * 4 * WARPS;
#pragma unroll
        for (u32 tall = 0; tall < TALL; tall++) tiles[tall] = min(first_to_load + 16 * tall, out - 1) / 16;
        if (++four_to_load == fours) four_to_load = 0, first_to_load += stride;
    };
    auto load_block = [&](uint4 (&held)[TALL], u32 next) {
        const u32 place = place_to_load + next * WARPS;
#pragma unroll
        for (u32 tall = 0; tall < TALL; tall++)
            if (place < blocks) held[tall] = once(packed + ((size_t)(tiles[tall] * blocks + place) * 32 + lane));
    };
    auto load_scales = [&](Scales& held) {
        const u32 place = min(place_to_load + t * WARPS, blocks - 1);
#pragma unroll
        for (u32 tall = 0; tall < TALL; tall++) {
            const u32 channel = 16 * tiles[tall] + g;
            held.bits[tall] = __ldg(scales + ((size_t)(tiles[tall] * blocks + place) * 8 + g));
            held.scale[tall][0] = __ldg(scale_scales + (min(channel, out - 1) * blocks + place) / 256);
            held.scale[tall][1] = __ldg(scale_scales + (min(channel + 8, out - 1) * blocks + place) / 256);
        }
    };

    uint4 held[4][TALL];
    Scales of_next;
    u32 first = first_to_load, four = 0;
    if (first >= out) return;
    next_four();
#pragma unroll
    for (u32 next = 0; next < 4; next++) load_block(held[next], next);
    load_scales(of_next);
    const u32 level = narrow(levels[lane % 16]), lane_bits = lane * 4;
    for (u32 byte = warp; byte < 256; byte += WARPS)
        meaning[byte][lane] = __shfl_sync(~0u, level, byte / 16) | __shfl_sync(~0u, level, byte % 16) << 16;
    for (u32 place = threadIdx.x; place < 256; place += 32 * WARPS) code[place] = scale_code[place];
    const float middle = *offset;
    __syncthreads();

    float sums[TALL][TILES][4] = {};
    while (first < out) {
        float own[TALL][2];
#pragma unroll
        for (u32 tall = 0; tall < TALL; tall++) {
            own[tall][0] = fmaf(code[of_next.bits[tall].x], of_next.scale[tall][0], middle);
            own[tall][1] = fmaf(code[of_next.bits[tall].y], of_next.scale[tall][1], middle);
        }
        const u32 begin = warp + four * 4 * WARPS;
        const bool more = first_to_load < out;
        if (more) {
            next_four();
            load_scales(of_next);
        }
#pragma unroll
        for (u32 next = 0; next < 4; next++) {
            const u32 place = begin + next * WARPS;
            if (place < blocks) {
                uint4 of[TILES][2];
#pragma unroll
                for (u32 tile = 0; tile < TILES; tile++) {
                    const u32 row = tile * 8 + g;
                    of[tile][0] = of[tile][1] = make_uint4(0, 0, 0, 0);
                    if (row < rows) {
                        const uint4* from = x + ((size_t)(row * blocks + place) * 8 + t * 2);
                        of[tile][0] = __ldg(from), of[tile][1] = __ldg(from + 1);
                    }
                }
#pragma unroll
                for (u32 tall = 0; tall < TALL; tall++) {
                    const uint4 bytes = held[next][tall];
                    const float low_scale = __shfl_sync(~0u, own[tall][0], lane / 4 * 4 + next);
                    const float high_scale = __shfl_sync(~0u, own[tall][1], lane / 4 * 4 + next);
                    u32 low[8], high[8];
#pragma unroll
                    for (u32 byte = 0; byte < 8; byte++) {
                        low[byte] = meant(meaning[0], byte < 4 ? bytes.x : bytes.y, byte % 4, lane_bits);
                        high[byte] = meant(meaning[0], byte < 4 ? bytes.z : bytes.w, byte % 4, lane_bits);
                    }
#pragma unroll
                    for (u32 tile = 0; tile < TILES; tile++) {
                        float part[4] = {};
                        multiply(part, low[0], high[0], low[1], high[1], of[tile][0].x, of[tile][0].y);
                        multiply(part, low[2], high[2], low[3], high[3], of[tile][0].z, of[tile][0].w);
                        multiply(part, low[4], high[4], low[5], high[5], of[tile][1].x, of[tile][1].y);
                        multiply(part, low[6], high[6], low[7], high[7], of[tile][1].z, of[tile][1].w);
                        float (&sum)[4] = sums[tall][tile];
                        sum[0] = fmaf(low_scale, part[0], sum[0]), sum[1] = fmaf(low_scale, part[1], sum[1]);
                        sum[2] = fmaf(high_scale, part[2], sum[2]), sum[3] = fmaf(high_scale, part[3], sum[3]);
                    }
                }
            }
            if (more) load_block(held[next], next);
        }
        if (++four < fours) continue;
#pragma unroll
        for (u32 tall = 0; tall < TALL; tall++) {
            put_together(found, sums[tall], bias, y, first + 16 * tall, out, rows);
#pragma unroll
            for (u32 tile = 0; tile < TILES; tile++)
                sums[tall][tile][0] = sums[tall][tile][1] = sums[tall][tile][2] = sums[tall][tile][3] = 0.0f;
        }
        four = 0, first += stride;
    }
}

// W [out, 64 * blocks] itself in 16 bits, for many rows. A warp computes a block of 16 channels.
extern "C" __global__ void nf4_dense(
    const uint4* packed, const uchar2* scales, const float* scale_code, const float* scale_scales, const float* offset,
    const float* levels, uint4* dense, u32 blocks, u32 out) {
    const u32 lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const u32 at = blockIdx.x * WARPS + threadIdx.x / 32, tile = at / blocks, place = at % blocks;
    if (16 * tile >= out) return;
    const uint4 bytes = once(packed + (size_t)at * 32 + lane);
    const uchar2 bits = scales[(size_t)at * 8 + g];
#pragma unroll
    for (u32 half = 0; half < 2; half++) {
        const u32 channel = 16 * tile + 8 * half + g;
        if (channel >= out) break;
        const u32 words[2] = {half ? bytes.z : bytes.x, half ? bytes.w : bytes.y};
        const float scale =
            fmaf(scale_code[half ? bits.y : bits.x], __ldg(scale_scales + (channel * blocks + place) / 256), *offset);
        u32 pairs[8];
#pragma unroll
        for (u32 byte = 0; byte < 8; byte++) {
            const u32 both = words[byte / 4] >> byte % 4 * 8 & 255;
            pairs[byte] = narrow(__ldg(levels + both / 16) * scale) | (u32)narrow(__ldg(levels + both % 16) * scale) << 16;
        }
        uint4* to = dense + ((size_t)channel * blocks + place) * 8 + 2 * t;
        to[0] = make_uint4(pairs[0], pairs[1], pairs[2], pairs[3]);
        to[1] = make_uint4(pairs[4], pairs[5], pairs[6], pairs[7]);
    }
}
