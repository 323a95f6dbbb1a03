#include "tutti/parallel/folder/beat_watch.h"

namespace tutti::parallel {

BeatWatch::Sign BeatWatch::look(const std::string& name, std::uint64_t beat) {
  const auto now = clock_.steady();
  // If we ourselves were stopped (or had other work), the others' silence means nothing.
  if (now - last_look_ > patience_ / 2)
    for (auto& [other, seen] : seen_) seen.changed = now;
  last_look_ = now;
  const auto [entry, is_new] = seen_.try_emplace(name, Seen{beat, now});
  Seen& seen = entry->second;
  if (!is_new && seen.beat != beat) seen = {beat, now, true};
  if (now - seen.changed > patience_) return Sign::kDead;
  return seen.has_changed ? Sign::kAlive : Sign::kUnsure;
}

}  // namespace tutti::parallel
