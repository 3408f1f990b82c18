#include "kernels.h"

#define LS_TILE "tile_c.h"
#include "kernels_all.h"

const ls::Kernels* ls::c_kernels() { return &ls::TABLE; }
