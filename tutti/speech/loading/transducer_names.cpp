#include "tutti/speech/loading/transducer_names.h"

#include <string_view>
#include <utility>

namespace tutti::speech {
namespace {

using Names = std::pair<std::string_view, std::string_view>;

constexpr std::string_view kLastNorm = "encoder.encoders.norm_blocks.";
constexpr std::string_view kBlocks = "encoder.encoders.blocks.";

// Parts outside the blocks; an empty name: of training only.
constexpr Names kParts[] = {{kLastNorm, "encoder.after_norm."},
                            {"encoder.embed.output.", "encoder.embed.out."},
                            {"decoder.rnn.", "decoder.decoder."},
                            {"ctc_lin.", "ctc.ctc_lo."},
                            {"lm_lin.", ""},
                            {"am_proj.", ""},
                            {"lm_proj.", ""}};

constexpr Names kConformer[] = {{"self_att.", "self_attn."},
                                {"conv_mod.", "conv_module."},
                                {"norm_feed_forward.", "norm_ff."},
                                {"norm_self_att.", "norm_mha."},
                                {"norm_macaron.", "norm_ff_macaron."}};

constexpr Names kBranchformer[] = {{"self_att.", "attn."},
                                   {"conv_mod.", "cgmlp.csgu."},
                                   {"channel_proj", "cgmlp.channel_proj"},
                                   {"depthwise_conv_mod.conv.", "depthwise_conv_fusion."},
                                   {"norm_feed_forward.", "norm_ff."},
                                   {"norm_feed_forward_macaron.", "norm_ff_macaron."},
                                   {"norm_self_att.", "norm_mha."}};

template <std::size_t N>
std::string renamed(const std::string& name, const Names (&table)[N]) {
  for (const auto& [was, is] : table)
    if (name.starts_with(was)) return is.empty() ? "" : std::string(is) + name.substr(was.size());
  return name;
}

}  // namespace

bool is_transducer_task(const StateDict& weights) {
  return weights.contains(std::string(kLastNorm) + "weight");
}

StateDict rename_transducer_task(const StateDict& weights) {
  const bool is_conformer =
      weights.contains(std::string(kBlocks) + "0.conv_mod.pointwise_conv1.weight");
  StateDict out;
  for (const auto& [old, tensor] : weights) {
    std::string name = renamed(old, kParts);
    if (old.starts_with(kBlocks)) {
      const std::size_t dot = old.find('.', kBlocks.size());
      const std::string rest = old.substr(dot + 1);
      name = "encoder.encoders." + old.substr(kBlocks.size(), dot - kBlocks.size()) + "." +
             (is_conformer ? renamed(rest, kConformer) : renamed(rest, kBranchformer));
    }
    if (!name.empty()) out[name] = tensor;
  }
  return out;
}

}  // namespace tutti::speech
