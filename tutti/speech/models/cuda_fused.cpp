#include "tutti/speech/models/cuda_fused.h"

#include "tutti/core/error.h"

#ifdef TUTTI_WITH_CUDA_KERNELS
#include <ATen/cuda/EmptyTensor.h>

#include <map>

#include "tutti/speech/cuda/fused.h"
#include "tutti/speech/cuda/gemm.h"
#include "tutti/speech/models/cuda_call.h"
#include "tutti/speech/models/cuda_conv.h"
#include "tutti/speech/models/cuda_ops.h"
#include "tutti/speech/models/dropout.h"

namespace tutti::speech {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

// As torch::empty, without the way through torch's dispatcher: half of a small kernel's launch.
torch::Tensor fresh(at::IntArrayRef sizes, const torch::TensorOptions& options) {
  return torch::Tensor(at::detail::empty_cuda(sizes, options));
}
torch::Tensor fresh_like(const torch::Tensor& x) { return fresh(x.sizes(), x.options()); }

thread_local const WeightCasts* current_casts = nullptr;

torch::Tensor cast_weight(const torch::Tensor& weight, torch::ScalarType type) {
  if (weight.scalar_type() == type) return weight;
  if (current_casts)
    if (torch::Tensor found = current_casts->find(weight, type); found.defined()) return found;
  return weight.to(type);
}

torch::Tensor as_rows(const torch::Tensor& x) { return x.reshape({-1, x.size(-1)}); }

// Like x with another last dimension.
std::vector<std::int64_t> with_last(const torch::Tensor& x, std::int64_t last) {
  std::vector<std::int64_t> sizes = x.sizes().vec();
  sizes.back() = last;
  return sizes;
}

cuda::Matrix matrix_of(const torch::Tensor& x) {
  return {.rows = x.numel() / x.size(-1), .columns = x.size(-1)};
}

torch::TensorOptions floats_like(const torch::Tensor& x) {
  return x.options().dtype(torch::kFloat32);
}

constexpr std::int64_t kScratchBytes = 32 << 20;
constexpr std::int64_t kCounterBytes = cuda::kCounters * sizeof(unsigned);

struct Scratch {
  unsigned* counters;  // zeros
  void* memory;
};

// Memory for what a kernel writes and the next one reads. What is queued on a stream runs in turn,
// so one piece for each thread and stream does for all of them; it is kept for the life of the
// process, as a thread may end after the driver has.
Scratch scratch(std::int64_t bytes, const torch::Tensor& like) {
  using Pieces = std::map<std::pair<int, void*>, torch::Tensor>;
  thread_local auto* pieces = new Pieces;
  torch::Tensor& piece = (*pieces)[{like.device().index(), stream_of(like)}];
  if (!piece.defined() || piece.numel() < kCounterBytes + bytes) {
    piece = fresh({kCounterBytes + std::max(bytes, kScratchBytes)},
                         like.options().dtype(torch::kUInt8));
    piece.narrow(0, 0, kCounterBytes).zero_();
  }
  auto* begin = static_cast<std::uint8_t*>(piece.data_ptr());
  return {reinterpret_cast<unsigned*>(begin), begin + kCounterBytes};
}
float* scratch_for_sums(int sums, std::int64_t columns, const torch::Tensor& like) {
  const std::int64_t bytes =
      cuda::partial_floats(sums, columns) * static_cast<std::int64_t>(sizeof(float));
  return static_cast<float*>(scratch(bytes, like).memory);
}
cuda::Sums sums_to(torch::Tensor& totals, int sums, std::int64_t columns) {
  float* partials = scratch_for_sums(sums, columns, totals);
  return {totals.data_ptr<float>(), partials, scratch(0, totals).counters};
}

const float* floats(const torch::Tensor& x) { return x.data_ptr<float>(); }

const std::uint8_t* bytes_of(const torch::Tensor& mask) {
  return mask.defined() ? static_cast<const std::uint8_t*>(mask.data_ptr()) : nullptr;
}

// Sum over rows, float32.
torch::Tensor sum_of_rows(const torch::Tensor& g_MN) {
  const std::int64_t columns = g_MN.size(1);
  if (columns % 8 != 0) return at::sum(g_MN, at::IntArrayRef{0}, false, torch::kFloat32);
  torch::Tensor sums = fresh({columns}, floats_like(g_MN));
  cuda::column_sums(number_of(g_MN), g_MN.data_ptr(), sums_to(sums, 1, columns), matrix_of(g_MN),
                    stream_of(g_MN));
  return sums;
}

void multiply(const cuda::Gemm& call, const torch::Tensor& a, const torch::Tensor& b,
              const torch::Tensor& bias, torch::Tensor& d) {
  cuda::gemm(call, a.data_ptr(), b.data_ptr(), bias.defined() ? bias.data_ptr() : nullptr,
             d.data_ptr(), scratch(kScratchBytes, a).memory, kScratchBytes, stream_of(a));
}

// x (.., K) times weight' (N, K), plus bias; (.., N).
torch::Tensor times_weight(const torch::Tensor& x, const torch::Tensor& weight_NK,
                           const torch::Tensor& bias_N) {
  torch::Tensor y = fresh(with_last(x, weight_NK.size(0)), x.options());
  multiply({.m = matrix_of(x).rows,
            .n = weight_NK.size(0),
            .k = weight_NK.size(1),
            .transpose_b = true,
            .in = number_of(x),
            .out = number_of(x)},
           x, weight_NK, bias_N, y);
  return y;
}

// The gradient of x: g (.., N) times weight (N, K), added to `to` where that is defined.
void through_weight(const torch::Tensor& g, const torch::Tensor& weight_NK, torch::Tensor& to) {
  const bool accumulate = to.defined();
  if (!accumulate) to = fresh(with_last(g, weight_NK.size(1)), g.options());
  multiply({.m = matrix_of(g).rows,
            .n = weight_NK.size(1),
            .k = weight_NK.size(0),
            .accumulate = accumulate,
            .in = number_of(g),
            .out = number_of(g)},
           g, weight_NK, {}, to);
}

// g' x, float32.
torch::Tensor weight_gradient(const torch::Tensor& g, const torch::Tensor& x) {
  torch::Tensor out = fresh({g.size(-1), x.size(-1)}, floats_like(g));
  multiply({.m = g.size(-1),
            .n = x.size(-1),
            .k = matrix_of(g).rows,
            .transpose_a = true,
            .in = number_of(g),
            .out = cuda::Number::kFloat},
           g, x, {}, out);
  return out;
}

torch::Tensor contiguous_as(const torch::Tensor& x, torch::ScalarType type) {
  return (x.scalar_type() == type ? x : x.to(type)).contiguous();
}

struct Dropping {
  std::int64_t key = 0;
  double rate = 0;

