// All kernels. build.py compiles this file once for each instruction set, with LS_KERNELS_* for the set. Then LS_TARGET_*
// tells vector.h and tile.h, and LS_FEATURES the compiler, which instructions there are. Everything is local to the object
// file and calls nothing of the standard library, so that the linker can never replace a function of one set by another's.
#include "kernels.h"

#if defined(LS_KERNELS_C)
#define LS_TABLE c_kernels
#define LS_BUILT

#elif defined(LS_KERNELS_NEON)
#define LS_TABLE neon_kernels
#if defined(__aarch64__)
#include <arm_neon.h>
#define LS_BUILT
#define LS_TARGET_NEON
#if defined(__clang__)
#define LS_FEATURES "dotprod"
#else
#define LS_FEATURES "+dotprod"
#endif
#endif

#elif defined(LS_KERNELS_AVX2)
#define LS_TABLE avx2_kernels
#define LS_TARGET_AVX2
#define LS_FEATURES "avx2,fma,f16c"

#elif defined(LS_KERNELS_AVX_VNNI)
#define LS_TABLE avx_vnni_kernels
#define LS_TARGET_AVX2
#define LS_TARGET_AVX_VNNI
// The instruction has two encodings. With AVX-512's encoding this file can be tested on CPUs without AVX-VNNI.
#if defined(LS_TEST_VNNI_AS_AVX512)
#define LS_FEATURES "avx2,fma,f16c,avx512f,avx512vl,avx512vnni"
#define DPBUSD _mm256_dpbusd_epi32
#else
#define LS_FEATURES "avx2,fma,f16c,avxvnni"
#define DPBUSD _mm256_dpbusd_avx_epi32
#endif

#elif defined(LS_KERNELS_AVX512)
#define LS_TABLE avx512_kernels
#define LS_TARGET_AVX512
#define LS_FEATURES "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c"
#endif

#if defined(__x86_64__) && (defined(LS_TARGET_AVX2) || defined(LS_TARGET_AVX512))
#include <immintrin.h>
#define LS_BUILT
#endif

#if defined(LS_BUILT)
#if defined(LS_FEATURES)
#define LS_TEXT(x) #x
#define LS_PRAGMA(x) _Pragma(LS_TEXT(x))
#if defined(__clang__)
LS_PRAGMA(clang attribute push(__attribute__((target(LS_FEATURES))), apply_to = function))
#else
LS_PRAGMA(GCC target(LS_FEATURES))
#endif
#endif
#if !defined(__clang__)
#pragma GCC diagnostic ignored "-Wpsabi"  // vectors are passed only between inlined functions
#endif

namespace ls {
namespace {

#include "vector.h"

#include "tile.h"

#include "row_kernels.h"

#include "linear_kernels.h"

#include "attention_kernels.h"

#include "delta_kernels.h"

#include "block_lanes.h"

#include "rounding_kernels.h"

#include "block_types.h"

#include "block_kernels.h"

const Kernels TABLE = {inverse_rms, normalise, prepare, multiply, prepare_blocks, multiply_blocks, shrink, expand, place, attend, combine,
                       to_cells, from_cells, gates, recur, recurring_scratch,
                       maximum, exponential_sum, read, extremes, quantise, read_blocks, round_block};

}  // namespace
}  // namespace ls

#if defined(LS_FEATURES) && defined(__clang__)
#pragma clang attribute pop
#endif

const ls::Kernels* ls::LS_TABLE() { return &ls::TABLE; }
#else
const ls::Kernels* ls::LS_TABLE() { return nullptr; }
#endif
