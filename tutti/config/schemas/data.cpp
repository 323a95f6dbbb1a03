#include "tutti/config/schemas/data.h"

#include <fmt/format.h>

namespace tutti::config {
namespace {

// A component whose keys are known here and whose values another room reads.
struct Opaque {
  Node value;
};

struct CollateSettings {
  double float_pad_value = 0;
  std::int64_t int_pad_value = -1;
  std::vector<std::string> not_sequence;
};

Schema<CollateSettings> collate_schema() {
  using S = CollateSettings;
  Schema<S> s("common_collate", "Pads to the longest of the batch and adds <key>_lengths.");
  s.field("float_pad_value", &S::float_pad_value, "padding of real numbers");
  s.field("int_pad_value", &S::int_pad_value, "padding of whole numbers");
  s.field("not_sequence", &S::not_sequence, "keys that have no length");
  return s;
}

Schema<Opaque> preprocessor_schema() {
  Schema<Opaque> s("common_preprocessor", "Tokenizes text; augments speech in training only.");
  const std::pair<const char*, const char*> keys[] = {
      {"train", "true: augment (training data only)"},
      {"token_type", "bpe, char, word or phn"},
      {"token_list", "tokens, or a file with one per line"},
      {"bpemodel", "sentencepiece model"},
      {"text_cleaner", "cleaners applied to text"},
      {"g2p_type", "grapheme to phoneme"},
      {"unk_symbol", "token for what is not in the list"},
      {"space_symbol", "token for a space"},
      {"non_linguistic_symbols", "symbols kept whole"},
      {"delimiter", "between words of text"},
      {"rir_scp", "room responses"},
      {"rir_apply_prob", "probability of reverberation"},
      {"noise_scp", "noise files"},
      {"noise_apply_prob", "probability of noise"},
      {"noise_db_range", "signal to noise range, as 13_15"},
      {"short_noise_thres", "noise shorter than this part is repeated"},
      {"speech_volume_normalize", "largest amplitude"},
      {"speech_name", "key of speech in a sample"},
      {"text_name", "key of text in a sample"},
      {"fs", "sample rate"},
      {"data_aug_effects", "effects: [weight, name, {args}]"},
      {"data_aug_num", "effects per utterance, [min, max]"},
      {"data_aug_prob", "probability of any effect"},
      {"min_sample_size", "shorter speech is padded to this"},
      {"audio_pad_value", "value of that padding"},
      {"force_single_channel", "use the first channel"},
      {"speed_perturb", "speed factors, one drawn per utterance"},
  };
  for (const auto& [key, doc] : keys) s.field(key, &Opaque::value, doc);
  return s;
}

void check_collate(const Node& node, const Catalogue& catalogue, Problems& problems) {
  if (!node.is_null()) catalogue.check("collate_fn", node, problems);
}

void check_loader(const Node& node, const Catalogue& catalogue, Problems& problems) {
  if (node.is_null()) return;
  loader_schema().parse(node, problems);
  check_collate(node["collate_fn"], catalogue, problems);
  const Node factory = node["iter_factory"];
  if (factory.is_null()) return;
  catalogue.check("iter_factory", factory, problems);
  if (factory.is_map()) check_collate(factory["collate_fn"], catalogue, problems);
  for (const char* key : {"batch_size", "shuffle", "num_workers", "pin_memory", "drop_last"}) {
    if (!node[key].is_null())
      problems.add(
          {node.key_mark(key), node[key].path(), "has no effect beside iter_factory",
           fmt::format("move it into iter_factory{}, or set iter_factory: null",
                       std::string_view(key) == "batch_size" || std::string_view(key) == "drop_last"
                           ? ".batches"
                           : "")});
  }
}

}  // namespace

Schema<LoaderSettings> loader_schema() {
  using S = LoaderSettings;
  Schema<S> s("dataloader.<train|valid>", "How batches are made for one kind of data.");
  s.field("total_shards", &S::total_shards,
          "pieces the data is cut into; a multiple of dist_world_size", {.min = 1});
  s.field("dist_world_size", &S::dist_world_size, "must equal num_nodes x num_device", {.min = 1});
  s.field("batch_distribution", &S::batch_distribution, "whose size batch_size and batch_bins are",
          {.one_of = {"per_gpu", "global"}});
  s.field("iter_factory", &S::iter_factory, "length-aware batches; null: the plain keys below");
  s.field("collate_fn", &S::collate_fn, "how samples become a batch");
  s.field("batch_size", &S::batch_size, "samples per batch", {.min = 1});
  s.field("shuffle", &S::shuffle, "another order in each epoch");
  s.field("num_workers", &S::num_workers, "threads that read and prepare", {.min = 0});
  s.field("drop_last", &S::drop_last, "leave out the last, smaller batch");
  s.field("pin_memory", &S::pin_memory, "page-locked memory, for faster copies to a GPU");
  s.field("prefetch_factor", &S::prefetch_factor, "batches ready in advance per worker",
          {.min = 1});
  s.field("persistent_workers", &S::persistent_workers, "accepted; workers always persist");
  s.field("timeout", &S::timeout, "how long to wait for a batch; 0: for ever");
  for (const char* key : {"sampler", "batch_sampler"})
    s.refused(key, {}, "use iter_factory with batches.type");
  for (const char* key :
       {"worker_init_fn", "multiprocessing_context", "generator", "pin_memory_device", "in_order"})
    s.refused(key, {}, "remove it: workers are threads, seeded by epoch and utterance");
  return s;
}

Schema<BatchSettings> batch_schema() {
  using S = BatchSettings;
  Schema<S> s("batches", "Which utterances make a batch.");
  s.field("type", &S::type, "how batches are cut",
          {.one_of = {"unsorted", "sorted", "folded", "length", "numel", "catbel", "catpow",
                      "catpow_balance_dataset", "bucket"}});
  s.field("shape_files", &S::shape_files, "files of `utterance length,dims` from collect_stats");
  s.field("batch_size", &S::batch_size, "utterances per batch", {.min = 1});
  s.field("batch_bins", &S::batch_bins, "limit of padded length x dims per batch", {.min = 1});
  s.field("min_batch_size", &S::min_batch_size, "smallest batch", {.min = 1});
  s.field("max_batch_size", &S::max_batch_size, "largest batch", {.min = 1});
  s.field("sort_in_batch", &S::sort_in_batch, "order inside a batch",
          {.one_of = {"descending", "ascending"}});
  s.field("sort_batch", &S::sort_batch, "order of batches",
          {.one_of = {"descending", "ascending"}});
  s.field("drop_last", &S::drop_last, "leave out the last, smaller batch");
  s.field("padding", &S::padding, "count padding in batch_bins");
  s.field("fold_lengths", &S::fold_lengths,
          "folded: length at which the batch is halved, per shape file", {.min = 1});
  s.field("utt2category_file", &S::utt2category_file, "catbel, catpow: category of each utterance");
  s.field("upsampling_factor", &S::upsampling_factor, "catpow: exponent of a category's share",
          {.min = 0, .max = 1});
  s.field("dataset_upsampling_factor", &S::dataset_upsampling_factor,
          "catpow_balance_dataset: exponent of a corpus's share", {.min = 0, .max = 1});
  s.field("dataset_scaling_factor", &S::dataset_scaling_factor,
          "catpow: epoch size against the data's", {.min = 1});
  return s;
}

Schema<SequenceIterSettings> sequence_iter_schema() {
  using S = SequenceIterSettings;
  Schema<S> s("sequence",
              "Batches of similar length, planned once, the same on any number of ranks.");
  s.group("batches", &S::batches, batch_schema());
  s.field("num_iters_per_epoch", &S::num_iters_per_epoch, "batches that make an epoch; null: all",
          {.min = 1});
  s.field("seed", &S::seed, "of the shuffling");
  s.field("shuffle", &S::shuffle, "another order of batches in each epoch");
  s.field("shuffle_within_batch", &S::shuffle_within_batch, "shuffle utterances across batches");
  s.field("num_workers", &S::num_workers, "threads that read and prepare", {.min = 0});
  s.field("pin_memory", &S::pin_memory, "page-locked memory, for faster copies to a GPU");
  s.field("collate_fn", &S::collate_fn, "how samples become a batch");
  s.elsewhere("dataset", "remove it: the dataset is given by dataset:");
  return s;
}

Schema<DatasetEntry> dataset_entry_schema() {
  using S = DatasetEntry;
  Schema<S> s("dataset.<train|valid|test> entry", "One corpus.");
  s.field("name", &S::name, "what results are filed under");
  s.field("data_src", &S::data_src,
          "where it comes from: recipe/task, a manifest or a builder's name");
  s.field("data_src_args", &S::data_src_args, "arguments of data_src");
  s.field("transform", &S::transform, "applied to each sample");
  return s;
}

Schema<DatasetSettings> dataset_schema() {
  using S = DatasetSettings;
  Schema<S> s("dataset", "Training, validation and test corpora.");
  s.field("recipe_dir", &S::recipe_dir, "folder of the recipe");
  s.field("train", &S::train, "entries, concatenated");
  s.field("valid", &S::valid, "entries, concatenated");
  s.field("test", &S::test, "entries, each a test set of its own");
  s.field("preprocessor", &S::preprocessor, "applied to each sample; augments in training only");
  return s;
}

void add_data_components(Catalogue& catalogue) {
  catalogue.add("iter_factory", sequence_iter_schema(),
                {"espnet2.iterators.sequence_iter_factory.SequenceIterFactory"});
  catalogue.instead("iter_factory", "espnet2.iterators.chunk_iter_factory.ChunkIterFactory",
                    "use SequenceIterFactory");
  catalogue.instead("iter_factory", "espnet2.iterators.multiple_iter_factory.MultipleIterFactory",
                    "use total_shards with SequenceIterFactory");
  catalogue.add("collate_fn", collate_schema(), {"espnet2.train.collate_fn.CommonCollateFn"});
  catalogue.add("dataset", dataset_schema(),
                {"espnet3.components.data.data_organizer.DataOrganizer"});
  catalogue.add("preprocessor", preprocessor_schema(),
                {"espnet2.train.preprocessor.CommonPreprocessor"});
}

void check_dataset(const Node& dataset, const Catalogue& catalogue, Problems& problems) {
  if (dataset.is_null()) return;
  if (dataset.is_map() && dataset["_target_"].defined())
    catalogue.check("dataset", dataset, problems);
  else
    dataset_schema().parse(dataset, problems);
  for (const char* split : {"train", "valid", "test"})
    for (const Node& entry : dataset[split].elements())
      dataset_entry_schema().parse(entry, problems);
  const bool has_train = dataset["train"].size() > 0;
  const bool has_valid = dataset["valid"].size() > 0;
  if (has_train != has_valid)
    problems.add(dataset,
                 fmt::format("got {} without {}", has_train ? "train" : "valid",
                             has_train ? "valid" : "train"),
                 "give both, or neither");
  if (!dataset["preprocessor"].is_null())
    catalogue.check("preprocessor", dataset["preprocessor"], problems);
}

void check_dataloader(const Node& dataloader, const Catalogue& catalogue, Problems& problems) {
  if (dataloader.is_null()) return;
  if (!dataloader.is_map()) {
    problems.add(dataloader,
                 "got " + dataloader.describe_value() + ", expected a map with train and valid");
    return;
  }
  check_unknown_keys(dataloader, {"train", "valid", "collate_fn"}, {}, problems);
  check_collate(dataloader["collate_fn"], catalogue, problems);
  for (const char* mode : {"train", "valid"}) check_loader(dataloader[mode], catalogue, problems);
}

}  // namespace tutti::config
