// How often workers say that they live, and after how long a silence they count as dead. Internal to
// the room.
#pragma once

#include <algorithm>

namespace tutti::parallel {

struct Pulse {
  double beat_s = 0;
  double silence_s = 0;

  // Fewer beats per worker when there are many, as the driver has one thread to hear them; and a
  // patience of several beats, as one may come late on a busy machine. `least_silence_s` 0: 3 s on this
  // machine, 20 s on a cluster.
  static Pulse of(int n_workers, bool local, double least_beat_s, double least_silence_s) {
    constexpr double kBeatsPerSecond = 400;
    constexpr double kBeats = 6;
    const double beat_s = std::max(least_beat_s, n_workers / kBeatsPerSecond);
    const double least = least_silence_s > 0 ? least_silence_s : local ? 3 : 20;
    return {beat_s, std::max(least, kBeats * beat_s)};
  }
};

}  // namespace tutti::parallel
