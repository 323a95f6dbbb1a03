#include "tutti/speech/decoding/ctc_search.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <unordered_map>

namespace tutti::speech {
namespace {

constexpr double kLogZero = -std::numeric_limits<double>::infinity();

double log_add(double a, double b) {
  if (a < b) std::swap(a, b);
  if (b == kLogZero) return a;
  return a + std::log1p(std::exp(b - a));
}

// A prefix is a node of a tree; the tree only grows, so that a pruned prefix that comes back finds
// its node again and the two are one.
struct PrefixNode {
  int parent = -1;
  int token = -1;
};

class PrefixTree {
 public:
  PrefixTree() { nodes_.push_back({}); }
  int child(int node, int token) {
    const std::uint64_t key =
        (static_cast<std::uint64_t>(node) << 32) | static_cast<std::uint32_t>(token);
    const auto [it, fresh] = children_.emplace(key, static_cast<int>(nodes_.size()));
    if (fresh) nodes_.push_back({node, token});
    return it->second;
  }
  int last_token(int node) const { return nodes_[static_cast<std::size_t>(node)].token; }
  std::vector<int> tokens(int node) const {
    std::vector<int> out;
    for (; node > 0; node = nodes_[static_cast<std::size_t>(node)].parent)
      out.push_back(last_token(node));
    std::reverse(out.begin(), out.end());
    return out;
  }

