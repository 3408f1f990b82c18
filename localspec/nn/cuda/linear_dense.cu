// y [rows, out] = x [rows, in] W^T + b in 16 bits for up to 8 * TILES rows. A row's bits do not depend on the other rows.
//
// A block computes 16 channels at a time. Each of its warps multiplies every WARPS-th piece of 32 inputs, of which a thread
// loads eight neighbours: the order in which a tensor core takes inputs does not matter if it is the same for W and x.

__device__ __forceinline__ uint4 once(const uint4* place) {
    uint4 read;
    asm volatile("ld.global.nc.L1::no_allocate.L2::128B.v4.u32 {%0, %1, %2, %3}, [%4];"
        : "=r"(read.x), "=r"(read.y), "=r"(read.z), "=r"(read.w) : "l"(place));
    return read;
}

extern "C" __global__ void __launch_bounds__(32 * WARPS) linear_dense(
    const uint4* weight, const uint4* x, const u16* bias, u16* y, int rows, int eights, int out) {
    __shared__ __align__(16) float found[WARPS][128];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
    const uint4 none = make_uint4(0, 0, 0, 0);
    for (int first = blockIdx.x * 16; first < out; first += gridDim.x * 16) {
        const uint4* low = weight + (size_t)min(first + g, out - 1) * eights;
        const uint4* high = weight + (size_t)min(first + g + 8, out - 1) * eights;
        float sums[TILES][4] = {};
        for (int piece = warp * 4 + t; piece - t < eights; piece += 4 * WARPS * AHEAD) {
            uint4 a[AHEAD], b[AHEAD];
#pragma unroll
            for (int next = 0; next < AHEAD; next++) {
                int place = min(piece + 4 * WARPS * next, eights - 1);  // after the last one x is zero
                a[next] = once(low + place);
                b[next] = once(high + place);
            }
#pragma unroll
            for (int next = 0; next < AHEAD; next++) {
                int place = piece + 4 * WARPS * next;
#pragma unroll
                for (int tile = 0; tile < TILES; tile++) {
                    int row = tile * 8 + g;
                    uint4 of = place < eights && row < rows ? __ldg(x + (size_t)row * eights + place) : none;
                    multiply(sums[tile], a[next].x, b[next].x, a[next].y, b[next].y, of.x, of.y);
                    multiply(sums[tile], a[next].z, b[next].z, a[next].w, b[next].w, of.z, of.w);
                }
            }
        }
        put_together(found, sums, bias, y, first, out, rows);
    }
}
