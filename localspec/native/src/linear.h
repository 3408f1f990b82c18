// A linear layer, shared by threads: they prepare its inputs, then compute its panels. Blocks have separate kernels.
#pragma once
#include "kernels.h"
#include "pool.h"

namespace ls {

constexpr int BATCH = 256;  // rows that a layer computes together

// Memory for the inputs of the largest of some matrices, for up to `rows` rows.
class InputRoom {
  public:
    void need(const ls_matrix& matrix, int rows);
    Inputs take(Arena& arena) const;

  private:
    size_t values_ = 0, scales_ = 0, sums_ = 0, floats_ = 0, half_sums_ = 0;
};

struct Linear {
    const ls_matrix* matrix;
    int rows;
    const float* x;         // [rows, stride]
    int stride;
    const float* factors;   // [rows]: x is multiplied by them first, and by `norm` [in] if that is not NULL; or NULL
    const float* norm;
    Epilogue epilogue;
    float* y;
    int64_t y_stride;
    const float* delta;
    Best* best;
    float cap = 0;  // see Product
};
void multiply(Pool& pool, const Linear& linear, const Inputs& room);

void reset(Best* best, int threads, int rows);
void settle(const Best* best, int threads, int rows, int32_t* argmax);

}  // namespace ls
