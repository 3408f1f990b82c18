#include "kernels.h"

#if defined(__x86_64__)
#include <immintrin.h>

#define LS_FEATURES "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c"
#define LS_TARGET_AVX512
#include "kernels_all.h"

const ls::Kernels* ls::avx512_kernels() { return &ls::TABLE; }
#else
const ls::Kernels* ls::avx512_kernels() { return nullptr; }
#endif
