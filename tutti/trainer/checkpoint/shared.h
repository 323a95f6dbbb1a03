// One checkpoint written by several ranks, each its own parts, as byte ranges of the same files.
//
// Every rank knows where every tensor lies (SafetensorsLayout), so nobody gathers anything and the
// result is what one process would have written: readers, links to the best, averages and Python
// see no difference. All ranks must see one file system.
//
//   SharedSave save = agree_on_save(my_tensors, control);     // all ranks, together
//   write_own_part(folder, save);                             // each when it likes
//   complete_checkpoint(folder, save, trainer, give_up);      // rank 0: waits for the others' parts
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "tutti/trainer/checkpoint/checkpoint.h"
#include "tutti/trainer/control.h"

namespace tutti::trainer {

struct SharedSave {
  struct Extent {
    std::size_t file = 0;
    std::uint64_t offset = 0;  // in the file
    at::Tensor tensor;         // contiguous, on the CPU
  };
  std::string tag;  // of the temporary folder, the same on all ranks
  int rank = 0;
  int world_size = 1;
  std::vector<SafetensorsLayout> layouts;  // model, optimizer, extra
  std::vector<Extent> own;
};

// Ranks offer what they hold; what several hold is written by the lowest of them. Throws
// InternalError if something is missing or overlaps.
SharedSave agree_on_save(const Checkpoint& mine, Control& control);

// Throws IoError.
void write_own_part(const std::filesystem::path& folder, const SharedSave& save);

// Renames the whole into place. `give_up` is asked several times a second while others write.
// Throws IoError when it says so.
void complete_checkpoint(const std::filesystem::path& folder, const SharedSave& save,
                         const Json& trainer, const std::function<bool()>& give_up);

}  // namespace tutti::trainer
