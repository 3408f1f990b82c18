// Shared by all files: 16-bit floats, logarithm and exponential, memory aligned to cache lines, and errors as sentences.
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <new>

#include "localspec.h"

#define LS_INLINE inline __attribute__((always_inline))

namespace ls {
namespace {  // local to each file, because each is compiled for its own instruction set

template <class To, class From> LS_INLINE To bits_as(From from) {
    static_assert(sizeof(To) == sizeof(From), "");
    To to;
    memcpy(&to, &from, sizeof to);
    return to;
}

LS_INLINE int smaller(int a, int b) { return a < b ? a : b; }
LS_INLINE int larger(int a, int b) { return a > b ? a : b; }
LS_INLINE int ceil_div(int a, int b) { return (int)(((int64_t)a + b - 1) / b); }
LS_INLINE int64_t rounded_up(int64_t a, int64_t b) { return (a + b - 1) / b * b; }

LS_INLINE float bf16_to_float(uint16_t h) { return bits_as<float>((uint32_t)h << 16); }

LS_INLINE float half_to_float(uint16_t h) {
    const uint32_t sign = (uint32_t)(h & 0x8000) << 16, exponent = h >> 10 & 31, mantissa = h & 0x3ff;
    if (exponent == 0) {
        const float tiny = (float)mantissa * 5.9604644775390625e-8f;  // 2^-24
        return sign ? -tiny : tiny;
    }
    return bits_as<float>(sign | (exponent == 31 ? 0x7f800000 : (exponent + 112) << 23) | mantissa << 13);
}

LS_INLINE uint16_t float_to_half(float f) {  // to the nearest, ties to even
    uint32_t b = bits_as<uint32_t>(f);
    const uint32_t sign = b >> 16 & 0x8000;
    b &= 0x7fffffff;
    if (b > 0x7f800000) return (uint16_t)(sign | 0x7e00 | (b >> 13 & 0x3ff));  // NaN, as F16C and NEON keep it
    if (b >= 0x47800000) return (uint16_t)(sign | 0x7c00);
    if (b < 0x38800000) {  // the addition rounds
        const float shifted = bits_as<float>(b) + 0.5f;
        return (uint16_t)(sign | (bits_as<uint32_t>(shifted) - 0x3f000000));
    }
    b += 0xc8000fff + (b >> 13 & 1);
    return (uint16_t)(sign | b >> 13);
}

// Logarithm and exponential in double, by polynomials: the same bits everywhere, to about one unit in the last place.
constexpr double LN2_HIGH = 6.93147180369123816490e-01, LN2_LOW = 1.90821492927058770002e-10;

// The logarithm of a positive number that is not subnormal (fdlibm's e_log.c).
LS_INLINE double logarithm(double x) {
    const uint64_t bits = bits_as<uint64_t>(x);
    int exponent = (int)(bits >> 52) - 1023;
    double m = bits_as<double>((bits & 0xfffffffffffffu) | (uint64_t)1023 << 52);
    if (m > 1.4142135623730951) m *= 0.5, exponent++;
    const double f = m - 1, s = f / (2 + f), z = s * s, w = z * z;
    const double odd = w * (3.999999999940941908e-01 + w * (2.222219843214978396e-01 + w * 1.531383769920937332e-01));
    const double even = z * (6.666666666666735130e-01 + w * (2.857142874366239149e-01 + w * (1.818357216161805012e-01 + w * 1.479819860511658591e-01)));
    const double half = 0.5 * f * f, k = (double)exponent;
    return k * LN2_HIGH - ((half - (s * (half + (odd + even)) + k * LN2_LOW)) - f);
}

// The exponential of a number up to 0; 0 below -700 (fdlibm's e_exp.c).
LS_INLINE double falling_exponential(double x) {
    if (!(x > -700)) return x == x ? 0 : x;
    const double shift = 6755399441055744.0, k = (x * 1.44269504088896338700 + shift) - shift;
    const double high = x - k * LN2_HIGH, low = k * LN2_LOW, r = high - low, t = r * r;
    const double c = r - t * (1.66666666666666019037e-01 + t * (-2.77777777770155933842e-03 + t * (6.61375632143793436117e-05 +
                     t * (-1.65339022054652515390e-06 + t * 4.13813679705723846039e-08))));
    const double y = 1 - ((low - r * c / (2 - c)) - high);
    return y * bits_as<double>((uint64_t)((int64_t)k + 1023) << 52);
}

}  // namespace

// Zeroed memory at a multiple of 64 bytes. It throws no exceptions.
class Memory {
  public:
    Memory() = default;
    Memory(const Memory&) = delete;
    Memory& operator=(const Memory&) = delete;
    ~Memory() { free(base_); }
    bool resize(size_t bytes) {  // loses the contents; without memory it changes nothing
        if (bytes > SIZE_MAX - 128) return false;
        void* base = calloc(1, bytes + 128);
        if (!base) return false;
        free(base_);
        base_ = base;
        bytes_ = bytes;
        return true;
    }
    bool at_least(size_t bytes) { return bytes <= bytes_ || resize(bytes); }
    void swap(Memory& other) {
        void* base = base_;
        const size_t bytes = bytes_;
        base_ = other.base_, bytes_ = other.bytes_;
        other.base_ = base, other.bytes_ = bytes;
    }
    char* data() const { return base_ ? (char*)(((uintptr_t)base_ + 63) & ~(uintptr_t)63) : nullptr; }
    size_t bytes() const { return bytes_; }

  private:
    void* base_ = nullptr;
    size_t bytes_ = 0;
};

// Objects without exceptions; `new` returns NULL if there is no memory.
template <class T> T* make() {
    void* room = malloc(sizeof(T) + alignof(T));
    if (!room) return nullptr;
    void** place = (void**)(((uintptr_t)room + alignof(T)) / alignof(T) * alignof(T));
    place[-1] = room;
    return new ((void*)place) T();
}
template <class T> void unmake(T* object) {
    if (!object) return;
    void* room = ((void**)object)[-1];
    object->~T();
    free(room);
}

// Parts of one block of memory. The same code runs twice: first it counts the bytes, then it takes them.
class Arena {
  public:
    explicit Arena(char* base) : base_(base) {}
    template <class T> T* take(size_t count) {
        T* part = base_ ? (T*)(base_ + used_) : nullptr;
        used_ += (count * sizeof(T) + 63) / 64 * 64 + 64;
        return part;
    }
    size_t used() const { return used_; }

  private:
    char* base_;
    size_t used_ = 0;
};

int fail(int code, const char* sentence, ...) __attribute__((format(printf, 2, 3)));  // -> code; ls_error() has the sentence

}  // namespace ls
