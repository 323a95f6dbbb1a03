// Where a long recording is cut, so that memory is bounded by a window and not by the recording.
// Torch-free.
//
//   for (const Piece& piece : cut_in_pauses(samples, 16000, 30.0))
//     decode(samples.subspan(piece.begin, piece.end - piece.begin));
#pragma once

#include <cstddef>
#include <span>
#include <vector>

namespace tutti::speech {

// Samples [begin, end) are decoded; what was said in [keep_begin, keep_end) is kept, the rest is
// context that another piece keeps.
struct Piece {
  std::size_t begin = 0;
  std::size_t end = 0;
  std::size_t keep_begin = 0;
  std::size_t keep_end = 0;
};

// Stretches of speech, by energy in mel bands above a floor that follows the noise: each band's
// floor is its 15th percentile over 15 s. Speech begins where the mean excess over the bands
// reaches 1.8 dB and ends below 1.3 dB; gaps under 0.5 s are joined, speech under 0.1 s is dropped,
// and 0.2 s are added on each side. No weights and no training; steady noise is not speech.
// Neighbours are merged while they fit into a window together; a stretch longer than a window is
// cut where its second half is quietest. What is between pieces is not decoded.
std::vector<Piece> cut_in_pauses(std::span<const float> samples, int sample_rate,
                                 double window_seconds);

// Windows that overlap by `context` on each side, anywhere. Throws ConfigError when the window is
// not longer than twice the context.
std::vector<Piece> cut_evenly(std::size_t num_samples, int sample_rate, double window_seconds,
                              double context_seconds);

}  // namespace tutti::speech