  static Dropping draw(double rate) {
    return {rate > 0 ? static_cast<std::int64_t>(draw_dropout_key()) : 0, rate};
  }
  void save(AutogradContext& context, const char* key_name, const char* rate_name) const {
    context.saved_data[key_name] = key;
    context.saved_data[rate_name] = rate;
  }
  static Dropping load(AutogradContext& context, const char* key_name, const char* rate_name) {
    return {context.saved_data[key_name].toInt(), context.saved_data[rate_name].toDouble()};
  }
  cuda::Dropout call() const {
    if (rate <= 0) return {};
    return {.key = static_cast<std::uint64_t>(key),
            .threshold = dropout_threshold(rate),
            .scale = static_cast<float>(1.0 / (1.0 - rate))};
  }
};

// Weights cast for a product are kept as they are: they change only after the backward pass, and
// their version does not matter, as the next step writes the same memory again.
void keep(AutogradContext& context, const char* name, const torch::Tensor& weight) {
  context.saved_data[name] = weight;
}

class Product : public Function<Product> {
 public:
  static torch::Tensor forward(AutogradContext* context, const torch::Tensor& x,
                               const torch::Tensor& weight, const std::optional<torch::Tensor>& bias,
                               std::int64_t out_type) {
    const PlainArithmetic plain;
    const c10::cuda::CUDAGuard guard(x.device());
    const auto type = static_cast<torch::ScalarType>(out_type);
    const torch::Tensor input = contiguous_as(x, type), w = cast_weight(weight, type);
    context->save_for_backward({input});
    keep(*context, "w", w);
    context->saved_data["bias"] = bias.has_value();
    context->saved_data["x_type"] = static_cast<std::int64_t>(x.scalar_type());
    return times_weight(input, w, bias ? cast_weight(*bias, type) : torch::Tensor());
  }
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const PlainArithmetic plain;
    const torch::Tensor x = context->get_saved_variables()[0],
                        w = context->saved_data["w"].toTensor();
    const c10::cuda::CUDAGuard guard(x.device());
    const torch::Tensor g = gradients[0].contiguous();
    variable_list result(4);
    if (context->needs_input_grad(0)) {
      through_weight(g, w, result[0]);
      result[0] =
          result[0].to(static_cast<torch::ScalarType>(context->saved_data["x_type"].toInt()));
    }
    if (context->needs_input_grad(1)) result[1] = weight_gradient(g, x);
    if (context->saved_data["bias"].toBool()) result[2] = sum_of_rows(as_rows(g));
    return result;
  }
};

