// What libtorch does not do by itself to be fast on this machine's processor. Both are settings of
// the whole process and change no result beyond rounding.
#pragma once

#include <string>

namespace tutti::trainer {

// OpenBLAS knows processors by their model number and takes one that is newer than itself for a
// Pentium 4: matrix products then use a quarter of a vector unit, or less. Here the processor's own
// word counts: AVX-512 or AVX2. Does nothing with another library, where OpenBLAS knows the
// processor, or where OPENBLAS_CORETYPE says what to take. Once, in main, before there are threads.
void choose_matrix_kernels();

// OpenBLAS's name of the kernels in use ("SkylakeX"), or "" with another library.
std::string matrix_kernels();

// Memory that tensors give back stays with the process. By default large blocks go back to the
// system at once, and every tensor of a step begins with page faults: a seventh of a step on a CPU.
// The process then stays as large as it was at its largest.
void keep_freed_memory();

}  // namespace tutti::trainer
