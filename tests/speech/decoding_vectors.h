// The tensors and n-best lists that tools/make_decoding_vectors.py wrote with ESPnet.
#pragma once

#include <torch/torch.h>

#include <string>

#include "tests/places.h"
#include "tutti/core/file.h"
#include "tutti/core/json.h"

namespace tutti::speech {

struct DecodingVectors {
  Json json;
  std::string blob;

  static DecodingVectors read() {
    const std::string stem = in_source("tests/speech/vectors/decoding_beam");
    return {parse_json(read_file(stem + ".json"), stem + ".json"), read_file(stem + ".bin")};
  }
  torch::Tensor tensor(const std::string& name) const {
    const Json& entry = json["tensors"][name];
    const auto shape = entry["shape"].get<std::vector<std::int64_t>>();
    const auto* data = blob.data() + entry["offset"].get<std::size_t>();
    return torch::from_blob(const_cast<char*>(data), shape, torch::kFloat32).clone();
  }
  std::vector<torch::Tensor> memories() const {
    std::vector<torch::Tensor> out;
    while (json["tensors"].contains("memory." + std::to_string(out.size())))
      out.push_back(tensor("memory." + std::to_string(out.size())));
    return out;
  }
};

}  // namespace tutti::speech
