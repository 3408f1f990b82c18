// Attention of some queries of each key head. A row's result has the same bits by itself and in any tree.
//
// Slots are read in pages of PAGE. Within a page, weights and weighted values are added slot by slot; masked slots add
// exact zeros, wherever they are. Then the pages are added one after another. So a row's ancestors may be anywhere in
// their page, but each must be in the same page as in plain decoding.

#define NEVER __int_as_float(0xff800000)  // minus infinity
#define PAIRS (HEAD / 2)
#define GROUPS (THREADS / PAIRS)
#define OWN ((ROWS + GROUPS - 1) / GROUPS)

struct __align__(2 * sizeof(number)) Pair { number first, second; };
struct __align__(16) Several { number one[16 / sizeof(number)]; };  // read by a thread at once
#define SEVERAL (16 / sizeof(number))
#define AT_ONCE 32  // slots whose values a thread loads ahead

// mixed [heads, pages, rows, HEAD] has the sums of each page; greatest and totals are [heads, pages, rows].
extern "C" __global__ void __launch_bounds__(THREADS) attend(
    const number* queries, const number* keys, const number* values, const number* mask, float* mixed, float* greatest,
    float* totals, int rows, int slots, long long head_stride, float scale) {
    __shared__ float of_queries[ROWS][HEAD], weights[ROWS][PAGE], most[ROWS];
    __shared__ int last;
    const int head = blockIdx.x, page = blockIdx.y, first_row = blockIdx.z * ROWS, count = min(ROWS, rows - first_row);
    const int first = page * PAGE, length = min(PAGE, slots - first);
    if (threadIdx.x == 0) last = 0;
    for (int place = threadIdx.x; place < ROWS * HEAD; place += THREADS) {
        int row = place / HEAD;
        of_queries[row][place % HEAD] =
            row < count ? wider(queries[((size_t)head * rows + first_row + row) * HEAD + place % HEAD]) * scale : 0.0f;
    }
    __syncthreads();
    const Several* of_keys = (const Several*)(keys + head * head_stride + (size_t)first * HEAD);
    const Pair* of_values = (const Pair*)(values + head * head_stride + (size_t)first * HEAD);
    for (int slot = threadIdx.x; slot < PAGE; slot += THREADS) {
        float scores[ROWS] = {};
        bool seen = false;
        if (slot < length) {
#pragma unroll 2
            for (int part = 0; part < HEAD / SEVERAL; part++) {
                const Several read = of_keys[(size_t)slot * (HEAD / SEVERAL) + part];
#pragma unroll
                for (int one = 0; one < SEVERAL; one++) {
                    const float key = wider(read.one[one]);
#pragma unroll
                    for (int row = 0; row < ROWS; row++)
                        scores[row] = fmaf(of_queries[row][part * SEVERAL + one], key, scores[row]);
                }
            }
        }
#pragma unroll
        for (int row = 0; row < ROWS; row++) {
            bool sees = slot < length && row < count && wider(mask[(size_t)(first_row + row) * slots + first + slot]) == 0.0f;
            weights[row][slot] = sees ? scores[row] : NEVER;
            seen |= sees;
        }
        if (seen) atomicMax(&last, slot + 1);
    }
    __syncthreads();
    for (int row = threadIdx.x / 32; row < ROWS; row += THREADS / 32) {
        float found = NEVER;
        for (int slot = threadIdx.x % 32; slot < PAGE; slot += 32) found = fmaxf(found, weights[row][slot]);
        for (int other = 16; other; other /= 2) found = fmaxf(found, __shfl_xor_sync(~0u, found, other));
        if (threadIdx.x % 32 == 0) most[row] = found;
    }
    __syncthreads();
    for (int place = threadIdx.x; place < ROWS * PAGE; place += THREADS) {
        int row = place / PAGE, slot = place % PAGE;
        weights[row][slot] = weights[row][slot] == NEVER ? 0.0f : expf(weights[row][slot] - most[row]);
    }
    __syncthreads();
    const int pair = threadIdx.x % PAIRS, group = threadIdx.x / PAIRS;
    if (group >= GROUPS) return;
    float sums[OWN][2] = {}, total[OWN] = {};
    for (int begin = 0; begin < last; begin += AT_ONCE) {
        Pair under_way[AT_ONCE];
#pragma unroll
        for (int next = 0; next < AT_ONCE; next++)  // after the last one weights are zero
            under_way[next] = of_values[(size_t)min(begin + next, length - 1) * PAIRS + pair];
#pragma unroll
        for (int next = 0; next < AT_ONCE; next++) {
            const float one = wider(under_way[next].first), other = wider(under_way[next].second);
#pragma unroll
            for (int own = 0; own < OWN; own++) {
                int row = group + own * GROUPS;
                float weight = row < ROWS ? weights[row][begin + next] : 0.0f;
                sums[own][0] = fmaf(weight, one, sums[own][0]), sums[own][1] = fmaf(weight, other, sums[own][1]);
                total[own] += weight;
            }
        }
    }
#pragma unroll
    for (int own = 0; own < OWN; own++) {
        int row = group + own * GROUPS;
        if (row >= count) continue;
        size_t place = ((size_t)head * gridDim.y + page) * rows + first_row + row;
        ((float2*)mixed)[place * PAIRS + pair] = make_float2(sums[own][0], sums[own][1]);
        if (pair == 0) greatest[place] = most[row], totals[place] = total[own];
    }
}

// Add the pages of each row, one after another; out [heads, rows, HEAD].
extern "C" __global__ void add_pages(
    const float* mixed, const float* greatest, const float* totals, number* out, int rows, int pages) {
    const int head = blockIdx.x, row = blockIdx.y;
    float most = NEVER, total = 0.0f;
    for (int page = 0; page < pages; page++) most = fmaxf(most, greatest[((size_t)head * pages + page) * rows + row]);
    for (int page = 0; page < pages; page++) {
        size_t place = ((size_t)head * pages + page) * rows + row;
        total = fmaf(totals[place], expf(greatest[place] - most), total);
    }
    for (int channel = threadIdx.x; channel < HEAD; channel += blockDim.x) {
        float sum = 0.0f;
        for (int page = 0; page < pages; page++) {
            size_t place = ((size_t)head * pages + page) * rows + row;
            sum = fmaf(mixed[place * HEAD + channel], expf(greatest[place] - most), sum);
        }
        out[((size_t)head * rows + row) * HEAD + channel] = narrower(sum / total);
    }
}
