// What kernels of ours reach of a GPU's limits: time, bytes/s and FLOP/s at the sizes of OWSM v4
// medium's decoder (one hypothesis, five) and of a LibriSpeech-100 training step (128 x 14.8 s).
//
//   bench_gpu_kernels
//
// The limits are measured first: a copy of 1 GiB, and a bf16 product of 8192 x 8192 matrices. Bytes are
// those that have to be read and written once. Every kernel runs 36 times in one launch, over as many
// operands as do not fit into the cache; the best of five turns.
#include <ATen/cuda/CUDAEvent.h>
#include <fmt/format.h>
#include <torch/torch.h>

#include <algorithm>
#include <functional>
#include <vector>

#include "tutti/speech/frontend/log_mel.h"
#include "tutti/speech/kernels/ctc_prefix.h"
#include "tutti/speech/kernels/few_rows.h"
#include "tutti/speech/kernels/fused.h"
#include "tutti/speech/kernels/input_conv.h"
#include "tutti/speech/kernels/relative_attention.h"
#include "tutti/speech/kernels/search_step.h"
#include "tutti/speech/kernels/smoothed_loss.h"
#include "tutti/speech/models/step_graph.h"
#include "tutti/speech/ops/gpu/log_mel.h"
#include "tutti/speech/ops/gpu/tools.h"
#include "tutti/trainer/cuda/adam.h"
#include "tutti/trainer/cuda/squared_norm.h"

