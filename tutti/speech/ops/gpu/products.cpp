#ifdef TUTTI_WITH_CUDA_KERNELS
#include "tutti/speech/kernels/gemm.h"
#include "tutti/speech/ops/gpu/cuda_ops.h"
#include "tutti/speech/ops/gpu/fused.h"
#include "tutti/speech/ops/gpu/known_sums.h"
#include "tutti/speech/ops/gpu/tools.h"

namespace tutti::speech::gpu {

namespace {

// Sum over rows (all dimensions but the last), float32.
torch::Tensor sum_of_rows(const torch::Tensor& g) {
  if (torch::Tensor known = take_sums(g); known.defined()) return known;
  const std::int64_t columns = g.size(-1);
  if (columns % 8 != 0) return at::sum(as_rows(g), at::IntArrayRef{0}, false, torch::kFloat32);
  torch::Tensor sums = fresh({columns}, floats_like(g));
  cuda::column_sums(number_of(g), g.data_ptr(), sums_to(sums, 1, columns), matrix_of(g),
                    stream_of(g));
  return sums;
}

void multiply(const cuda::Gemm& call, const torch::Tensor& a, const torch::Tensor& b,
              const torch::Tensor& bias, torch::Tensor& d) {
  cuda::gemm(call, a.data_ptr(), b.data_ptr(), bias.defined() ? bias.data_ptr() : nullptr,
             d.data_ptr(), scratch(kScratchBytes, a).memory, kScratchBytes, stream_of(a));
}

// x (.., K) times weight' (N, K), plus bias; (.., N).
torch::Tensor times_weight(const torch::Tensor& x, const torch::Tensor& weight_NK,
                           const torch::Tensor& bias_N, bool as_others = false) {
  torch::Tensor y = fresh(with_last(x, weight_NK.size(0)), x.options());
  multiply({.m = matrix_of(x).rows,
            .n = weight_NK.size(0),
            .k = weight_NK.size(1),
            .transpose_b = true,
            .as_others = as_others,
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

// Weights cast for a product are kept as they are: they change only after the backward pass, and
// their version does not matter, as the next step writes the same memory again.
void keep(AutogradContext& context, const char* name, const torch::Tensor& weight) {
  context.saved_data[name] = weight;
}

class Product : public Function<Product> {
 public:
  static torch::Tensor forward(AutogradContext* context, const torch::Tensor& x,
                               const torch::Tensor& weight,
                               const std::optional<torch::Tensor>& bias, std::int64_t out_type) {
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
    if (context->saved_data["bias"].toBool()) result[2] = sum_of_rows(g);
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
      torch::Tensor g = side_by_side(gradients);
      if (!g.defined()) g = torch::cat(gradients, -1);
      through_weight(g, context->saved_data["w"].toTensor(), result[0]);
      const torch::Tensor grad_w = weight_gradient(g, x), grad_b = sum_of_rows(g);
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
      result[2 + 2 * i] = sum_of_rows(g);
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
  // Columns of one matrix, as that matrix; undefined if they are not.
  static torch::Tensor side_by_side(const variable_list& parts) {
    const torch::Tensor& first = parts[0];
    const std::int64_t width = first.size(-1);
    const auto count = static_cast<std::int64_t>(parts.size());
    std::vector<std::int64_t> sizes = first.sizes().vec(), strides = sizes;
    sizes.back() = count * width;
    std::int64_t stride = 1;
    for (std::size_t d = sizes.size(); d-- > 0; stride *= sizes[d]) strides[d] = stride;
    for (std::int64_t i = 0; i < count; ++i) {
      const torch::Tensor& part = parts[static_cast<std::size_t>(i)];
      if (!part.is_alias_of(first) || part.sizes() != first.sizes() ||
          part.strides() != at::IntArrayRef(strides) ||
          part.storage_offset() != first.storage_offset() + i * width)
        return {};
    }
    return first.as_strided(sizes, strides);
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
    result[0] = result[0].to(static_cast<torch::ScalarType>(context->saved_data["x_type"].toInt()));
    result[1] = weight_gradient(grad_h, x);
    result[2] = grad_b1;
    result[3] = weight_gradient(g, a);
    result[4] = sum_of_rows(g);
    return result;
  }
};

}  // namespace

std::optional<torch::ScalarType> fused_product_type(const torch::Tensor& x) {
  if (!x.is_cuda() || !cuda_autocast_on()) return std::nullopt;
  return product_type(x);
}

bool can_multiply(const torch::Tensor& x, const torch::Tensor& weight, const torch::Tensor& bias) {
  const auto type = weight.scalar_type();
  const auto readable = [&](const torch::Tensor& parameter) {
    return !parameter.defined() || (parameter.scalar_type() == type && parameter.is_contiguous());
  };
  return has_cuda_ops(x) && !torch::GradMode::is_enabled() && !cuda_autocast_on() &&
         (type == torch::kBFloat16 || type == torch::kFloat16) && x.scalar_type() == type &&
         readable(weight) && readable(bias) && x.numel() > 0 && weight.size(0) % 8 == 0 &&
         weight.size(1) % 8 == 0;
}

torch::Tensor multiplied(const torch::Tensor& x, const torch::Tensor& weight,
                         const torch::Tensor& bias) {
  const c10::cuda::CUDAGuard guard(x.device());
  return times_weight(x.contiguous(), weight, bias, /*as_others=*/true);
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

}  // namespace tutti::speech::gpu
#endif
