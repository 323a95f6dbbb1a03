// The files `infer` leaves beside results.jsonl: FIELD.scp with a line `UTT_ID VALUE` per item.
//
// Text and numbers stand in the line (a line break becomes a space: it would break the file for
// every reader); lists and maps get a file FIELD/UTT_ID.json, or .npy where `output_artifacts:
// {FIELD: {type: npy}}` says so. Files are written whole, in item order.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "tutti/config/node.h"
#include "tutti/core/json.h"

namespace tutti::systems {

struct FieldWriterOptions {
  std::filesystem::path output_dir;
  std::string id_key = "utt_id";
  // Empty: every field of the first result but the id and "seconds".
  std::vector<std::string> fields;
  config::Node artifacts;  // output_artifacts
};

// `results` may hold nulls (items that failed). Throws ConfigError for a field the results lack.
void write_fields(const FieldWriterOptions& options, const std::vector<Json>& results);

// ESPnet's files for results of a recogniser: DIR/1best_recog/{text,token,token_int,score} (and
// 2best_recog, ... with nbest), a line `UTT_ID VALUE` per item. Nothing for results without tokens.
void write_recognition_files(const std::filesystem::path& output_dir, const std::string& id_key,
                             const std::vector<Json>& results);

}  // namespace tutti::systems
