// Every program that links torch asks the linker for this symbol (cmake/TuttiTorch.cmake); with it
// comes the constructor, before main() and before torch does anything.
#include "tutti/core/tiles.h"

extern "C" const bool tutti_keeps_off_broken_tiles;
const bool tutti_keeps_off_broken_tiles = [] {
  tutti::keep_off_broken_tiles();
  return true;
}();
