// What a speech recogniser is made of, as plain numbers and names: model_config.h reads it from a file, asr_model.h
// builds it. Torch-free, so that `config check` reads models with the same code as training.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace tutti::speech {

enum class Activation { kRelu, kSwish, kTanh, kHardtanh, kSelu, kIdentity };

enum class PositionKind { kNone, kAbsolute, kRelative, kLegacyRelative };

struct LogMelSettings {
  int fs = 16000;  // Hz
  int n_fft = 512;
  std::optional<int> win_length;  // samples; null: n_fft
  int hop_length = 128;           // samples
  std::string window = "hann";    // hann, hamming, blackman, bartlett
  bool center = true;
  bool normalized = false;
  int n_mels = 80;
  std::optional<double> fmin;  // Hz; null: 0
  std::optional<double> fmax;  // Hz; null: fs / 2
  bool htk = false;
};

enum class NormalizeKind { kNone, kGlobal, kUtterance };

struct NormalizeSettings {
  NormalizeKind kind = NormalizeKind::kUtterance;
  std::string stats_file;  // kGlobal: .npz with count, sum, sum_square
  bool norm_means = true;
  bool norm_vars = true;  // kUtterance's default is false
  double eps = 1e-20;
};

struct SpecAugmentSettings {
  bool apply_time_warp = true;
  int time_warp_window = 5;  // frames
  std::string time_warp_mode = "bicubic";
  bool apply_freq_mask = true;
  std::pair<int, int> freq_mask_width_range = {0, 20};  // bins, upper end excluded
  int num_freq_mask = 2;
  bool apply_time_mask = true;
  std::optional<std::pair<int, int>> time_mask_width_range;              // frames, or
  std::optional<std::pair<double, double>> time_mask_width_ratio_range;  // parts of the length
  int num_time_mask = 2;
  bool replace_with_zero = true;  // false: the batch's mean
};

enum class EncoderKind { kTransformer, kConformer, kEBranchformer };

struct EncoderSettings {
  EncoderKind kind = EncoderKind::kConformer;
  std::int64_t input_size = 80;
  std::int64_t output_size = 256;
  std::int64_t attention_heads = 4;
  std::int64_t linear_units = 2048;
  std::int64_t num_blocks = 6;
  double dropout_rate = 0.1;
  double positional_dropout_rate = 0.1;
  double attention_dropout_rate = 0.0;
  std::string input_layer =
      "conv2d";  // conv1d1, conv1d2, conv1d3, conv2d, conv2d1, 2, 6, 8, linear
  PositionKind positions = PositionKind::kRelative;
  std::int64_t max_pos_emb_len = 5000;  // legacy relative positions count down from here
  bool zero_triu = false;
  bool qk_norm = false;
  Activation activation = Activation::kSwish;  // of the feed-forward layers
  bool macaron = false;
  bool use_ffn = true;         // e_branchformer
  bool use_cnn_module = true;  // conformer
  int conv_kernel = 31;        // conformer: cnn_module_kernel, e_branchformer: cgmlp_conv_kernel
  std::int64_t cgmlp_linear_units = 2048;
  bool use_linear_after_conv = false;
  Activation gate_activation = Activation::kIdentity;
  int merge_conv_kernel = 3;  // 0: none, as in a Branchformer
  bool causal_conv = false;   // convolutions over time see no later frames (models for streams)
  bool scale_input = true;    // of the blocks, by the root of output_size
  double layer_drop_rate = 0.0;
  std::vector<double> stochastic_depth_rate;     // empty, or one per block
  std::vector<bool> cross_attention;             // of a prompt: empty, or one per block
  std::vector<std::int64_t> interctc_layer_idx;  // from 1, below num_blocks
  bool interctc_use_conditioning = false;
  std::vector<std::int64_t> gradient_checkpoint_layers;  // 0: the input layer, then blocks from 1
};

struct DecoderSettings {
  std::int64_t vocab_size = 0;
  std::int64_t size = 256;  // of the encoder's output
  std::int64_t attention_heads = 4;
  std::int64_t linear_units = 2048;
  std::int64_t num_blocks = 6;
  double dropout_rate = 0.1;
  double positional_dropout_rate = 0.1;
  double self_attention_dropout_rate = 0.0;
  double src_attention_dropout_rate = 0.0;
  double layer_drop_rate = 0.0;
  bool qk_norm = false;
  std::vector<std::int64_t> gradient_checkpoint_layers;  // from 1
};

struct PredictorSettings {
  std::string kind = "lstm";  // lstm, gru, stateless
  std::int64_t vocab_size = 0;
  std::int64_t num_layers = 1;  // of the recurrent kinds
  std::int64_t hidden_size = 320;
  std::int64_t embed_size = 0;  // of a token's vector; 0: hidden_size
  double dropout = 0.0;
  double dropout_embed = 0.0;
  std::int64_t blank_id = 0;  // also the start symbol
};

struct JointSettings {
  std::int64_t joint_space_size = 256;
  Activation activation = Activation::kTanh;
  bool predictor_bias = true;
};

struct CtcSettings {
  double dropout_rate = 0.0;
  bool zero_infinity =
      true;  // an utterance too short for its text costs nothing instead of infinity
};

enum class AsrDecoderKind { kNone, kAttention, kTransducer };

struct AsrSettings {
  std::vector<std::string> token_list;
  std::int64_t vocab_size = 0;  // token_list's size, when there is one

  // Samples come in and features are made here; without a frontend, features of input_size come in.
  bool use_frontend = true;
  std::int64_t input_size = 0;
  LogMelSettings frontend;
  std::optional<SpecAugmentSettings> specaug;
  NormalizeSettings normalize;

  EncoderSettings encoder;
  // OWSM-CTC: what reads the text before; language and task go in front of the frames.
  std::optional<EncoderSettings> prompt_encoder;
  CtcSettings ctc;
  AsrDecoderKind decoder_kind = AsrDecoderKind::kAttention;
  DecoderSettings decoder;
  PredictorSettings predictor;
  JointSettings joint;

  // model_conf
  double ctc_weight = 0.5;
  double interctc_weight = 0.0;
  double lsm_weight = 0.0;
  bool length_normalized_loss = false;
  std::int64_t blank_id = 0;
  std::int64_t sos_id = 0, eos_id = 0;  // both the last token, unless token_list says otherwise

  std::string init;  // "" or a name of trainer/init.h
};

}  // namespace tutti::speech
