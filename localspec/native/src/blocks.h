// Blocks of a GGUF file: transposed into panels, and a linear layer of them among threads.
#pragma once
#include "linear.h"

namespace ls {

int pack_blocks(int type, int in, const uint8_t* rows, int count, uint8_t* to);  // -> a row with a scale that is not finite, or -1

// Room for the inputs of any of some matrices, for up to `rows` rows.
class BlockInputRoom {
  public:
    void need(int in, int rows);
    BlockInputs take(Arena& arena) const;

  private:
    size_t groups_ = 0;
};

struct BlockLinear {  // as Linear
    const ls_blocks* matrix;
    int rows;
    const float* x;
    int stride;
    const float *factors, *norm;
    float* y;
    int64_t y_stride;
};
void multiply_blocks(Pool& pool, const BlockLinear& linear, const BlockInputs& room);

}  // namespace ls
