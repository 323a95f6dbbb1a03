#include "apps/commands/item_times.h"

#include <cerrno>

#include "tutti/core/error.h"

namespace tutti::apps {

ItemTimes::ItemTimes(std::string path)
    : path_(std::move(path)), file_(std::fopen(path_.c_str(), "ae")) {
  if (!file_) throw_errno("cannot open " + path_, errno);
  // By lines: who looks sees each, and a full disk is told.
  std::setvbuf(file_.get(), nullptr, _IOLBF, 0);
  if (std::fseek(file_.get(), 0, SEEK_END) == 0 && std::ftell(file_.get()) == 0)
    std::fputs("index\tworker\tstart\tseconds\tstatus\n", file_.get());
}

void ItemTimes::add(const parallel::Outcome& outcome) {
  if (std::fprintf(file_.get(), "%llu\t%d\t%.6f\t%.6f\t%s\n",
                   static_cast<unsigned long long>(outcome.index), outcome.worker, outcome.started,
                   outcome.seconds, outcome.ok() ? "ok" : "failed") < 0)
    throw_errno("cannot write " + path_, errno);
}

}  // namespace tutti::apps
