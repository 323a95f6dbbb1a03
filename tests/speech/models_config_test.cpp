#include "tutti/speech/models/asr_model.h"
#include "tutti/speech/models/model_config.h"

#include "tutti/speech/models/asr_model.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tutti/config/load.h"
#include "tutti/core/error.h"

namespace tutti::speech {
namespace {

TEST(ModelConfig, LibriSpeech100RecipeHasTheKnownNumberOfParameters) {
  config::Problems problems;
  const auto node = config::parse_yaml(R"(
vocab_size: 5000
encoder: e_branchformer
encoder_conf: {output_size: 256, attention_heads: 4, attention_layer_type: rel_selfattn, pos_enc_layer_type: rel_pos,
  rel_pos_type: latest, cgmlp_linear_units: 1024, cgmlp_conv_kernel: 31, use_linear_after_conv: false,
  gate_activation: identity, num_blocks: 12, dropout_rate: 0.1, positional_dropout_rate: 0.1,
  attention_dropout_rate: 0.1, input_layer: conv2d, layer_drop_rate: 0.0, linear_units: 1024,
  positionwise_layer_type: linear, use_ffn: true, macaron_ffn: true, merge_conv_kernel: 31}
decoder: transformer
decoder_conf: {attention_heads: 4, linear_units: 2048, num_blocks: 6}
model_conf: {ctc_weight: 0.3, lsm_weight: 0.1, length_normalized_loss: false}
frontend: default
frontend_conf: {n_fft: 512, win_length: 400, hop_length: 160}
)",
                                       "recipe.yaml");
  const AsrSettings settings = read_asr_model_block(node, false, problems);
  EXPECT_EQ(problems.describe(), "");
  EXPECT_EQ(count_parameters(settings), 38471952);
}

TEST(ModelConfig, OwsmV4MediumHasTheKnownNumberOfParameters) {
  config::Problems problems;
  const auto node = config::parse_yaml(R"(
frontend_conf: {n_fft: 512, win_length: 400, hop_length: 160, n_mels: 128}
specaug: specaug
specaug_conf: {apply_time_warp: false, time_warp_window: 5, time_warp_mode: bicubic, apply_freq_mask: true,
  freq_mask_width_range: [0, 27], num_freq_mask: 2, apply_time_mask: true, time_mask_width_ratio_range: [0., 0.05],
  num_time_mask: 10}
encoder: e_branchformer
encoder_conf: {output_size: 1024, attention_heads: 16, attention_layer_type: selfattn, pos_enc_layer_type: abs_pos,
  rel_pos_type: latest, cgmlp_linear_units: 4096, cgmlp_conv_kernel: 31, num_blocks: 18, input_layer: conv2d8,
  linear_units: 4096, positionwise_layer_type: linear, use_ffn: true, macaron_ffn: true, merge_conv_kernel: 31,
  use_flash_attn: true, gradient_checkpoint_layers: [0, 3, 6, 9, 12, 15, 18]}
decoder: transformer
decoder_conf: {attention_heads: 16, linear_units: 4096, num_blocks: 18, use_flash_attn: true,
  gradient_checkpoint_layers: [1, 3, 5, 7, 9, 11, 13, 15, 17]}
model_conf: {ctc_weight: 0.3, lsm_weight: 0.1, length_normalized_loss: false, sym_na: "<na>"}
vocab_size: 50002
init: none
)",
                                       "config.yaml");
  const AsrSettings settings = read_asr_model_block(node, /*is_s2t=*/true, problems);
  EXPECT_EQ(problems.describe(), "");
  EXPECT_EQ(count_parameters(settings), 1022134948);
}

TEST(ModelConfig, MistakesAreReportedTogetherWithTheirPlaces) {
  config::Problems problems;
  const auto node = config::parse_yaml(R"(task: espnet3.systems.asr.task.ASRTask
model:
  vocab_size: 30
  encoder: conformer
  encoder_conf:
    output_sise: 144
    attention_heads: 5
    cnn_module_kernel: 30
    normalize_before: false
  decoder: rnn
  specaug: specaug
  model_conf: {ctc_weight: 1.5}
)",
                                       "conf.yaml");
  read_asr_settings(node, problems);
  const std::string text = problems.describe();
  for (const char* part :
       {"conf.yaml:6:", "output_sise", "output_size", "not a multiple of attention_heads 5",
        "cnn_module_kernel", "normalize_before",
        "expected transformer, transducer, stateless or null", "time_mask_width_ratio_range",
        "ctc_weight"})
    EXPECT_NE(text.find(part), std::string::npos) << part << " in\n" << text;
}

TEST(ModelConfig, TokenListDecidesSizeAndSymbols) {
  config::Problems problems;
  const auto node = config::parse_yaml(R"(
token_list: [<blank>, <unk>, a, b, <sos/eos>]
encoder: transformer
model_conf: {ctc_weight: 1.0}
)",
                                       "m.yaml");
  const AsrSettings settings = read_asr_model_block(node, false, problems);
  EXPECT_EQ(problems.describe(), "");
  EXPECT_EQ(settings.vocab_size, 5);
  EXPECT_EQ(settings.sos_id, 4);
  EXPECT_EQ(settings.eos_id, 4);
  EXPECT_EQ(settings.normalize.kind, NormalizeKind::kUtterance);
  EXPECT_FALSE(settings.normalize.norm_vars);
}

}  // namespace
}  // namespace tutti::speech
