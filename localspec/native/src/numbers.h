// Logarithm and exponential in double, by polynomials: the same bits everywhere, to about one unit in the last place.
#pragma once
#include "common.h"

namespace ls {
namespace {

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
}  // namespace ls