class Products : public Function<Products> {
 public:
  static variable_list forward(AutogradContext* context, const torch::Tensor& x,
                               const torch::Tensor& w0, const torch::Tensor& b0,
                               const torch::Tensor& w1, const torch::Tensor& b1,
                               const torch::Tensor& w2, const torch::Tensor& b2,
                               std::int64_t out_type) {
    const PlainArithmetic plain;
    const c10::cuda::CUDAGuard guard(x.device());
    const auto type = static_cast<torch::ScalarType>(out_type);
    const torch::Tensor input = contiguous_as(x, type);
    context->save_for_backward({input});
    context->set_materialize_grads(false);
    context->saved_data["x_type"] = static_cast<std::int64_t>(x.scalar_type());
    variable_list results, w, b;
    for (const auto* weight : {&w0, &w1, &w2}) w.push_back(cast_weight(*weight, type));
    for (const auto* bias : {&b0, &b1, &b2}) b.push_back(cast_weight(*bias, type));
    // Copies that lie side by side (WeightCasts) are one matrix.
    const torch::Tensor whole_w = joined(w), whole_b = joined(b);
    if (whole_w.defined() && whole_b.defined()) {
      keep(*context, "w", whole_w);
      const torch::Tensor all = times_weight(input, whole_w, whole_b);
      const std::int64_t size = w0.size(0);
      for (std::int64_t i = 0; i < 3; ++i) results.push_back(all.narrow(-1, i * size, size));
      return results;
    }
    for (int i = 0; i < 3; ++i) {
      keep(*context, kNames[i], w[i]);
      results.push_back(times_weight(input, w[i], b[i]));
    }
    return results;
  }
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const PlainArithmetic plain;
    const torch::Tensor x = context->get_saved_variables()[0];
    const c10::cuda::CUDAGuard guard(x.device());
    variable_list result(8);
    const bool whole = context->saved_data.count("w") != 0 && gradients[0].defined() &&
                       gradients[1].defined() && gradients[2].defined();
    if (whole) {
      const torch::Tensor g = torch::cat(gradients, -1);
      through_weight(g, context->saved_data["w"].toTensor(), result[0]);
      const torch::Tensor grad_w = weight_gradient(g, x), grad_b = sum_of_rows(as_rows(g));
      const std::int64_t size = gradients[0].size(-1);
      for (std::int64_t i = 0; i < 3; ++i) {
        result[1 + 2 * i] = grad_w.narrow(0, i * size, size);
        result[2 + 2 * i] = grad_b.narrow(0, i * size, size);
      }
    }
    for (int i = 0; i < 3 && !whole; ++i) {
      if (!gradients[i].defined()) continue;
      const torch::Tensor g = gradients[i].contiguous();
      through_weight(g, weight_of(*context, i, g.size(-1)), result[0]);
      result[1 + 2 * i] = weight_gradient(g, x);
      result[2 + 2 * i] = sum_of_rows(as_rows(g));
    }
    if (result[0].defined())
      result[0] =
          result[0].to(static_cast<torch::ScalarType>(context->saved_data["x_type"].toInt()));
    return result;
  }

 private:
  // Rows of one matrix after the other in memory, as one; undefined if they do not lie so.
  static torch::Tensor joined(const variable_list& parts) {
    std::vector<std::int64_t> sizes = parts[0].sizes().vec();
    for (std::size_t i = 0; i + 1 < parts.size(); ++i)
      if (!parts[i].is_alias_of(parts[i + 1]) || parts[i].sizes() != parts[i + 1].sizes() ||
          parts[i + 1].storage_offset() != parts[i].storage_offset() + parts[i].numel())
        return {};
    sizes[0] *= static_cast<std::int64_t>(parts.size());
    return parts[0].as_strided(sizes, parts[0].strides());
  }
  static torch::Tensor weight_of(AutogradContext& context, int i, std::int64_t size) {
    if (context.saved_data.count("w") == 0) return context.saved_data[kNames[i]].toTensor();
    return context.saved_data["w"].toTensor().narrow(0, i * size, size);
  }
  static constexpr const char* kNames[3] = {"w0", "w1", "w2"};
};

cuda::Curve curve_of(Activation activation) {
  switch (activation) {
    case Activation::kRelu:
      return cuda::Curve::kRelu;
    case Activation::kSwish:
      return cuda::Curve::kSwish;
    default:
      return cuda::Curve::kIdentity;
  }
}

torch::Tensor dropped_on_gpu(const torch::Tensor& x, const Dropping& dropping) {
  const c10::cuda::CUDAGuard guard(x.device());
  torch::Tensor y = fresh_like(x);
  cuda::activate(number_of(x), x.data_ptr(), cuda::Curve::kIdentity, dropping.call(), y.data_ptr(),
                 {.rows = 1, .columns = x.numel()}, stream_of(x));
  return y;
}

class FusedDropout : public Function<FusedDropout> {
 public:
  static torch::Tensor forward(AutogradContext* context, const torch::Tensor& x, std::int64_t key,
                               double rate) {
    const PlainArithmetic plain;
    Dropping{key, rate}.save(*context, "key", "rate");
    return dropped_on_gpu(x.contiguous(), {key, rate});
  }
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const PlainArithmetic plain;
    return {dropped_on_gpu(gradients[0].contiguous(), Dropping::load(*context, "key", "rate")),
            torch::Tensor(), torch::Tensor()};
  }
};

class FusedFeedForward : public Function<FusedFeedForward> {
 public:
  static torch::Tensor forward(AutogradContext* context, const torch::Tensor& x,
                               const torch::Tensor& w1, const torch::Tensor& b1,
                               const torch::Tensor& w2, const torch::Tensor& b2,
                               std::int64_t activation, std::int64_t key, double rate,
                               std::int64_t out_type) {
    const PlainArithmetic plain;
    const c10::cuda::CUDAGuard guard(x.device());
    const auto type = static_cast<torch::ScalarType>(out_type);
    const torch::Tensor input = contiguous_as(x, type);
    const torch::Tensor w1_cast = cast_weight(w1, type), w2_cast = cast_weight(w2, type);
    const torch::Tensor h = times_weight(input, w1_cast, cast_weight(b1, type));
    torch::Tensor a = fresh_like(h);
    const Dropping dropping{key, rate};
    cuda::activate(number_of(h), h.data_ptr(), curve_of(static_cast<Activation>(activation)),
                   dropping.call(), a.data_ptr(), matrix_of(h), stream_of(h));
    context->save_for_backward({input, h, a});
    keep(*context, "w1", w1_cast);
    keep(*context, "w2", w2_cast);
    context->saved_data["activation"] = activation;
    context->saved_data["x_type"] = static_cast<std::int64_t>(x.scalar_type());
    dropping.save(*context, "key", "rate");
    return times_weight(a, w2_cast, cast_weight(b2, type));
  }
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const PlainArithmetic plain;
    const auto saved = context->get_saved_variables();
    const torch::Tensor &x = saved[0], &h = saved[1], &a = saved[2];
    const c10::cuda::CUDAGuard guard(x.device());
    const torch::Tensor w1 = context->saved_data["w1"].toTensor(),
                        w2 = context->saved_data["w2"].toTensor();
    const torch::Tensor g = gradients[0].contiguous();
    torch::Tensor grad_a, grad_h = fresh_like(h);
    through_weight(g, w2, grad_a);
    torch::Tensor grad_b1 = fresh({h.size(-1)}, floats_like(h));
    cuda::activate_back(
        number_of(h), grad_a.data_ptr(), h.data_ptr(),
        curve_of(static_cast<Activation>(context->saved_data["activation"].toInt())),
        Dropping::load(*context, "key", "rate").call(), grad_h.data_ptr(),
        sums_to(grad_b1, 1, h.size(-1)), matrix_of(h), stream_of(h));
    variable_list result(9);
    through_weight(grad_h, w1, result[0]);
    result[0] =
        result[0].to(static_cast<torch::ScalarType>(context->saved_data["x_type"].toInt()));
    result[1] = weight_gradient(grad_h, x);
    result[2] = grad_b1;
    result[3] = weight_gradient(g, a);
    result[4] = sum_of_rows(as_rows(g));
    return result;
  }
};

