// Which instruction set computes: asked of the CPU by hand, because zig's runtime answers 0 to __builtin_cpu_supports.
#pragma once
#include "kernels.h"

namespace ls {
bool isa_supported(int isa);
const char* isa_name(int isa);  // NULL for no such
int isa_in_use();
void isa_use(int isa);
const Kernels& kernels();  // those in use
}  // namespace ls
