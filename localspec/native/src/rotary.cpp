#include "functions.h"

namespace ls {
namespace {

// Polynomials of Cephes for |x| <= pi / 4.
double sine(double x) {
    const double z = x * x;
    double p = 1.58962301576546568060e-10;
    p = p * z - 2.50507477628578072866e-8;
    p = p * z + 2.75573136213857245213e-6;
    p = p * z - 1.98412698295895385996e-4;
    p = p * z + 8.33333333332211858878e-3;
    p = p * z - 1.66666666666666307295e-1;
    return x + x * z * p;
}
double cosine(double x) {
    const double z = x * x;
    double p = -1.13585365213876817300e-11;
    p = p * z + 2.08757008419747316778e-9;
    p = p * z - 2.75573141792967388112e-7;
    p = p * z + 2.48015872888517045348e-5;
    p = p * z - 1.38888888888730564116e-3;
    p = p * z + 4.16666666666665929218e-2;
    return 1.0 - z * 0.5 + z * z * p;
}

}  // namespace

void cos_sin(int position, const float* inv_freq, int count, float scaling, float* cos, float* sin) {
    for (int i = 0; i < count; i++) {
        const double angle = (double)((float)position * inv_freq[i]);
        const double shift = 6755399441055744.0;  // 1.5 * 2^52: adding it rounds to a whole number
        const double turns = (angle * 0.63661977236758134308 + shift) - shift;  // quarter turns; below 2^31 the rest is exact
        double rest = angle - turns * 1.57079632673412561417e+00;
        rest = rest - turns * 6.07710050630396597660e-11;
        rest = rest - turns * 2.02226624879595063154e-21;
        const double s = sine(rest), c = cosine(rest);
        const int64_t quarter = (int64_t)turns & 3;
        const double sine_value = quarter == 0 ? s : quarter == 1 ? c : quarter == 2 ? -s : -c;
        const double cosine_value = quarter == 0 ? c : quarter == 1 ? -s : quarter == 2 ? -c : s;
        cos[i] = (float)cosine_value * scaling;
        sin[i] = (float)sine_value * scaling;
    }
}

}  // namespace ls