// Inputs: x, branch (or none), and weight and bias of one or two norms. Results: the sum if there
// is a branch, then the norms.
class AddNorm : public Function<AddNorm> {
 public:
  static variable_list forward(AutogradContext* context, const torch::Tensor& x,
                               const std::optional<torch::Tensor>& branch, const torch::Tensor& w1,
                               const torch::Tensor& b1, const std::optional<torch::Tensor>& w2,
                               const std::optional<torch::Tensor>& b2, double factor,
                               std::int64_t key, double rate, double eps, std::int64_t y_type) {
    const PlainArithmetic plain;
    const c10::cuda::CUDAGuard guard(x.device());
    const auto type = static_cast<torch::ScalarType>(y_type);
    context->set_materialize_grads(false);
    const torch::Tensor input = x.contiguous();
    const torch::Tensor added = branch ? branch->contiguous() : torch::Tensor();
    const torch::Tensor moments = fresh({2, matrix_of(input).rows}, input.options());
    variable_list results;
    torch::Tensor sum = input;
    if (branch) {
      sum = fresh_like(input);
      results.push_back(sum);
    }
    results.push_back(fresh(input.sizes(), input.options().dtype(type)));
    if (w2) results.push_back(fresh(input.sizes(), input.options().dtype(type)));
    cuda::AddNorm call = describe(input, added, sum, moments, type, factor, {key, rate}, eps);
    const std::size_t first = branch ? 1 : 0;
    call.norms[0] = {floats(w1), floats(b1), results[first].data_ptr(), nullptr};
    if (w2) call.norms[1] = {floats(*w2), floats(*b2), results[first + 1].data_ptr(), nullptr};
    cuda::add_norm(call, stream_of(input));
    variable_list saved{sum, moments, w1};
    if (w2) saved.push_back(*w2);
    context->save_for_backward(saved);
    context->saved_data["branch_type"] =
        static_cast<std::int64_t>(branch ? added.scalar_type() : torch::kFloat32);
    context->saved_data["with_branch"] = branch.has_value();
    context->saved_data["y_type"] = y_type;
    context->saved_data["factor"] = factor;
    context->saved_data["eps"] = eps;
    Dropping{key, rate}.save(*context, "key", "rate");
    return results;
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const PlainArithmetic plain;
    const auto saved = context->get_saved_variables();
    const torch::Tensor &sum = saved[0], &moments = saved[1];
    const c10::cuda::CUDAGuard guard(sum.device());
    const bool with_branch = context->saved_data["with_branch"].toBool();
    const auto branch_type =
        static_cast<torch::ScalarType>(context->saved_data["branch_type"].toInt());
    torch::Tensor grad_branch;
    if (with_branch) grad_branch = fresh(sum.sizes(), sum.options().dtype(branch_type));
    cuda::AddNorm call =
        describe(sum, grad_branch, sum, moments,
                 static_cast<torch::ScalarType>(context->saved_data["y_type"].toInt()),
                 context->saved_data["factor"].toDouble(), Dropping::load(*context, "key", "rate"),
                 context->saved_data["eps"].toDouble());
    const std::size_t norms = saved.size() - 2;
    std::vector<torch::Tensor> kept;  // until the kernel is queued
    for (std::size_t n = 0; n < norms; ++n) {
      const torch::Tensor& g = gradients[(with_branch ? 1 : 0) + n];
      kept.push_back(g.defined() ? g.contiguous() : g);
      call.norms[n] = {floats(saved[2 + n]), nullptr, nullptr,
                       g.defined() ? kept.back().data_ptr() : nullptr};
    }
    torch::Tensor grad_sum;
    if (with_branch && gradients[0].defined()) grad_sum = gradients[0].contiguous();
    const std::int64_t columns = sum.size(-1);
    torch::Tensor grad_x = fresh_like(sum);
    torch::Tensor grad_parameters =
        fresh({2 * static_cast<std::int64_t>(norms), columns}, sum.options());
    cuda::AddNormBack back;
    back.grad_sum = grad_sum.defined() ? floats(grad_sum) : nullptr;
    back.grad_x = grad_x.data_ptr<float>();
    back.grad_branch = with_branch ? grad_branch.data_ptr() : nullptr;
    back.grad_parameters = grad_parameters.data_ptr<float>();
    back.partials = scratch_for_sums(static_cast<int>(2 * norms), columns, sum);
    cuda::add_norm_back(call, back, stream_of(sum));
    variable_list result(11);
    result[0] = grad_x;
    result[1] = grad_branch;
    for (std::size_t n = 0; n < norms; ++n) {
      result[2 + 2 * n] = grad_parameters[2 * static_cast<std::int64_t>(n)];
      result[3 + 2 * n] = grad_parameters[2 * static_cast<std::int64_t>(n) + 1];
    }
    return result;
  }

