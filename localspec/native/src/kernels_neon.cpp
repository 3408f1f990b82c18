#include "kernels.h"

#if defined(__aarch64__)
#include <arm_neon.h>

#if defined(__clang__)
#define LS_FEATURES "dotprod"
#else
#define LS_FEATURES "+dotprod"
#endif
#define LS_TARGET_NEON
#include "kernels_all.h"

const ls::Kernels* ls::neon_kernels() { return &ls::TABLE; }
#else
const ls::Kernels* ls::neon_kernels() { return nullptr; }
#endif
