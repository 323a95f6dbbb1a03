#include "tutti/trainer/metrics.h"

#include <torch/torch.h>

#include <cstring>

#include "tutti/core/error.h"

namespace tutti::trainer {

void MetricSums::add(const std::string& prefix, const StepOutput& output) {
  for (const auto& [name, value] : output.stats) {
    if (!value.defined()) continue;
    if (value.device().is_cpu())
      add(prefix + name, value.item<double>() * output.weight, output.weight);
    else
      pending_.push_back({prefix + name, value.detach(), output.weight});
  }
  for (const auto& [name, ratio] : output.ratios)
    add(prefix + name, ratio.numerator, ratio.denominator);
}

void MetricSums::add(const std::string& name, double numerator, double denominator) {
  Ratio& sum = sums_[name];
  sum.numerator += numerator;
  sum.denominator += denominator;
}

void MetricSums::add(const MetricSums& other) {
  for (const auto& [name, sum] : other.sums_) add(name, sum.numerator, sum.denominator);
  pending_.insert(pending_.end(), other.pending_.begin(), other.pending_.end());
}

void MetricSums::clear() {
  sums_.clear();
  pending_.clear();
}

void MetricSums::read_pending() {
  if (pending_.empty()) return;
  std::vector<at::Tensor> values;
  for (const Pending& p : pending_) values.push_back(p.value.to(at::kDouble).reshape({}));
  const at::Tensor all = at::stack(values).to(at::kCPU);  // one transfer for all of them
  for (std::size_t i = 0; i < pending_.size(); ++i)
    add(pending_[i].name, all.data_ptr<double>()[i] * pending_[i].weight, pending_[i].weight);
  pending_.clear();
}

std::string MetricSums::encode() const {
  std::string out;
  for (const auto& [name, sum] : sums_) {
    const auto length = static_cast<std::uint32_t>(name.size());
    out.append(reinterpret_cast<const char*>(&length), sizeof(length));
    out += name;
    out.append(reinterpret_cast<const char*>(&sum), sizeof(sum));
  }
  return out;
}

void MetricSums::add_encoded(const std::string& blob) {
  std::size_t at = 0;
  const auto take = [&](void* out, std::size_t n) {
    if (n > blob.size() - at) throw CommError("a rank sent metrics that cannot be read");
    std::memcpy(out, blob.data() + at, n);
    at += n;
  };
  while (at < blob.size()) {
    std::uint32_t length = 0;
    take(&length, sizeof(length));
    if (length > blob.size()) throw CommError("a rank sent metrics that cannot be read");
    std::string name(length, '\0');
    take(name.data(), length);
    Ratio sum;
    take(&sum, sizeof(sum));
    add(name, sum.numerator, sum.denominator);
  }
}

std::vector<MetricSums> MetricSums::of_ranks(Control& control, const std::string& what) {
  read_pending();
  if (control.world_size() == 1) return {*this};
  std::vector<MetricSums> all;
  for (const std::string& blob : control.all_gather(what, encode()))
    all.emplace_back().add_encoded(blob);
  return all;
}

MetricSums MetricSums::merged(Control& control, const std::string& what) {
  MetricSums total;
  // In rank order; a rank without data has no names, and that is fine.
  for (const MetricSums& sums : of_ranks(control, what)) total.add(sums);
  return total;
}

Metrics MetricSums::means() const {
  Metrics out;
  for (const auto& [name, sum] : sums_)
    if (sum.denominator != 0) out[name] = sum.numerator / sum.denominator;
  return out;
}

Json MetricSums::to_json() const {
  Json json = Json::object();
  for (const auto& [name, sum] : sums_) json[name] = {sum.numerator, sum.denominator};
  return json;
}

MetricSums MetricSums::from_json(const Json& json) {
  MetricSums out;
  for (const auto& [name, sum] : json.items()) {
    // NaN becomes null in JSON
    const auto number = [](const Json& value) {
      return value.is_number() ? value.get<double>() : std::nan("");
    };
    out.sums_[name] = {number(sum[0]), number(sum[1])};
  }
  return out;
}

}  // namespace tutti::trainer