 private:
  static cuda::AddNorm describe(const torch::Tensor& x, const torch::Tensor& branch,
                                const torch::Tensor& sum, const torch::Tensor& moments,
                                torch::ScalarType y_type, double factor, const Dropping& dropping,
                                double eps) {
    cuda::AddNorm call;
    call.size = matrix_of(x);
    call.x = floats(x);
    call.branch = branch.defined() ? branch.data_ptr() : nullptr;
    call.type = branch.defined() ? number_of(branch) : number_type(y_type).value();
    call.factor = static_cast<float>(factor);
    call.dropout = dropping.call();
    call.sum = sum.data_ptr<float>();
    call.y_type = number_type(y_type).value();
    call.eps = static_cast<float>(eps);
    call.mean = moments.data_ptr<float>();
    call.rstd = call.mean + call.size.rows;
    return call;
  }
};

class Queries : public Function<Queries> {
 public:
  static variable_list forward(AutogradContext* context, const torch::Tensor& q,
                               const torch::Tensor& u, const torch::Tensor& v, double scale) {
    const PlainArithmetic plain;
    const c10::cuda::CUDAGuard guard(q.device());
    // The queries may be columns of a wider matrix.
    const bool is_matrix = q.stride(2) == 1 && q.stride(0) == q.size(1) * q.stride(1) &&
                           q.stride(1) % 8 == 0 && q.storage_offset() % 8 == 0;
    const torch::Tensor input = is_matrix ? q : q.contiguous();
    const std::int64_t heads = u.size(0), head_size = u.size(1);
    torch::Tensor with_u = fresh({q.size(0), q.size(1), heads, head_size}, q.options());
    torch::Tensor with_v = fresh({heads, q.size(0) * q.size(1), head_size}, q.options());
    cuda::position_queries(describe(input, head_size, scale), input.data_ptr(), floats(u), floats(v),
                           with_u.data_ptr(), with_v.data_ptr(), stream_of(q));
    context->saved_data["scale"] = scale;
    return {with_u, with_v};
  }
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const PlainArithmetic plain;
    const c10::cuda::CUDAGuard guard(gradients[0].device());
    const torch::Tensor g_u = gradients[0].contiguous(), g_v = gradients[1].contiguous();
    const std::int64_t heads = g_u.size(2), head_size = g_u.size(3), columns = heads * head_size;
    torch::Tensor grad_q = fresh({g_u.size(0), g_u.size(1), columns}, g_u.options());
    torch::Tensor grad_uv = fresh({2, heads, head_size}, floats_like(g_u));
    cuda::position_queries_back(
        describe(grad_q, head_size, context->saved_data["scale"].toDouble()), g_u.data_ptr(),
        g_v.data_ptr(), grad_q.data_ptr(), sums_to(grad_uv, 2, columns), stream_of(g_u));
    return {grad_q, grad_uv[0], grad_uv[1], torch::Tensor()};
  }

 private:
  static cuda::Queries describe(const torch::Tensor& q, std::int64_t head_size, double scale) {
    return {.size = matrix_of(q),
            .head_size = head_size,
            .q_row = q.stride(1),
            .type = number_of(q),
            .scale = static_cast<float>(scale)};
  }
};

