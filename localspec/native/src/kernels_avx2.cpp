#include "kernels.h"

#if defined(__x86_64__)
#include <immintrin.h>

#define LS_FEATURES "avx2,fma,f16c"
#define LS_TARGET_AVX2
#include "kernels_all.h"

const ls::Kernels* ls::avx2_kernels() { return &ls::TABLE; }
#else
const ls::Kernels* ls::avx2_kernels() { return nullptr; }
#endif
