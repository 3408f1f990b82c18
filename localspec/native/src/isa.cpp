#include "kernels.h"

#include <atomic>
#if defined(__x86_64__)
#include <cpuid.h>
#elif defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#elif defined(__aarch64__) && defined(_WIN32)
#include <windows.h>
#endif

namespace ls {
namespace {

const char* const NAMES[] = {"c", "neon", "avx2", "avx_vnni", "avx512_vnni"};
constexpr int COUNT = sizeof NAMES / sizeof *NAMES;
const Kernels* (*const TABLES[COUNT])() = {c_kernels, neon_kernels, avx2_kernels, avx_vnni_kernels, avx512_kernels};

#if defined(__x86_64__)
bool bit(unsigned word, int number) { return word >> number & 1; }

bool cpu_has(int isa) {
#if defined(LS_TEST_VNNI_AS_AVX512)  // see kernels.cpp
    if (isa == LS_AVX_VNNI) isa = LS_AVX512_VNNI;
#endif
    unsigned a, b, c, d, a7, b7, c7, d7, low, high;
    if (!__get_cpuid_count(1, 0, &a, &b, &c, &d) || !__get_cpuid_count(7, 0, &a7, &b7, &c7, &d7)) return false;
    if (!bit(c, 27)) return false;  // OSXSAVE: xgetbv says which registers the system saves
    asm volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    const bool avx2 = (low & 0x6) == 0x6 && bit(b7, 5) && bit(c, 12) && bit(c, 29);  // AVX2, FMA, F16C
    if (isa == LS_AVX2) return avx2;
    if (isa == LS_AVX512_VNNI)  // F, DQ, BW, VL, VNNI
        return avx2 && (low & 0xe6) == 0xe6 && bit(b7, 16) && bit(b7, 17) && bit(b7, 30) && bit(b7, 31) && bit(c7, 11);
    unsigned subleaves = a7;
    if (isa != LS_AVX_VNNI || !avx2 || subleaves < 1 || !__get_cpuid_count(7, 1, &a7, &b7, &c7, &d7)) return false;
    return bit(a7, 4);
}
#elif defined(__aarch64__)
bool cpu_has(int isa) {
    if (isa != LS_NEON) return false;
#if defined(__linux__)
    return getauxval(AT_HWCAP) >> 20 & 1;  // HWCAP_ASIMDDP
#elif defined(_WIN32)
    return IsProcessorFeaturePresent(43);  // PF_ARM_V82_DP_INSTRUCTIONS_AVAILABLE
#else
    return true;  // every ARM processor of Apple has it
#endif
}
#else
bool cpu_has(int) { return false; }
#endif

bool intel() {
#if defined(__x86_64__)
    unsigned a, b, c, d;
    return __get_cpuid(0, &a, &b, &c, &d) && b == signature_INTEL_ebx;
#else
    return false;
#endif
}

bool zen5() {  // AMD's family 0x1a
#if defined(__x86_64__)
    unsigned a, b, c, d;
    if (!__get_cpuid(0, &a, &b, &c, &d) || b != signature_AMD_ebx || !__get_cpuid(1, &a, &b, &c, &d)) return false;
    return (a >> 8 & 15) == 15 && 15 + (a >> 20 & 255) >= 0x1a;
#else
    return false;
#endif
}

std::atomic<int> in_use{-1};

}  // namespace

const bool made_by_intel = intel(), prefetches_alone = !made_by_intel && !zen5();

const char* isa_name(int isa) { return isa >= 0 && isa < COUNT ? NAMES[isa] : nullptr; }

bool isa_supported(int isa) { return isa == LS_C || (isa_name(isa) && TABLES[isa]() && cpu_has(isa)); }

static int isa_best() {
    for (int isa = COUNT - 1; isa > LS_C; isa--)
        if (isa_supported(isa)) return isa;
    return LS_C;
}

int isa_in_use() {
    if (in_use.load(std::memory_order_relaxed) < 0) in_use = isa_best();
    return in_use.load(std::memory_order_relaxed);
}

void isa_use(int isa) { in_use = isa; }

const Kernels& kernels() { return *TABLES[isa_in_use()](); }

}  // namespace ls