class GatedConvolution : public Function<GatedConvolution> {
 public:
  static torch::Tensor forward(AutogradContext* context, const torch::Tensor& h_BTC,
                               const torch::Tensor& norm_w, const torch::Tensor& norm_b,
                               const torch::Tensor& conv_w, const torch::Tensor& conv_b,
                               const std::optional<torch::Tensor>& valid, double eps,
                               std::int64_t key, double rate) {
    const PlainArithmetic plain;
    const c10::cuda::CUDAGuard guard(h_BTC.device());
    const torch::Tensor h = h_BTC.contiguous();
    const torch::Tensor mask = valid ? valid->contiguous() : torch::Tensor();
    const std::vector<std::int64_t> half = with_last(h, h.size(-1) / 2);
    torch::Tensor normed = fresh(half, h.options()), gate = fresh(half, h.options()),
                  y = fresh(half, h.options());
    const torch::Tensor moments = fresh({2, h.size(0) * h.size(1)}, floats_like(h));
    cuda::Gate call = describe(h, mask, moments, norm_w, eps, {key, rate});
    call.bias = floats(norm_b);
    cuda::gate_norm(call, normed.data_ptr(), stream_of(h));
    depthwise_conv_into(gate, normed, conv_w, conv_b, {});
    cuda::gate_multiply(call, gate.data_ptr(), y.data_ptr(), stream_of(h));
    variable_list saved{h, normed, gate, moments, norm_w, conv_w};
    if (valid) saved.push_back(mask);
    context->save_for_backward(saved);
    context->saved_data["eps"] = eps;
    Dropping{key, rate}.save(*context, "key", "rate");
    return y;
  }
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const PlainArithmetic plain;
    const auto saved = context->get_saved_variables();
    const torch::Tensor &h = saved[0], &normed = saved[1], &gate = saved[2], &conv_w = saved[5];
    const c10::cuda::CUDAGuard guard(h.device());
    const torch::Tensor g = gradients[0].contiguous();
    const cuda::Gate call =
        describe(h, saved.size() > 6 ? saved[6] : torch::Tensor(), saved[3], saved[4],
                 context->saved_data["eps"].toDouble(), Dropping::load(*context, "key", "rate"));
    torch::Tensor grad_gate = fresh_like(gate), grad_normed = fresh_like(gate),
                  grad_h = fresh_like(h);
    cuda::gate_multiply_back(call, gate.data_ptr(), g.data_ptr(), grad_gate.data_ptr(),
                             grad_h.data_ptr(), stream_of(h));
    depthwise_conv_into(grad_normed, grad_gate, conv_w, {}, {.flip = true});
    const auto [grad_conv_w, grad_conv_b] = depthwise_conv_gradients(normed, grad_gate, conv_w);
    const std::int64_t columns = normed.size(-1);
    torch::Tensor grad_norm = fresh({2, columns}, floats_like(h));
    cuda::gate_norm_back(call, grad_normed.data_ptr(), grad_h.data_ptr(),
                         grad_norm.data_ptr<float>(), scratch_for_sums(2, columns, h),
                         stream_of(h));
    variable_list result(9);
    result[0] = grad_h;
    result[1] = grad_norm[0];
    result[2] = grad_norm[1];
    result[3] = grad_conv_w;
    result[4] = grad_conv_b;
    return result;
  }

 private:
  static cuda::Gate describe(const torch::Tensor& h, const torch::Tensor& valid,
                             const torch::Tensor& moments, const torch::Tensor& norm_w, double eps,
                             const Dropping& dropping) {
    cuda::Gate call;
    call.size = {.rows = h.size(0) * h.size(1), .columns = h.size(2) / 2};
    call.type = number_of(h);
    call.h = h.data_ptr();
    call.valid = bytes_of(valid);
    call.weight = floats(norm_w);
    call.eps = static_cast<float>(eps);
    call.mean = moments.data_ptr<float>();
    call.rstd = call.mean + call.size.rows;
    call.dropout = dropping.call();
    return call;
  }
};

class JoinDropped : public Function<JoinDropped> {
 public:
  static torch::Tensor forward(AutogradContext* context, const torch::Tensor& a_BTC,
                               const torch::Tensor& b_BTC,
                               const std::optional<torch::Tensor>& valid, std::int64_t key_a,
                               std::int64_t key_b, double rate) {
    const PlainArithmetic plain;
    const c10::cuda::CUDAGuard guard(a_BTC.device());
    const torch::Tensor a = a_BTC.contiguous(), b = b_BTC.contiguous();
    const torch::Tensor mask = valid ? valid->contiguous() : torch::Tensor();
    torch::Tensor y = fresh(with_last(a, 2 * a.size(-1)), a.options());
    cuda::join(describe(a, mask, {key_a, rate}, {key_b, rate}), a.data_ptr(), b.data_ptr(),
               y.data_ptr(), stream_of(a));
    if (valid) context->save_for_backward({mask});
    Dropping{key_a, rate}.save(*context, "key_a", "rate");
    Dropping{key_b, rate}.save(*context, "key_b", "rate");
    return y;
  }
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const PlainArithmetic plain;
    const auto saved = context->get_saved_variables();
    const torch::Tensor g = gradients[0].contiguous();
    const c10::cuda::CUDAGuard guard(g.device());
    torch::Tensor grad_a = fresh(with_last(g, g.size(-1) / 2), g.options());
    torch::Tensor grad_b = fresh_like(grad_a);
    cuda::join_back(describe(grad_a, saved.empty() ? torch::Tensor() : saved[0],
                             Dropping::load(*context, "key_a", "rate"),
                             Dropping::load(*context, "key_b", "rate")),
                    g.data_ptr(), grad_a.data_ptr(), grad_b.data_ptr(), stream_of(g));
    variable_list result(6);
    result[0] = grad_a;
    result[1] = grad_b;
    return result;
  }

 private:
  static cuda::Join describe(const torch::Tensor& a, const torch::Tensor& valid,
                             const Dropping& drop_a, const Dropping& drop_b) {
    cuda::Join call;
    call.size = matrix_of(a);
    call.type = number_of(a);
    call.valid = bytes_of(valid);
    call.dropout_a = drop_a.call();
    call.dropout_b = drop_b.call();
    return call;
  }
};

// Autograd's functions take no undefined tensors.
std::optional<torch::Tensor> given(const torch::Tensor& x) {
  return x.defined() ? std::make_optional(x) : std::nullopt;
}

// Kernels read parameters sixteen bytes at a time; those of a flat buffer may lie anywhere.
bool is_plain(const torch::Tensor& parameter) {
  return parameter.scalar_type() == torch::kFloat32 && parameter.is_contiguous() &&
         reinterpret_cast<std::uintptr_t>(parameter.data_ptr()) % 16 == 0;
}

std::int64_t norm_type(const torch::Tensor& x, NormFor purpose) {
  return static_cast<std::int64_t>(purpose == NormFor::kProduct ? product_type(x)
                                                                : torch::kFloat32);
}

}  // namespace

std::optional<torch::ScalarType> fused_product_type(const torch::Tensor& x) {
  if (!x.is_cuda() || !cuda_autocast_on()) return std::nullopt;
  return product_type(x);
}

