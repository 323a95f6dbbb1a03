#include <torch/torch.h>

#include <algorithm>

#include "tutti/speech/models/decoder.h"

namespace tutti::speech {

void DecoderCache::reorder(const torch::Tensor& parents_N) {
  if (length == 0 || beam == 1) return;
  torch::NoGradGuard no_grad;
  if (scattered) {
    ancestors.copy_(ancestors.index_select(0, parents_N));  // recordings know this tensor
    return;
  }
  if (self_kv.is_cuda()) {  // a prompt's; recordings know this tensor
    torch::Tensor said = self_kv.narrow(4, 0, length);
    said.copy_(said.index_select(2, parents_N));
    return;
  }
  if (!spare.defined() || spare.sizes() != self_kv.sizes()) spare = torch::empty_like(self_kv);
  torch::Tensor target = spare.narrow(4, 0, length);
  at::index_select_out(target, self_kv.narrow(4, 0, length), 2, parents_N);
  std::swap(self_kv, spare);
}

void DecoderCache::settle() {
  graph.forget();
  if (!scattered) {
    ancestors = torch::Tensor();
    return;
  }
  self_kv = whole_rows(ancestors.to(torch::kInt64));
  ancestors = torch::Tensor();
  scattered = false;
}

torch::Tensor DecoderCache::whole_rows(const torch::Tensor& ancestors_NC) const {
  std::vector<std::int64_t> sizes = self_kv.sizes().vec();
  sizes[2] = ancestors_NC.size(0);
  torch::Tensor whole = torch::zeros(sizes, self_kv.options());
  for (std::int64_t p = 0; p < length; ++p)
    whole.select(4, p).copy_(self_kv.select(4, p).index_select(2, ancestors_NC.select(1, p)));
  return whole;
}

DecoderCache DecoderCache::select_utterances(const torch::Tensor& utterances) {
  torch::NoGradGuard no_grad;
  DecoderCache before = std::move(*this);
  *this = DecoderCache();
  length = before.length;
  beam = before.beam;
  few = before.few;
  memory_kv = before.memory_kv.index_select(2, utterances);
  if (before.memory_bias.defined()) memory_bias = before.memory_bias.index_select(0, utterances);
  const auto lanes = torch::arange(beam, utterances.options());
  const auto rows = (utterances.unsqueeze(1) * beam + lanes.unsqueeze(0)).flatten();
  if (before.scattered)
    self_kv = before.whole_rows(before.ancestors.index_select(0, rows).to(torch::kInt64));
  else
    self_kv = before.self_kv.index_select(2, rows);
  return before;
}

void DecoderCache::reserve(std::int64_t wanted) {
  if (wanted <= capacity()) return;
  settle();
  const std::int64_t grown = std::max(2 * capacity(), wanted);
  self_kv = torch::constant_pad_nd(self_kv, {0, 0, 0, grown - capacity()});
  spare = torch::Tensor();
}

}  // namespace tutti::speech