namespace {

using namespace tutti::speech;
using torch::Tensor;

constexpr int kCalls = 36, kTurns = 5;
constexpr auto kType = cuda::Number::kBFloat16;

torch::TensorOptions halves() { return torch::device(torch::kCUDA).dtype(torch::kBFloat16); }
torch::TensorOptions floats() { return torch::device(torch::kCUDA).dtype(torch::kFloat32); }

double copy_rate = 0, product_rate = 0;  // bytes and operations per second

// Microseconds of one call.
double time_of(const std::function<void(int)>& call) {
  StepGraph graph;
  const Tensor nothing = torch::empty({1}, floats());
  const auto all = [&] {
    for (int i = 0; i < kCalls; ++i) call(i);
    return nothing;
  };
  const torch::Device device(torch::kCUDA, 0);
  for (int i = 0; i < 3; ++i) graph.run(device, all);
  double best = 1e30;
  for (int turn = 0; turn < kTurns; ++turn) {
    at::cuda::CUDAEvent begin(cudaEventDefault), end(cudaEventDefault);
    begin.record();
    graph.run(device, all);
    end.record();
    end.synchronize();
    best = std::min(best, static_cast<double>(begin.elapsed_time(end)) * 1e3 / kCalls);
  }
  return best;
}

void print_row(const std::string& name, double us, double bytes, double operations) {
  const double rate = bytes / us * 1e6, work = operations / us * 1e6;
  fmt::print("| {} | {:.2f} | {:.2f} ({:.0f} %) | {:.1f} ({:.0f} %) |\n", name, us, rate / 1e12,
             copy_rate > 0 ? 100 * rate / copy_rate : 100.0, work / 1e12,
             product_rate > 0 ? 100 * work / product_rate : 100.0);
}

void report(const std::string& name, double bytes, double operations,
            const std::function<void(int)>& call) {
  print_row(name, time_of(call), bytes, operations);
}

void limits() {
  const Tensor from = torch::ones({1 << 29}, halves()), to = torch::empty_like(from);
  const double us = time_of([&](int) { const_cast<Tensor&>(to).copy_(from); });
  copy_rate = 4.0 * (1 << 29) / us * 1e6;
  const Tensor a = torch::randn({8192, 8192}, halves()), b = torch::randn({8192, 8192}, halves());
  Tensor c = torch::empty({8192, 8192}, halves());
  product_rate = 2.0 * 8192 * 8192 * 8192 / time_of([&](int) { at::mm_out(c, a, b); }) * 1e6;
  fmt::print("limits: {:.2f} TB/s copied, {:.0f} TFLOP/s of bf16 products\n\n", copy_rate / 1e12,
             product_rate / 1e12);
}

void decoder_kernels(std::int64_t rows) {
  const std::int64_t size = 1024, vocabulary = 50002, layers = 18, heads = 16, frames = 384;
  const Tensor x = torch::randn({rows, size}, floats()), norm = torch::ones({size}, halves());
  const Tensor wide = torch::randn({rows, 4 * size}, halves()),
               bias = torch::zeros({vocabulary}, halves());
  const Tensor weights = torch::randn({layers, 4 * size, size}, halves());
  const Tensor output = torch::randn({vocabulary, size}, halves());
  const Tensor y = torch::empty({rows, vocabulary}, floats()),
               sum = torch::zeros({rows, size}, floats());
  const auto stream = [&] { return stream_of(x); };
  const auto weight = [&](int i) { return weights[i % layers].data_ptr(); };
  const auto describe = [&](std::int64_t out, const std::vector<const void*>& matrices) {
    cuda::NormProducts call;
    call.rows = rows;
    call.in = size;
    call.out = out;
    call.x = x.data_ptr<float>();
    call.norm_weight = call.norm_bias = norm.data_ptr();
    call.count = static_cast<int>(matrices.size());
    for (std::size_t i = 0; i < matrices.size(); ++i)
      call.outputs[i] = {matrices[i], bias.data_ptr(), y.data_ptr()};
    return call;
  };
  const auto products = [&](std::int64_t out, const void* matrix, bool float_y) {
    cuda::NormProducts call = describe(out, {matrix});
    call.float_y = float_y;
    cuda::norm_products(kType, call, stream());
  };
  const auto name = [&](const std::string& what) { return fmt::format("{}, {} rows", what, rows); };
  const auto product = [&](const std::string& what, std::int64_t out, std::int64_t in,
                           const std::function<void(int)>& call) {
    report(name(what), 2.0 * out * in, 2.0 * rows * out * in, call);
  };
  product("norm + 1024 x 1024", size, size, [&](int i) { products(size, weight(i), false); });
  product("norm + 4096 x 1024", 4 * size, size,
          [&](int i) { products(4 * size, weight(i), false); });
  product("1024 x 4096 + sum", size, 4 * size, [&](int i) {
    cuda::add_product(kType,
                      {.rows = rows,
                       .in = 4 * size,
                       .out = size,
                       .x = wide.data_ptr(),
                       .output = {weight(i), bias.data_ptr(), sum.data_ptr()}},
                      stream());
  });
  product("norm + 50002 x 1024", vocabulary, size,
          [&](int) { products(vocabulary, output.data_ptr(), true); });
  const Tensor memory = torch::randn({layers, 2, heads, frames, 64}, halves());
  const auto to_memory = [&](int i) {
    const Tensor kv = memory[i % layers];
    return cuda::AttendMemory{.utterances = 1,
                              .queries = rows,
                              .heads = heads,
                              .frames = frames,
                              .head_size = 64,
                              .q = wide.data_ptr(),
                              .keys = kv[0].data_ptr(),
                              .values = kv[1].data_ptr(),
                              .out = y.data_ptr()};
  };
  const double frame_bytes = 4.0 * frames * size, frame_work = 4.0 * rows * frames * size;
  report(name("attention to 384 frames"), frame_bytes, frame_work,
         [&](int i) { cuda::attend_memory(kType, to_memory(i), stream()); });
  const std::int64_t past = 37, capacity = 64;
  const Tensor said = torch::randn({layers, 2, rows, heads, capacity, 64}, halves());
  const auto ids = torch::device(torch::kCUDA).dtype(torch::kInt64);
  const Tensor position = torch::full({1}, past, ids),
               ancestors =
                   torch::arange(rows, ids.dtype(torch::kInt32)).unsqueeze(1).repeat({1, capacity});
  const auto to_past = [&](int i) {
    const Tensor kv = said[i % layers];
    const cuda::PastSize past_size{
        .rows = rows, .heads = heads, .capacity = capacity, .head_size = 64};
    return cuda::AttendPast{.size = past_size,
                            .q = wide.data_ptr(),
                            .k = wide.data_ptr(),
                            .v = wide.data_ptr(),
                            .k_cache = kv[0].data_ptr(),
                            .v_cache = kv[1].data_ptr(),
                            .ancestors = ancestors.data_ptr<std::int32_t>(),
                            .position = position.data_ptr<std::int64_t>(),
                            .out = y.data_ptr()};
  };
  const double past_bytes = 4.0 * rows * past * size;
  report(name("attention to 37 tokens"), past_bytes, past_bytes,
         [&](int i) { cuda::attend_past_few(kType, to_past(i), stream()); });
  if (!cuda::can_norm_attend_past(kType, size, 64) ||
      !cuda::can_norm_attend_memory(kType, size, 64))
    return;
  Tensor logits = torch::randn({layers, rows, vocabulary}, floats());
  const double logit_bytes = 8.0 * rows * vocabulary;
  report(name("log-softmax of 50002"), logit_bytes, 0, [&](int i) {
    cuda::log_softmax_rows(logits[i % layers].data_ptr<float>(), rows, vocabulary, stream());
  });
  report(name("log-softmax of 50002, torch's"), logit_bytes, 0,
         [&](int i) { torch::log_softmax(logits[i % layers], -1); });
  const double matrix = 2.0 * size * size;
  report(name("norm + q, k, v + attention to 37 tokens"), 3 * matrix + past_bytes,
         3 * matrix * rows + past_bytes, [&](int i) {
           const Tensor three = weights[i % layers].view({4, size, size});
           cuda::norm_attend_past(
               kType,
               describe(size, {three[0].data_ptr(), three[1].data_ptr(), three[2].data_ptr()}),
               to_past(i), stream());
         });
  report(name("norm + q + attention to 384 frames"), matrix + frame_bytes,
         matrix * rows + frame_work, [&](int i) {
           cuda::norm_attend_memory(kType, describe(size, {weight(i)}), to_memory(i), stream());
         });
}

// A search of 32 utterances of 15 s with 5 hypotheses each. A posterior that is asked for is a sector
// of 32 bytes.
void search_kernels() {
  const std::int64_t utterances = 32, beam = 5, count = 8, frames = 375, vocab = 5000;
  const auto ids = torch::device(torch::kCUDA).dtype(torch::kInt64);
  const auto doubles = torch::device(torch::kCUDA).dtype(torch::kFloat64);
  const Tensor log_probs =
      torch::log_softmax(torch::randn({utterances, frames, vocab}, floats()), -1);
  const Tensor ends = torch::full({utterances}, frames - 1, ids);
  const Tensor last = torch::randint(1, vocab - 1, {utterances, beam}, ids);
  const Tensor tokens = torch::randint(1, vocab - 1, {kCalls, utterances, beam, count}, ids);
  const Tensor parents = torch::randint(0, beam, {utterances, beam}, ids);
  const Tensor paths = -torch::arange(1, frames + 1, doubles).repeat({utterances, beam, 1});
  const Tensor either = torch::empty_like(paths), blank = torch::empty_like(paths);
  const Tensor scores = torch::empty({utterances, beam, count}, doubles);
  const cuda::CtcPrefixes prefixes{.utterances = utterances,
                                   .beam = beam,
                                   .frames = frames,
                                   .vocab = vocab,
                                   .log_probs = log_probs.data_ptr<float>(),
                                   .ends = ends.data_ptr<std::int64_t>(),
                                   .either = paths.data_ptr<double>(),
                                   .blank = paths.data_ptr<double>(),
                                   .last_token = last.data_ptr<std::int64_t>(),
                                   .eos_id = vocab - 1,
                                   .first_frame = 1};
  const double rows = static_cast<double>(utterances * beam), places = rows * frames;
  report("CTC prefix scores of 8 candidates", places * (8 + 32 * count), 0, [&](int i) {
    cuda::ctc_prefix_scores(prefixes, tokens[i].data_ptr<std::int64_t>(), count,
                            scores.data_ptr<double>(), stream_of(scores));
  });
  report("CTC prefixes, one token further", places * (8 + 2 * 32 + 2 * 8), 0, [&](int i) {
    cuda::ctc_prefix_advance(prefixes, parents.data_ptr<std::int64_t>(),
                             tokens[i].data_ptr<std::int64_t>(), either.data_ptr<double>(),
                             blank.data_ptr<double>(), stream_of(either));
  });

  struct Top {
    std::int64_t rows, vocab, count;
  };
  for (const Top& top : {Top{5, 50002, 5}, Top{utterances * beam, vocab, 7}}) {
    const Tensor x = torch::randn({top.rows, top.vocab}, floats());
    const Tensor best = torch::empty({top.rows, top.count}, ids),
                 values = torch::empty({top.rows, top.count}, doubles);
    report(fmt::format("best {} of {} x {}", top.count, top.rows, top.vocab), 4.0 * x.numel(), 0,
           [&](int) {
             cuda::best_tokens({.rows = top.rows,
                                .vocab = top.vocab,
                                .count = top.count,
                                .log_probs = x.data_ptr<float>(),
                                .ids = best.data_ptr<std::int64_t>(),
                                .values = values.data_ptr<double>()},
                               stream_of(x));
           });
  }
}

void training_kernels() {
  const std::int64_t batch = 128, frames = 369, size = 256, wide = 1024;
  const double positions = static_cast<double>(batch * frames);
  const Tensor x = torch::randn({batch, frames, wide}, halves()), y = torch::empty_like(x);
  const Tensor taps = torch::randn({wide, 31}, floats()), bias = torch::zeros({wide}, floats());
  const auto stream = [&] { return stream_of(x); };
  const cuda::ConvSize conv{batch, frames, 512, 31};
  report("depthwise convolution 31", 4 * positions * 512, 2 * 31 * positions * 512, [&](int) {
    cuda::depthwise_conv(kType, x.data_ptr(), taps.data_ptr<float>(), bias.data_ptr<float>(), {},
                         kType, y.data_ptr(), conv, stream());
  });
  Tensor grad_w = torch::empty({wide, 31}, floats()), grad_b = torch::empty({wide}, floats());
  Tensor partials = torch::empty({cuda::depthwise_conv_partials(conv)}, floats());
  report("its weights' gradient", 4 * positions * 512, 2 * 31 * positions * 512, [&](int) {
    cuda::depthwise_conv_weights(kType, x.data_ptr(), kType, y.data_ptr(), grad_w.data_ptr<float>(),
                                 grad_b.data_ptr<float>(), partials.data_ptr<float>(), conv,
                                 stream());
  });
  const cuda::Matrix matrix{batch * frames, wide};
  report("ReLU", 4 * positions * wide, positions * wide, [&](int) {
    cuda::activate(kType, x.data_ptr(), cuda::Curve::kRelu, {}, y.data_ptr(), matrix, stream());
  });
  const Tensor z = torch::empty_like(x);
  Tensor sums = torch::empty({wide}, floats());
  const cuda::Dropout tenth{.key = 7, .threshold = 214748365, .scale = 1.0F / 0.9F};
  report("swish + dropout, backward", 6 * positions * wide, 20 * positions * wide, [&](int) {
    cuda::activate_back(kType, x.data_ptr(), y.data_ptr(), cuda::Curve::kSwish, tenth, z.data_ptr(),
                        gpu::sums_to(sums, 1, wide), matrix, stream());
  });
  report("sums of columns", 2 * positions * wide, positions * wide, [&](int) {
    cuda::column_sums(kType, x.data_ptr(), gpu::sums_to(sums, 1, wide), matrix, stream());
  });
  const Tensor in = torch::randn({batch * frames, size}, floats()),
               added = torch::randn({batch * frames, size}, halves());
  const Tensor sum = torch::empty_like(in), normed = torch::empty_like(added),
               moments = torch::empty({2, batch * frames}, floats());
  cuda::AddNorm call;
  call.size = {batch * frames, size};
  call.x = in.data_ptr();
  call.type = call.y_type = kType;
  call.branch = added.data_ptr();
  call.sum = sum.data_ptr();
  call.norms[0] = {bias.data_ptr<float>(), bias.data_ptr<float>(), normed.data_ptr(),
                   normed.data_ptr()};
  call.mean = moments.data_ptr<float>();
  call.rstd = call.mean + batch * frames;
  report("add + norm", positions * size * (4 + 2 + 4 + 2), 8 * positions * size,
         [&](int) { cuda::add_norm(call, stream()); });
  const Tensor grad = torch::empty_like(in), grad_branch = torch::empty_like(added);
  Tensor parameters = torch::empty({3, size}, floats());
  report("its backward pass", positions * size * (4 + 2 + 4 + 4 + 2), 16 * positions * size,
         [&](int) {
           cuda::add_norm_back(call,
                               {.grad_sum = in.data_ptr(),
                                .grad_x = grad.data_ptr(),
                                .grad_branch = grad_branch.data_ptr(),
                                .grad_parameters = parameters.data_ptr<float>(),
                                .partials = gpu::scratch_for_sums(3, size, in)},
                               stream());
         });
  report("join, backward", 8 * positions * size, 4 * positions * size, [&](int) {
    const cuda::Join join{.size = call.size, .type = kType, .dropout_a = tenth, .dropout_b = tenth};
    cuda::join_back(join, x.data_ptr(), y.data_ptr(), z.data_ptr(), gpu::sums_to(sums, 2, size),
                    stream());
  });
  Tensor gate_moments = torch::ones({2, batch * frames}, floats());
  report("gate's norm, backward", 6 * positions * 512, 40 * positions * 512, [&](int) {
    cuda::Gate gate;
    gate.size = {batch * frames, 512};
    gate.type = kType;
    gate.h = x.data_ptr();
    gate.weight = bias.data_ptr<float>();
    gate.mean = gate_moments.data_ptr<float>();
    gate.rstd = gate.mean + batch * frames;
    cuda::gate_norm_back(gate, y.data_ptr(), z.data_ptr(), sums.data_ptr<float>(),
                         gpu::scratch_for_sums(2, 512, in), stream());
  });
}

void attention_kernels() {
  const cuda::AttentionSize size(128, 4, 369, 64);
  const Tensor qkv =
      torch::randn({size.batch, size.frames, 3, size.heads * size.head_size}, halves());
  const Tensor q = torch::randn({size.batch, size.frames, size.heads * size.head_size}, halves());
  const Tensor out = torch::empty_like(q), g = torch::randn_like(q);
  const Tensor grad_q = torch::empty_like(q), grad_k = torch::empty_like(q),
               grad_v = torch::empty_like(q);
  const Tensor scores = torch::randn(
      {size.heads, size.blocks, size.batch, cuda::kQueryBlock, size.columns}, halves());
  const Tensor grad_scores = torch::empty_like(scores);
  const Tensor sums =
      torch::empty({2, size.batch, size.heads, size.blocks * cuda::kQueryBlock}, floats());
  const auto call = [&](double rate) {
    cuda::RelativeAttention call{.size = size};
    call.q = q.data_ptr();
    call.k = qkv.select(2, 1).data_ptr();
    call.v = qkv.select(2, 2).data_ptr();
    call.k_row = call.v_row = qkv.stride(1);
    call.scores = scores.data_ptr();
    call.dropout = gpu::Dropping{12345, rate}.call();
    call.out = out.data_ptr();
    call.sums = sums.data_ptr<float>();
    return call;
  };
  cuda::RelativeAttentionBack back;
  back.grad_out = g.data_ptr();
  back.products = sums[1].data_ptr<float>();
  back.grad_q = grad_q.data_ptr();
  back.grad_k = grad_k.data_ptr();
  back.grad_v = grad_v.data_ptr();
  back.grad_row = grad_k.stride(1);
  back.grad_scores = grad_scores.data_ptr();
  const double vectors = 2.0 * q.numel(), whole = 2.0 * scores.numel(),
               pairs = static_cast<double>(size.batch * size.heads * size.frames * size.frames);
  for (const double rate : {0.0, 0.1}) {
    const std::string dropout = rate > 0 ? " and dropout" : "";
    report("attention with relative positions" + dropout, 4 * vectors + 2 * pairs,
           4 * pairs * size.head_size,
           [&](int) { cuda::relative_attention(call(rate), stream_of(q)); });
    report("its gradients" + dropout, 8 * vectors + 2 * pairs + whole, 10 * pairs * size.head_size,
           [&](int) { cuda::relative_attention_back(call(rate), back, stream_of(q)); });
  }
}

// Both ends of the model: features from samples, and the attention loss. 45 tokens an utterance.
void signal_kernels() {
  const std::int64_t batch = 128, samples = 236800, tokens = 46, classes = 5000;
  LogMelSettings settings;
  settings.win_length = 400;
  settings.hop_length = 160;
  LogMel frontend(Build{torch::kCUDA}, settings);
  const Tensor speech = 0.1 * torch::randn({batch, samples}, floats());
  const Tensor window = torch::hann_window(400, floats()),
               filters = mel_filters(settings).to(torch::kCUDA);
  const std::int64_t frames = frontend->num_frames(samples);
  const Lengths lengths(static_cast<std::size_t>(batch), samples);
  gpu::FusedLogMel fused;
  // Not recorded: it takes lengths from the host.
  const auto features = [&] {
    fused.run({.speech_BN = speech,
               .num_samples = lengths,
               .frames = frames,
               .fft_size = 512,
               .hop = 160,
               .margin = 256,
               .window = window,
               .filters_FM = filters});
  };
  for (int i = 0; i < 3; ++i) features();
  double best = 1e30;
  for (int turn = 0; turn < kTurns; ++turn) {
    at::cuda::CUDAEvent begin(cudaEventDefault), end(cudaEventDefault);
    begin.record();
    for (int i = 0; i < kCalls; ++i) features();
    end.record();
    end.synchronize();
    best = std::min(best, static_cast<double>(begin.elapsed_time(end)) * 1e3 / kCalls);
  }
  print_row("log-mel features from samples", best, 4.0 * (speech.numel() + batch * frames * 80),
            2.5 * 512 * 9 * static_cast<double>(batch * frames));

  const std::int64_t rows = batch * tokens;
  const auto ids = torch::device(torch::kCUDA).dtype(torch::kInt64);
  const Tensor logits = torch::randn({rows, classes}, halves()), grad = torch::empty_like(logits);
  const Tensor targets = torch::randint(0, classes, {rows}, ids),
               counts = torch::full({batch}, tokens, ids);
  const Tensor numbers = torch::ones({3 * rows + 8}, floats()),
               counter = torch::zeros({1}, torch::device(torch::kCUDA).dtype(torch::kInt32));
  float* at = numbers.data_ptr<float>();
  const cuda::SmoothedLoss call{.rows = rows,
                                .places = tokens,
                                .classes = static_cast<int>(classes),
                                .type = kType,
                                .logits = logits.data_ptr(),
                                .targets = targets.data_ptr<std::int64_t>(),
                                .lengths = counts.data_ptr<std::int64_t>(),
                                .right = 0.9F,
                                .other = 2e-5F,
                                .scale = at + 3 * rows,
                                .log_sums = at};
  auto* zero = reinterpret_cast<unsigned*>(counter.data_ptr<std::int32_t>());
  const double bytes = 2.0 * static_cast<double>(logits.numel());
  report("attention loss", bytes, 0, [&](int) {
    cuda::smoothed_loss(call, at + rows, at + 3 * rows + 1, zero, stream_of(logits));
  });
  report("its gradient", 2 * bytes, 0, [&](int) {
    cuda::smoothed_loss_back(call, at + 3 * rows, grad.data_ptr(), stream_of(logits));
  });
}

// The first convolution of the input layer: 80 bins to 256 channels of 39.
void input_kernels() {
  const cuda::InputConvSize size{
      .batch = 128, .frames = 1481, .bins = 80, .channels = 256, .stride = 2};
  const Tensor x = torch::randn({size.batch, size.frames, size.bins}, floats()),
               w = torch::randn({size.channels, 9}, floats()),
               bias = torch::randn({size.channels}, floats());
  const Tensor y = torch::empty({size.batch, size.out_frames(), size.out_bins(), size.channels},
                                halves()),
               g = torch::randn_like(y);
  const Tensor workspace = torch::empty({cuda::input_conv_workspace(size)}, floats()),
               grads = torch::empty({10 * size.channels}, floats());
  const double outputs = static_cast<double>(y.numel()), inputs = static_cast<double>(x.numel());
  report("first convolution + ReLU", 2 * outputs + 4 * inputs, 18 * outputs, [&](int) {
    cuda::input_conv_relu(x.data_ptr<float>(), w.data_ptr<float>(), bias.data_ptr<float>(), kType,
                          y.data_ptr(), size, stream_of(x));
  });
  report("its gradients", 4 * outputs + 4 * inputs, 18 * outputs, [&](int) {
    cuda::input_conv_relu_back(x.data_ptr<float>(), kType, g.data_ptr(), y.data_ptr(),
                               workspace.data_ptr<float>(), grads.data_ptr<float>(), size,
                               stream_of(x));
  });
}

// 38.5 M parameters in 600 tensors.
void update_kernels() {
  namespace update = tutti::trainer::cuda;
  const std::int64_t each = 64000, count = 600;
  const Tensor numbers = torch::ones({4, count, each}, floats());
  std::vector<update::AdamTensor> tensors;
  std::vector<update::Floats> gradients;
  for (std::int64_t i = 0; i < count; ++i) {
    const auto part = [&](std::int64_t n) { return numbers[n][i].data_ptr<float>(); };
    tensors.push_back({part(0), part(1), part(2), part(3), each, 1e-6F, 1});
    gradients.push_back({part(1), each});
  }
  const Tensor sums = torch::empty({update::squared_norm_partials(gradients) + 1}, floats());
  const double bytes = 4.0 * each * count;
  report("sum of gradients' squares", bytes, 0, [&](int) {
    update::squared_norm(gradients, sums.data_ptr<float>() + 1, sums.data_ptr<float>(),
                         stream_of(sums));
  });
  report("Adam", 7 * bytes, 0, [&](int) {
    update::adam(tensors, {.squared_norm = sums.data_ptr<float>(), .average = 1, .limit = 5},
                 stream_of(sums));
  });
}

}  // namespace

int main() {
  const torch::NoGradGuard no_grad;
  limits();
  fmt::print("| kernel | us | TB/s | TFLOP/s |\n|---|---|---|---|\n");
  for (const std::int64_t rows : {1, 5}) decoder_kernels(rows);
  search_kernels();
  training_kernels();
  attention_kernels();
  signal_kernels();
  input_kernels();
  update_kernels();
  return 0;
}