bool can_fuse_product(const torch::Tensor& x, const torch::Tensor& weight) {
  return has_cuda_ops(x) && cuda_autocast_on() && weight.scalar_type() == torch::kFloat32 &&
         x.numel() > 0;
}

torch::Tensor fused_product(const torch::Tensor& x, const torch::Tensor& weight,
                            const torch::Tensor& bias) {
  return Product::apply(x, weight, given(bias), static_cast<std::int64_t>(product_type(x)));
}

ThreeProducts fused_products(const torch::Tensor& x, const LinearImpl& first,
                             const LinearImpl& second, const LinearImpl& third) {
  const auto results =
      Products::apply(x, first.weight, first.bias, second.weight, second.bias, third.weight,
                      third.bias, static_cast<std::int64_t>(product_type(x)));
  return {results[0], results[1], results[2]};
}

bool can_fuse_dropout(const torch::Tensor& x) {
  return has_cuda_ops(x) && x.numel() > 0 && x.numel() % 8 == 0;
}

torch::Tensor fused_dropout(const torch::Tensor& x, double rate) {
  return FusedDropout::apply(x, Dropping::draw(rate).key, rate);
}

bool fused_curve(Activation activation) {
  return activation == Activation::kRelu || activation == Activation::kSwish ||
         activation == Activation::kIdentity;
}

torch::Tensor fused_feed_forward(const torch::Tensor& x, const LinearImpl& w_1,
                                 const LinearImpl& w_2, Activation activation, double rate) {
  const Dropping dropping = Dropping::draw(rate);
  return FusedFeedForward::apply(x, w_1.weight, w_1.bias, w_2.weight, w_2.bias,
                                 static_cast<std::int64_t>(activation), dropping.key, rate,
                                 static_cast<std::int64_t>(product_type(x)));
}

bool can_fuse_norm(const torch::Tensor& x, const LayerNormImpl& norm) {
  return has_cuda_ops(x) && x.scalar_type() == torch::kFloat32 && is_plain(norm.weight) &&
         is_plain(norm.bias) && cuda::knows_norm_width(norm.weight.size(0)) && x.numel() > 0;
}

torch::Tensor fused_norm(const torch::Tensor& x, const LayerNormImpl& norm, NormFor purpose) {
  return AddNorm::apply(x, std::nullopt, norm.weight, norm.bias, std::nullopt, std::nullopt, 1.0,
                        std::int64_t{0}, 0.0, norm.eps(), norm_type(x, purpose))[0];
}

SumAndNorms fused_add_and_norm(const torch::Tensor& x, const torch::Tensor& branch, double factor,
                               double rate, const LayerNormImpl& first, const LayerNormImpl* second,
                               NormFor purpose) {
  const Dropping dropping = Dropping::draw(rate);
  const std::int64_t type = norm_type(x, purpose);
  // The kernel has one type besides float32.
  torch::Tensor added = branch;
  if (type != static_cast<std::int64_t>(torch::kFloat32))
    added = added.to(static_cast<torch::ScalarType>(type));
  std::optional<torch::Tensor> weight, bias;
  if (second) {
    weight = second->weight;
    bias = second->bias;
  }
  const auto results =
      AddNorm::apply(x, std::make_optional(added), first.weight, first.bias, weight, bias, factor,
                     dropping.key, rate, first.eps(), type);
  return {results[0], results[1], second ? results[2] : torch::Tensor()};
}

bool can_fuse_queries(const torch::Tensor& q_BTD, const torch::Tensor& u_Hd) {
  return has_cuda_ops(q_BTD) && is_plain(u_Hd) && u_Hd.size(1) % 8 == 0;
}

PositionQueries fused_position_queries(const torch::Tensor& q_BTD, const torch::Tensor& u_Hd,
                                       const torch::Tensor& v_Hd, double scale) {
  const auto results = Queries::apply(q_BTD, u_Hd, v_Hd, scale);
  return {results[0], results[1]};
}

bool can_fuse_gate(const torch::Tensor& h_BTC, const LayerNormImpl& norm, const Conv1dImpl& conv) {
  return has_cuda_ops(h_BTC) && is_plain(norm.weight) && is_plain(norm.bias) &&
         is_plain(conv.weight) && is_plain(conv.bias) && conv.shape().kernel % 2 == 1 &&
         conv.shape().kernel < 64 && cuda::knows_norm_width(norm.weight.size(0)) &&
         h_BTC.numel() > 0;
}

torch::Tensor fused_gated_convolution(const torch::Tensor& h_BTC, const LayerNormImpl& norm,
                                      const Conv1dImpl& conv, const torch::Tensor& valid_BT,
                                      double rate) {
  const Dropping dropping = Dropping::draw(rate);
  return GatedConvolution::apply(h_BTC, norm.weight, norm.bias, conv.weight, conv.bias,
                                 given(valid_BT), norm.eps(), dropping.key, rate);
}

bool can_fuse_join(const torch::Tensor& a_BTC, const torch::Tensor& b_BTC) {
  return has_cuda_ops(a_BTC) && a_BTC.scalar_type() == b_BTC.scalar_type() &&
         a_BTC.size(-1) % 8 == 0 && a_BTC.numel() > 0;
}

torch::Tensor fused_join(const torch::Tensor& a_BTC, const torch::Tensor& b_BTC,
                         const torch::Tensor& valid_BT, double rate) {
  const Dropping first = Dropping::draw(rate), second = Dropping::draw(rate);
  return JoinDropped::apply(a_BTC, b_BTC, given(valid_BT), first.key, second.key, rate);
}

