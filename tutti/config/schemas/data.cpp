#include "tutti/config/schemas/data.h"

#include <fmt/format.h>

namespace tutti::config {
namespace {

// A component whose keys are known here and whose values another room reads.
struct Opaque {
  Node value;
};

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
      {"speed_factors", "the same as speed_perturb"},
      {"noise_prob", "the same as noise_apply_prob"},
      {"noise_db_low", "lowest signal to noise ratio, in dB"},
      {"noise_db_high", "highest signal to noise ratio, in dB"},
      {"rir_prob", "the same as rir_apply_prob"},
      {"volume_db_low", "lowest gain, in dB"},
      {"volume_db_high", "highest gain, in dB"},
      {"volume_normalize", "the same as speech_volume_normalize"},
      {"min_samples", "shorter utterances are refused; 0: no limit"},
      {"max_samples", "longer utterances are refused; 0: no limit"},
  };
  for (const auto& [key, doc] : keys) s.field(key, &Opaque::value, doc);
  return s;
}

}  // namespace

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

}  // namespace tutti::config
