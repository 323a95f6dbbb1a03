// Reference vectors made by tools/make_speech_vectors.py, and how closely we have to meet them.
#pragma once

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cstring>
#include <filesystem>
#include <map>
#include <string>

#include "tests/places.h"
#include "tutti/core/file.h"
#include "tutti/core/json.h"
#include "tutti/speech/models/lengths.h"

namespace tutti::speech {

inline std::filesystem::path vectors_folder() {
  return std::filesystem::path(in_source("tests/speech/vectors"));
}

// Files of our own making: no checks.
inline std::map<std::string, torch::Tensor> read_vectors(const std::string& name) {
  const std::string bytes = read_file(vectors_folder() / (name + ".safetensors"));
  std::uint64_t header_size = 0;
  std::memcpy(&header_size, bytes.data(), 8);
  std::map<std::string, torch::Tensor> tensors;
  const Json header = parse_json(bytes.substr(8, header_size), name);
  for (const auto& [key, info] : header.items()) {
    const auto begin = info["data_offsets"][0].get<std::size_t>(),
               end = info["data_offsets"][1].get<std::size_t>();
    torch::Tensor tensor = torch::empty(info["shape"].get<std::vector<std::int64_t>>(),
                                        info["dtype"] == "F32" ? torch::kFloat32 : torch::kInt64);
    std::memcpy(tensor.data_ptr(), bytes.data() + 8 + header_size + begin, end - begin);
    tensors[key] = tensor;
  }
  return tensors;
}

inline Lengths to_lengths(const torch::Tensor& tensor) {
  const auto flat = tensor.contiguous();
  return {flat.data_ptr<std::int64_t>(), flat.data_ptr<std::int64_t>() + flat.numel()};
}

// Largest difference relative to the largest value: what "relative error" means for a tensor.
inline ::testing::AssertionResult close(const torch::Tensor& got, const torch::Tensor& expected,
                                        double tolerance) {
  if (got.sizes() != expected.sizes())
    return ::testing::AssertionFailure()
           << "shape " << got.sizes() << ", expected " << expected.sizes();
  const auto g = got.detach().to(torch::kFloat64), e = expected.detach().to(torch::kFloat64);
  const double scale = std::max(e.abs().max().item<double>(), 1e-6);
  const double error = (g - e).abs().max().item<double>() / scale;
  if (error <= tolerance) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure()
         << "relative error " << error << " > " << tolerance << " (scale " << scale << ")";
}

}  // namespace tutti::speech
