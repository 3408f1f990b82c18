// Cosines and sines of a position's angles, computed in double by our own polynomials: libraries differ in the last bit.
#pragma once
#include "common.h"

namespace ls {
// cos, sin [count]: of position * inv_freq, rounded to float as the models do, times scaling
void cos_sin(int position, const float* inv_freq, int count, float scaling, float* cos, float* sin);
}  // namespace ls
