// Advice to the system on a mapped file. It changes no bits, only when pages are read; if the system refuses it, pages are
// read when they are needed.
#include "functions.h"

#if defined(_WIN32)
#include <windows.h>
#else
#include <sys/mman.h>
#include <unistd.h>
#endif

namespace ls {

#if defined(_WIN32)

void expect_random(const void*, size_t) {}

void read_soon(const void* data, size_t bytes) {
    WIN32_MEMORY_RANGE_ENTRY range{(void*)data, bytes};
    if (bytes) PrefetchVirtualMemory(GetCurrentProcess(), 1, &range, 0);
}

#else

namespace {

// Linux cuts longer requests to the larger of read_ahead_kb, usually 128, and max_sectors_kb.
constexpr size_t REQUEST = 128 << 10;

// All pages that hold some of the data, in pieces of at most `most` bytes.
void advise(const void* data, size_t bytes, size_t most, int advice) {
    const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), first = (uintptr_t)data / page * page;
    const size_t length = bytes ? (uintptr_t)data - first + bytes : 0;
    for (size_t at = 0; at < length; at += most) madvise((void*)(first + at), length - at < most ? length - at : most, advice);
}

}  // namespace

void expect_random(const void* data, size_t bytes) { advise(data, bytes, bytes + REQUEST, MADV_RANDOM); }

void read_soon(const void* data, size_t bytes) { advise(data, bytes, REQUEST, MADV_WILLNEED); }

#endif

}  // namespace ls
