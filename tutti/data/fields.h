// Further fields of a dataset's utterances, by name: speaker ids, embeddings, durations, any array.
//
//   dataset:
//     train:
//       - data_src_args: {manifest: data/train.jsonl}
//         fields:
//           spk: {path: data/train/utt2spk_id, type: text_int}    # `utt_7 12` per line
//           xvector: {path: data/train/xvector.scp, type: kaldi_ark}
//
// They are in the batch under their names, stacked and padded along the first dimension as
// everything else, with `<name>_lengths` beside them (collate.h). Types are ESPnet's.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "tutti/config/schema.h"
#include "tutti/data/dataset.h"

namespace tutti::data {

struct FieldSettings {
  std::string path;
  std::string type;
};
config::Schema<FieldSettings> field_schema();

// The checks that need no files: names, keys, types.
void check_fields(const config::Node& fields, config::Problems& problems);
// Names of the tensors a batch has of them: each, and its lengths.
std::vector<std::string> field_tensors(const config::Node& fields);

// What puts each field into a sample. REQUIRES: check_fields() found nothing. Throws IoError, and
// DataError when an utterance of the dataset is not in a file; numbers and arrays are looked at when
// an utterance is read.
std::vector<std::function<void(Sample&)>> open_fields(const config::Node& fields,
                                                      const Dataset& dataset);

}  // namespace tutti::data