WeightCasts::Scope::Scope(const WeightCasts* casts) : before_(current_casts) {
  current_casts = casts;
}
WeightCasts::Scope::~Scope() { current_casts = before_; }

std::unique_ptr<WeightCasts::Scope> WeightCasts::refresh(const torch::nn::Module& model) {
#if TUTTI_TORCH_AT_LEAST(2, 4)
  if (!cuda_autocast_on()) return nullptr;
  torch::NoGradGuard no_grad;
  if (weights_.empty()) {
    std::vector<torch::Tensor> biases;
    for (const auto& module : model.modules(/*include_self=*/false)) {
      const auto* linear = dynamic_cast<const LinearImpl*>(module.get());
      if (!linear || linear->weight.scalar_type() != torch::kFloat32) continue;
      weights_.push_back(linear->weight);
      if (linear->bias.defined()) biases.push_back(linear->bias);
    }
    weights_.insert(weights_.end(), biases.begin(), biases.end());
  }
  if (weights_.empty()) return nullptr;
  for (const torch::Tensor& weight : weights_)
    if (!weight.is_cuda() || weight.storage().nbytes() == 0) return nullptr;
  const auto type = product_type(weights_[0]);
  if (casts_.empty() || casts_[0].scalar_type() != type ||
      casts_[0].device() != weights_[0].device()) {
    casts_.clear();
    places_.clear();
    // In one piece, weights first, then biases: those of a layer's query, key and value lie side by
    // side, and products() takes them at once.
    constexpr std::int64_t kAlignment = 128;  // elements; 256 bytes
    std::int64_t total = 0;
    std::vector<std::int64_t> offsets;
    for (const torch::Tensor& weight : weights_) {
      offsets.push_back(total);
      total += (weight.numel() + kAlignment - 1) / kAlignment * kAlignment;
    }
    const torch::Tensor piece = torch::empty({total}, weights_[0].options().dtype(type));
    for (std::size_t i = 0; i < weights_.size(); ++i) {
      places_[weights_[i].unsafeGetTensorImpl()] = i;
      casts_.push_back(
          piece.narrow(0, offsets[i], weights_[i].numel()).view(weights_[i].sizes()));
    }
  }
  at::_foreach_copy_(casts_, weights_);
  return std::make_unique<Scope>(this);
#else
  static_cast<void>(model);
  return nullptr;
#endif
}

torch::Tensor WeightCasts::find(const torch::Tensor& weight, torch::ScalarType type) const {
  const auto place = places_.find(weight.unsafeGetTensorImpl());
  if (place == places_.end() || casts_[place->second].scalar_type() != type) return {};
  return casts_[place->second];
}

}  // namespace tutti::speech

#else

namespace tutti::speech {

namespace {

[[noreturn]] void no_kernels() { throw InternalError("this build has no GPU kernels"); }

}  // namespace

std::optional<torch::ScalarType> fused_product_type(const torch::Tensor&) { return std::nullopt; }
bool can_fuse_product(const torch::Tensor&, const torch::Tensor&) { return false; }
torch::Tensor fused_product(const torch::Tensor&, const torch::Tensor&, const torch::Tensor&) {
  no_kernels();
}
ThreeProducts fused_products(const torch::Tensor&, const LinearImpl&, const LinearImpl&,
                             const LinearImpl&) {
  no_kernels();
}
bool can_fuse_dropout(const torch::Tensor&) { return false; }
torch::Tensor fused_dropout(const torch::Tensor&, double) { no_kernels(); }
bool fused_curve(Activation) { return false; }
torch::Tensor fused_feed_forward(const torch::Tensor&, const LinearImpl&, const LinearImpl&,
                                 Activation, double) {
  no_kernels();
}
bool can_fuse_norm(const torch::Tensor&, const LayerNormImpl&) { return false; }
torch::Tensor fused_norm(const torch::Tensor&, const LayerNormImpl&, NormFor) { no_kernels(); }
SumAndNorms fused_add_and_norm(const torch::Tensor&, const torch::Tensor&, double, double,
                               const LayerNormImpl&, const LayerNormImpl*, NormFor) {
  no_kernels();
}
bool can_fuse_queries(const torch::Tensor&, const torch::Tensor&) { return false; }
PositionQueries fused_position_queries(const torch::Tensor&, const torch::Tensor&,
                                       const torch::Tensor&, double) {
  no_kernels();
}
bool can_fuse_gate(const torch::Tensor&, const LayerNormImpl&, const Conv1dImpl&) { return false; }
torch::Tensor fused_gated_convolution(const torch::Tensor&, const LayerNormImpl&, const Conv1dImpl&,
                                      const torch::Tensor&, double) {
  no_kernels();
}
bool can_fuse_join(const torch::Tensor&, const torch::Tensor&) { return false; }
torch::Tensor fused_join(const torch::Tensor&, const torch::Tensor&, const torch::Tensor&, double) {
  no_kernels();
}
WeightCasts::Scope::Scope(const WeightCasts* casts) : before_(casts) {}
WeightCasts::Scope::~Scope() = default;
std::unique_ptr<WeightCasts::Scope> WeightCasts::refresh(const torch::nn::Module&) {
  return nullptr;
}
torch::Tensor WeightCasts::find(const torch::Tensor&, torch::ScalarType) const { return {}; }

}  // namespace tutti::speech
#endif
