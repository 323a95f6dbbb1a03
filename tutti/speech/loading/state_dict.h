// Weights into a model by name, and back. Strict: a file that does not fit is an error that says
// how.
//
//   load_state_dict(*model, read_state_dict("ave_10best.pth"), "ave_10best.pth");
//   write_state_dict("model.pth", state_dict(*model));  // ESPnet's model accepts it
//
// ESPnet itself loads with strict=False, so an empty or foreign file silently leaves a random
// model.
#pragma once

#include <torch/nn/module.h>
#include <torch/types.h>

#include <filesystem>
#include <map>
#include <string>

namespace tutti::speech {

using StateDict = std::map<std::string, torch::Tensor>;

// From .safetensors, or else a .pth or Lightning .ckpt of torch.save (weights only: nothing in the
// file is executed). Throws IoError or DataError.
StateDict read_state_dict(const std::filesystem::path& path);
// To .safetensors, or else a .pth that torch.load and ESPnet accept.
void write_state_dict(const std::filesystem::path& path, const StateDict& weights);

// Parameters and buffers under ESPnet's names: detached, on the CPU, sharing memory where they can.
StateDict state_dict(const torch::nn::Module& model);

// Renames what older ESPnet versions and training wrappers called differently: `embed.out.0.` (a
// linear layer inside a Sequential) -> `embed.out.`, `embed.out.1.` -> `embed.pos_enc.`; positional
// tables
// (`*.pe`) and merged adapters (`lora_*`) are dropped; names of ESPnet's first years and of its asr_transducer task are mapped; a prefix `model.` or `module.` that all names share is removed.
StateDict modern_names(const StateDict& weights);

// What differs, one name per line, at most `limit` lines a kind; "" when all fits.
std::string describe_difference(const StateDict& model, const StateDict& weights,
                                std::size_t limit = 8);

// Copies `weights` (after modern_names) into the model, whatever its device and dtype. Nothing is
// written unless everything fits. Throws DataError beginning with `where`.
void load_state_dict(torch::nn::Module& model, const StateDict& weights, const std::string& where);

// The same for weights of others: what the model computed from files of its own (statistics, mel
// bands) may be missing in them.
void load_published_weights(torch::nn::Module& model, const StateDict& weights,
                            const std::string& where);

}  // namespace tutti::speech
