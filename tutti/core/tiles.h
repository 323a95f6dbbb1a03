// The tile unit of a processor (AMX), which oneDNN multiplies bf16 with wherever it is shown. Some virtual machines show it and
// hide what is needed to set it up: then the first product of two bf16 matrices dies of SIGILL. Programs that link torch look
// once, before main(), and keep oneDNN away from such a unit; bf16 is then computed with AVX-512.
#pragma once

#include <string>

namespace tutti {

struct TileFacts {
  bool shown = false;      // the processor names the unit
  bool described = false;  // CPUID leaf 0x1D names a palette, which oneDNN sets the tiles up with
  bool permitted = false;  // the kernel lets a process use it
  bool runs = false;       // a tile instruction was run
};

// Why a unit that is shown cannot be used; empty: it can, or there is none.
std::string tile_fault(const TileFacts& facts);

// What this machine is like. Starts a child that tries an instruction, so one asks once.
TileFacts look_at_tiles();

// oneDNN's limit in this process's environment, as "NAME=VALUE"; empty: none.
std::string onednn_limit();

// Whether that limit is of a processor on which oneDNN computes no bf16. torch looks at the processor only and asks it all the same.
bool onednn_limit_excludes_bf16();

// Whether oneDNN multiplies bf16 on this machine: the processor has the AVX-512 that torch asks for, and no limit excludes it.
bool onednn_does_bf16();

// Limits oneDNN to AVX-512 with bf16 where the unit cannot be used. A limit of the user's stands.
// To be called before the first torch operation.
void keep_off_broken_tiles();

}  // namespace tutti
