#include "kernels.h"

#include "kernels_all.h"

const ls::Kernels* ls::c_kernels() { return &ls::TABLE; }
