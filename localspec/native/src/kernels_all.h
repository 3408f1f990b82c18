// All kernels, for the instruction set of the including file: LS_FEATURES for the compiler, LS_TARGET_* for
// vector.h and tile.h. Everything is local to that file and calls nothing of the standard library, so that the linker can
// never replace a function of one instruction set by another's.
#if defined(LS_FEATURES) && defined(__clang__)
#define LS_TEXT(x) #x
#define LS_PRAGMA(x) _Pragma(LS_TEXT(x))
LS_PRAGMA(clang attribute push(__attribute__((target(LS_FEATURES))), apply_to = function))
#elif defined(LS_FEATURES)
#define LS_TEXT(x) #x
#define LS_PRAGMA(x) _Pragma(LS_TEXT(x))
LS_PRAGMA(GCC target(LS_FEATURES))
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