 private:
  std::vector<PrefixNode> nodes_;
  std::unordered_map<std::uint64_t, int> children_;
};

struct Beam {
  int node = 0;
  double blank = kLogZero;      // paths that end in blank
  double non_blank = kLogZero;  // paths that end in the last token
  double total() const { return log_add(blank, non_blank); }
};

// The tokens of a frame worth trying, best first, without blank.
void frame_candidates(const float* frame, const LogProbs& x, const CtcBeamOptions& options,
                      std::vector<int>& out) {
  out.clear();
  for (std::size_t v = 0; v < x.vocab_size; ++v)
    if (static_cast<int>(v) != options.blank && frame[v] > options.min_log_prob)
      out.push_back(static_cast<int>(v));
  // Ties go to the lower id, so that the result does not depend on the library's partial_sort.
  const auto better = [&](int a, int b) {
    return frame[a] > frame[b] || (frame[a] == frame[b] && a < b);
  };
  const auto limit = static_cast<std::size_t>(options.tokens_per_frame);
  if (options.tokens_per_frame > 0 && out.size() > limit) {
    std::nth_element(out.begin(), out.begin() + static_cast<std::ptrdiff_t>(limit), out.end(),
                     better);
    out.resize(limit);
  }
}

}  // namespace

CtcHypothesis ctc_greedy(const LogProbs& x, int blank) {
  CtcHypothesis out;
  int previous = blank;
  for (std::size_t t = 0; t < x.num_frames; ++t) {
    const float* frame = x.frame(t);
    const int best = static_cast<int>(std::max_element(frame, frame + x.vocab_size) - frame);
    out.score += frame[best];
    if (best != blank && best != previous) {
      out.tokens.push_back(best);
      out.times.push_back({best, t, t, 0});
    }
    if (best != blank) {
      TokenTime& time = out.times.back();
      time.end_frame = t + 1;
      time.log_prob += frame[best];
    }
    previous = best;
  }
  for (TokenTime& time : out.times)
    time.log_prob /= static_cast<float>(time.end_frame - time.begin_frame);
  return out;
}

std::vector<CtcHypothesis> ctc_prefix_beam_search(const LogProbs& x,
                                                  const CtcBeamOptions& options) {
  PrefixTree tree;
  std::vector<Beam> beams{{0, 0.0, kLogZero}};
  std::unordered_map<int, std::size_t> index;  // node -> position in `next`
  std::vector<Beam> next;
  std::vector<int> candidates;
  const auto better = [](const Beam& a, const Beam& b) {
    const double ta = a.total(), tb = b.total();
    return ta > tb || (ta == tb && a.node < b.node);
  };
  for (std::size_t t = 0; t < x.num_frames; ++t) {
    const float* frame = x.frame(t);
    frame_candidates(frame, x, options, candidates);
    next.clear();
    index.clear();
    const auto at = [&](int node) -> Beam& {
      const auto [it, fresh] = index.emplace(node, next.size());
      if (fresh) next.push_back({node, kLogZero, kLogZero});
      return next[it->second];
    };
    for (const Beam& beam : beams) {
      const double total = beam.total();
      const int last = tree.last_token(beam.node);
      Beam& same = at(beam.node);
      same.blank = log_add(same.blank, total + frame[options.blank]);
      if (last >= 0) same.non_blank = log_add(same.non_blank, beam.non_blank + frame[last]);
      for (int token : candidates) {
        // A repeat needs a blank between the two.
        const double from = token == last ? beam.blank : total;
        if (from == kLogZero) continue;
        Beam& longer = at(tree.child(beam.node, token));
        longer.non_blank = log_add(longer.non_blank, from + frame[token]);
      }
    }
    const auto keep = static_cast<std::size_t>(std::max(1, options.beam_size));
    if (next.size() > keep) {
      std::nth_element(next.begin(), next.begin() + static_cast<std::ptrdiff_t>(keep), next.end(),
                       better);
      next.resize(keep);
    }
    beams.swap(next);
  }
  std::sort(beams.begin(), beams.end(), better);
  std::vector<CtcHypothesis> out;
  for (const Beam& beam : beams) {
    if (static_cast<int>(out.size()) >= options.nbest) break;
    CtcHypothesis hypothesis{tree.tokens(beam.node), {}, beam.total()};
    hypothesis.times = ctc_align(x, hypothesis.tokens, options.blank);
    out.push_back(std::move(hypothesis));
  }
  return out;
}

std::vector<TokenTime> ctc_align(const LogProbs& x, const std::vector<int>& tokens, int blank) {
  if (tokens.empty() || x.num_frames == 0) return {};
  // States: blank, token 0, blank, token 1, ..., blank.
  const std::size_t states = 2 * tokens.size() + 1;
  const auto label = [&](std::size_t s) { return s % 2 == 0 ? blank : tokens[s / 2]; };
  std::vector<double> score(states, kLogZero), next(states);
  std::vector<std::uint8_t> step(x.num_frames * states, 0);  // how many states back we came from
  for (std::size_t t = 0; t < x.num_frames; ++t) {
    const float* frame = x.frame(t);
    for (std::size_t s = 0; s < states; ++s) {
      double best = t == 0 ? (s < 2 ? 0.0 : kLogZero) : score[s];
      std::uint8_t back = 0;
      if (t > 0 && s >= 1 && score[s - 1] > best) best = score[s - 1], back = 1;
      // A blank between two different tokens may be skipped.
      const bool skip = s >= 2 && s % 2 == 1 && tokens[s / 2] != tokens[s / 2 - 1];
      if (t > 0 && skip && score[s - 2] > best) best = score[s - 2], back = 2;
      next[s] = best + frame[label(s)];
      step[t * states + s] = back;
    }
    score.swap(next);
  }
  std::size_t s = score[states - 1] >= score[states - 2] ? states - 1 : states - 2;
  if (score[s] == kLogZero) return {};
  std::vector<TokenTime> out(tokens.size());
  std::vector<bool> seen(tokens.size(), false);
  for (std::size_t t = x.num_frames; t-- > 0;) {
    if (s % 2 == 1) {
      TokenTime& time = out[s / 2];
      if (!seen[s / 2]) time = {tokens[s / 2], t, t + 1, 0}, seen[s / 2] = true;
      time.begin_frame = t;
      time.log_prob += x.frame(t)[tokens[s / 2]];
    }
    s -= step[t * states + s];
  }
  for (TokenTime& time : out)
    time.log_prob /= static_cast<float>(time.end_frame - time.begin_frame);
  return out;
}

}  // namespace tutti::speech
