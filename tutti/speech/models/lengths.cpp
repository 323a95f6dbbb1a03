#include "tutti/speech/models/lengths.h"

#include <torch/torch.h>

#include <algorithm>

namespace tutti::speech {

std::int64_t max_length(const Lengths& lengths) {
  return lengths.empty() ? 0 : *std::max_element(lengths.begin(), lengths.end());
}

std::int64_t rounded_up(std::int64_t size, std::int64_t step, std::int64_t parts) {
  while (size > 2 * parts * step) step *= 2;
  return (size + step - 1) / step * step;
}

bool all_equal(const Lengths& lengths, std::int64_t value) {
  return std::all_of(lengths.begin(), lengths.end(), [value](auto n) { return n == value; });
}

torch::Tensor to_device(const std::vector<std::int64_t>& values, torch::Device device) {
  torch::Tensor host = torch::empty({static_cast<std::int64_t>(values.size())}, torch::kInt64);
  std::copy(values.begin(), values.end(), host.data_ptr<std::int64_t>());
  // From pageable memory the copy is staged by the driver; the host does not wait for the stream.
  return host.to(device, /*non_blocking=*/true);
}

torch::Tensor valid_mask(const Lengths& lengths, std::int64_t max_len, torch::Device device) {
  if (all_equal(lengths, max_len)) return {};
  return valid_mask(to_device(lengths, device), max_len);
}

torch::Tensor valid_mask(const torch::Tensor& lengths_B, std::int64_t max_len) {
  return torch::arange(max_len, lengths_B.options()).unsqueeze(0) < lengths_B.unsqueeze(1);
}

torch::Tensor valid_positions(const Lengths& lengths, std::int64_t max_len, torch::Device device,
                              const Lengths& begins) {
  std::vector<std::int64_t> positions;
  for (std::size_t b = 0; b < lengths.size(); ++b)
    for (std::int64_t t = begins.empty() ? 0 : begins[b]; t < std::min(lengths[b], max_len); ++t)
      positions.push_back(static_cast<std::int64_t>(b) * max_len + t);
  return to_device(positions, device);
}

torch::Tensor zero_padding(const torch::Tensor& x_BTx, const torch::Tensor& valid_BT) {
  if (!valid_BT.defined()) return x_BTx;
  std::vector<std::int64_t> shape(x_BTx.dim(), 1);
  shape[0] = valid_BT.size(0);
  shape[1] = valid_BT.size(1);
  return x_BTx * valid_BT.view(shape).to(x_BTx.scalar_type());
}

std::int64_t conv_length(std::int64_t length, int kernel, int stride) {
  return length < kernel ? 0 : (length - kernel) / stride + 1;
}

}  // namespace tutti::speech
