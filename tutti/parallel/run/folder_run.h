// A run whose results live in a folder: what `tutti map`, `infer` and runners with an output_dir
// do.
#pragma once

#include "tutti/parallel/client.h"
#include "tutti/parallel/folder/run_folder.h"

namespace tutti::parallel {

struct FolderRunResult {
  FolderCounts counts;
  RunReport report;
};

// Runs what the folder lacks, journals it, writes the results. `make_client` is called only when
// there is something to do. Throws what Client::run throws; the folder is then resumable.
FolderRunResult run_in_folder(
    RunFolder& folder, const std::function<Client&()>& make_client, const JobSpec& job,
    const Indices& indices, const RunOptions& options,
    const std::function<void(std::uint64_t, const Json&)>& each = nullptr);

// "1000 items: 998 ok, 2 failed in 3.1 s (321/s); 4 workers, 92 % busy, ..."
std::string describe(const FolderRunResult& result);

}  // namespace tutti::parallel
