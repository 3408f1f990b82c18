#include "kernels.h"

#if defined(__x86_64__)
#include <immintrin.h>

// The instruction has two encodings. With AVX-512's encoding this file can be tested on CPUs without AVX-VNNI.
#if defined(LS_TEST_VNNI_AS_AVX512)
#define LS_FEATURES "avx2,fma,f16c,avx512f,avx512vl,avx512vnni"
#define DPBUSD _mm256_dpbusd_epi32
#else
#define LS_FEATURES "avx2,fma,f16c,avxvnni"
#define DPBUSD _mm256_dpbusd_avx_epi32
#endif
#define LS_TARGET_AVX2
#define LS_TARGET_AVX_VNNI
#include "kernels_all.h"

const ls::Kernels* ls::avx_vnni_kernels() { return &ls::TABLE; }
#else
const ls::Kernels* ls::avx_vnni_kernels() { return nullptr; }
#endif
