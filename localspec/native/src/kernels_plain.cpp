#include "kernels.h"

#define LS_TILE "tile_plain.h"
#include "kernels_all.h"

const ls::Kernels* ls::plain_kernels() { return &ls::TABLE; }
