// kernels.cu for the CPU. The trap instruction and the declaration of dynamic
// shared memory are replaced; everything else compiles as it is.
#include "kernel.h"
#define SLUICE_CUDA_EMU 1
#include "../kernels.cu"
#include "../copylist.cu"
