#include "tutti/speech/frontend/normalize.h"

#include <torch/torch.h>

#include "tutti/core/error.h"
#include "tutti/data/io/npy.h"

namespace tutti::speech {

GlobalStatistics read_global_statistics(const std::filesystem::path& npz, double eps) {
  const auto arrays = data::read_npz(npz);
  for (const char* name : {"count", "sum", "sum_square"})
    if (!arrays.contains(name))
      throw DataError(npz.string() + ": array '" + name + "' is missing",
                      "run the collect_stats stage again");
  const std::vector<double> count = data::to_doubles(arrays.at("count"));
  if (count.size() != 1 || count[0] <= 0)
    throw DataError(npz.string() + ": count: got " + std::to_string(count.size()) +
                    " values, expected one positive number");
  const auto per_frame = [&](const char* name) {
    const data::Array& sums = arrays.at(name);
    return torch::tensor(data::to_doubles(sums), torch::kFloat64).view(sums.shape) / count[0];
  };
  const torch::Tensor mean = per_frame("sum");
  const torch::Tensor var = per_frame("sum_square") - mean * mean;
  return {mean.to(torch::kFloat32), var.clamp_min(eps).sqrt().to(torch::kFloat32)};
}

NormalizeImpl::NormalizeImpl(Build build, NormalizeSettings settings, std::int64_t feature_size)
    : settings_(std::move(settings)) {
  if (settings_.kind != NormalizeKind::kGlobal) return;
  GlobalStatistics statistics{torch::zeros({feature_size}), torch::ones({feature_size})};
  if (!settings_.stats_file.empty()) {
    statistics = read_global_statistics(settings_.stats_file, settings_.eps);
    if (statistics.mean.numel() != feature_size)
      throw DataError(settings_.stats_file + ": has statistics of " +
                          std::to_string(statistics.mean.numel()) +
                          " features, the frontend makes " + std::to_string(feature_size),
                      "run the collect_stats stage again after changing the frontend");
  }
  mean_ = register_buffer("mean", statistics.mean.to(build.device));
  std_ = register_buffer("std", statistics.std.to(build.device));
}

Features NormalizeImpl::forward(const Features& features) {
  if (settings_.kind == NormalizeKind::kNone) return features;
  torch::NoGradGuard no_grad;
  Features result = features;
  torch::Tensor& x = result.values;
  const torch::Tensor valid = valid_mask(features.lengths, x.size(1), x.device());
  if (settings_.kind == NormalizeKind::kGlobal) {
    if (settings_.norm_means) x = x - mean_.to(x.scalar_type());
    x = zero_padding(x, valid);
    if (settings_.norm_vars) x = x / std_.to(x.scalar_type());
    return result;
  }
  const torch::Tensor count =
      to_device(features.lengths, x.device()).to(x.scalar_type()).view({-1, 1, 1});
  x = zero_padding(x, valid);
  const torch::Tensor centred = zero_padding(x - x.sum(1, true) / count, valid);
  const torch::Tensor std =
      settings_.norm_vars ? (centred.square().sum(1, true) / count).sqrt().clamp_min(settings_.eps)
                          : torch::Tensor();
  if (settings_.norm_means) x = centred;
  if (settings_.norm_vars) x = x / std;
  return result;
}

}  // namespace tutti::speech
