#include "tutti/data/batching/sampler.h"

namespace tutti::data {
namespace {

bool has_key(const BatchSettings& s, const std::string& key) {
  if (key == "batch_size") return s.batch_size.has_value();
  if (key == "batch_bins") return s.batch_bins.has_value();
  if (key == "shape_files") return !s.shape_files.empty();
  if (key == "fold_lengths") return !s.fold_lengths.empty();
  return !s.category2utt_file.empty();
}

// What each type cannot do without.
void check_needs(const config::Node& node, const BatchSettings& s, config::Problems& problems) {
  static const std::map<std::string, std::vector<std::string>> kNeeds = {
      {"sorted", {"batch_size", "shape_files"}},
      {"folded", {"batch_size", "shape_files", "fold_lengths"}},
      {"length", {"batch_bins", "shape_files"}},
      {"numel", {"batch_bins", "shape_files"}},
      {"catbel", {"batch_size", "category2utt_file"}},
      {"catpow", {"batch_bins", "shape_files", "category2utt_file"}}};
  if (const auto needs = kNeeds.find(s.type); needs != kNeeds.end())
    for (const auto& key : needs->second)
      if (!has_key(s, key))
        problems.add(node, "type " + s.type + " needs '" + key + "'", "add " + key);
  const bool any_size = s.batch_size || s.batch_bins;
  if ((s.type == "bucketed" || s.type == "unsorted") && !any_size)
    problems.add(node, "type " + s.type + " needs 'batch_size' or 'batch_bins'", "add one of them");
  if (s.type == "unsorted" && !s.batch_size && s.batch_bins && s.shape_files.empty())
    problems.add(node, "type unsorted with 'batch_bins' and no 'batch_size' needs 'shape_files'",
                 "add shape_files or batch_size");
  if (s.type == "unsorted" && !s.batch_size && s.batch_bins)
    problems.warn(
        node, "type unsorted without 'batch_size': batches are cut in file order at batch_bins");
  if (s.type == "folded" && !s.fold_lengths.empty() &&
      s.fold_lengths.size() != s.shape_files.size())
    problems.add(node["fold_lengths"],
                 "got " + std::to_string(s.fold_lengths.size()) + " fold_lengths for " +
                     std::to_string(s.shape_files.size()) + " shape_files, expected one each");
  if (s.type == "bucketed" && s.drop_last)
    problems.add(node["drop_last"], "type bucketed keeps every utterance",
                 "remove drop_last, or choose another type");
  if (s.type == "catpow" && s.shape_files.size() > 1)
    problems.add(node["shape_files"], "type catpow takes one shape file");
  if (!s.utt2category_file.empty() && s.type != "unsorted" && s.type != "folded")
    problems.add(node["utt2category_file"], "type " + s.type + " does not use it",
                 "types unsorted and folded do");
  if (s.max_length > 0 && s.min_length > s.max_length)
    problems.add(node["min_length"],
                 "got " + std::to_string(s.min_length) +
                     ", expected at most max_length = " + std::to_string(s.max_length));
  if (s.max_batch_size && *s.max_batch_size < s.min_batch_size)
    problems.add(node["max_batch_size"],
                 "got " + std::to_string(*s.max_batch_size) +
                     ", expected at least min_batch_size = " + std::to_string(s.min_batch_size));
}

}  // namespace

std::vector<std::string> sampler_types() {
  std::vector<std::string> types = {"bucketed", "unsorted", "sorted", "folded",
                                    "length",   "numel",    "catbel", "catpow"};
  for (const Sampler& sampler : sampler_registry()) types.push_back(sampler.name);
  return types;
}

config::Schema<BatchSettings> batch_schema() {
  using B = BatchSettings;
  config::Schema<B> s("batches", "How utterances are put together into batches.");
  s.field("type", &B::type, "the algorithm", {.one_of = sampler_types()});
  s.field("batch_size", &B::batch_size, "utterances per batch", {.min = 1});
  s.field("batch_bins", &B::batch_bins,
          "n x longest x dimensions of a padded batch, summed over shape_files", {.min = 1});
  s.field("shape_files", &B::shape_files, "lengths of the utterances, written by collect_stats");
  s.field("min_batch_size", &B::min_batch_size, "no batch is closed with fewer utterances",
          {.min = 1});
  s.field("max_batch_size", &B::max_batch_size, "bucketed, catpow: utterances at most", {.min = 1});
  s.field("sort_in_batch", &B::sort_in_batch, "order of lengths inside a batch",
          {.one_of = {"descending", "ascending"}});
  s.field("sort_batch", &B::sort_batch, "order of the batches before shuffling",
          {.one_of = {"descending", "ascending"}});
  s.field("drop_last", &B::drop_last, "leave out the utterances that do not fill the last batch");
  s.field("padding", &B::padding, "length, numel: count padding as work");
  s.field("fold_lengths", &B::fold_lengths,
          "folded: lengths at which the batch size halves, one per shape file", {.min = 1});
  s.field("utt2category_file", &B::utt2category_file,
          "unsorted, folded: batches never mix categories");
  s.field("category2utt_file", &B::category2utt_file,
          "catbel, catpow: utterances of each category");
  s.field("upsampling_factor", &B::upsampling_factor,
          "catpow: exponent on a category's share; below 1 favours small ones", {.min = 0});
  s.field("dataset_scaling_factor", &B::dataset_scaling_factor,
          "catpow: utterances drawn per epoch over utterances there are", {.min = 1});
  s.field("bucket_spread", &B::bucket_spread,
          "bucketed: how much longer than its shortest a bucket's longest may be",
          {.min = 0, .max = 10});
  s.field("min_length", &B::min_length,
          "leave out shorter utterances (first shape file); 0: no limit", {.min = 0});
  s.field("max_length", &B::max_length,
          "leave out longer utterances (first shape file); 0: no limit", {.min = 0});
  s.check(check_needs);
  return s;
}

}  // namespace tutti::data
