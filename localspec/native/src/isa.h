// The instruction set in use. The CPU is queried by hand, because zig's runtime returns 0 from __builtin_cpu_supports.
#pragma once
#include "kernels.h"

namespace ls {
bool isa_supported(int isa);
const char* isa_name(int isa);  // NULL for an unknown one
int isa_in_use();
void isa_use(int isa);
const Kernels& kernels();  // the ones in use
}  // namespace ls
