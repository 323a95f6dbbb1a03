#ifdef TUTTI_WITH_CUDA_KERNELS
#include "tutti/speech/ops/gpu/cuda_ops.h"
#include "tutti/speech/ops/gpu/fused.h"
#include "tutti/speech/ops/gpu/known_sums.h"
#include "tutti/speech/ops/gpu/tools.h"

namespace tutti::speech::gpu {

namespace {

// Inputs: x, branch (or none), and weight and bias of one or two norms. Results: the sum (without a
// branch x itself, if it `passes`), then the norms.
class AddNorm : public Function<AddNorm> {
 public:
  static variable_list forward(AutogradContext* context, const torch::Tensor& x,
                               const std::optional<torch::Tensor>& branch, const torch::Tensor& w1,
                               const torch::Tensor& b1, const std::optional<torch::Tensor>& w2,
                               const std::optional<torch::Tensor>& b2, double factor,
                               std::int64_t key, double rate, double eps, std::int64_t y_type,
                               bool passes) {
    const PlainArithmetic plain;
    const c10::cuda::CUDAGuard guard(x.device());
    const auto type = static_cast<torch::ScalarType>(y_type);
    context->set_materialize_grads(false);
    const torch::Tensor input = x.contiguous();
    const torch::Tensor added = branch ? branch->contiguous() : torch::Tensor();
    const torch::Tensor moments = fresh({2, matrix_of(input).rows}, floats_like(input));
    variable_list results;
    torch::Tensor sum = input;
    if (branch) {
      sum = fresh_like(input);
      results.push_back(sum);
    } else if (passes) {
      results.push_back(x);
    }
    results.push_back(fresh(input.sizes(), input.options().dtype(type)));
    if (w2) results.push_back(fresh(input.sizes(), input.options().dtype(type)));
    cuda::AddNorm call = describe(input, added, sum, moments, type, factor, {key, rate}, eps);
    const std::size_t first = branch || passes ? 1 : 0;
    call.norms[0] = {floats(w1), floats(b1), results[first].data_ptr(), nullptr};
    if (w2) call.norms[1] = {floats(*w2), floats(*b2), results[first + 1].data_ptr(), nullptr};
    cuda::add_norm(call, stream_of(input));
    variable_list saved{sum, moments, w1};
    if (w2) saved.push_back(*w2);
    context->save_for_backward(saved);
    context->saved_data["branch_type"] =
        static_cast<std::int64_t>(branch ? added.scalar_type() : torch::kFloat32);
    context->saved_data["with_branch"] = branch.has_value();
    context->saved_data["with_sum"] = branch || passes;
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
    const bool with_branch = context->saved_data["with_branch"].toBool(),
               with_sum = context->saved_data["with_sum"].toBool();
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
      const torch::Tensor& g = gradients[(with_sum ? 1 : 0) + n];
      kept.push_back(g.defined() ? g.contiguous() : g);
      call.norms[n] = {floats(saved[2 + n]), nullptr, nullptr,
                       g.defined() ? kept.back().data_ptr() : nullptr};
    }
    torch::Tensor grad_sum;
    if (with_sum && gradients[0].defined()) grad_sum = gradients[0].contiguous();
    const std::int64_t columns = sum.size(-1);
    torch::Tensor grad_x = fresh_like(sum);
    const auto num_norms = static_cast<std::int64_t>(norms);
    torch::Tensor grad_parameters = fresh({2 * num_norms + 1, columns}, floats_like(sum));
    cuda::AddNormBack back;
    back.grad_sum = grad_sum.defined() ? grad_sum.data_ptr() : nullptr;
    back.grad_x = grad_x.data_ptr();
    back.grad_branch = with_branch ? grad_branch.data_ptr() : nullptr;
    back.grad_parameters = grad_parameters.data_ptr<float>();
    back.partials = scratch_for_sums(static_cast<int>(2 * norms + 1), columns, sum);
    cuda::add_norm_back(call, back, stream_of(sum));
    if (with_branch) know_sums(grad_branch, grad_parameters[2 * num_norms]);
    variable_list result(12);
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
    call.x_type = number_of(x);
    call.x = x.data_ptr();
    call.branch = branch.defined() ? branch.data_ptr() : nullptr;
    call.type = branch.defined() ? number_of(branch) : number_type(y_type).value();
    call.factor = static_cast<float>(factor);
    call.dropout = dropping.call();
    call.sum = sum.data_ptr();
    call.y_type = number_type(y_type).value();
    call.eps = static_cast<float>(eps);
    call.mean = moments.data_ptr<float>();
    call.rstd = call.mean + call.size.rows;
    return call;
  }
};

std::int64_t norm_type(const torch::Tensor& x, NormFor purpose) {
  return static_cast<std::int64_t>(purpose == NormFor::kProduct ? product_type(x)
                                                                : x.scalar_type());
}

}  // namespace

bool can_fuse_norm(const torch::Tensor& x, const LayerNormImpl& norm) {
  // What is summed is float32, or everything is of one type.
  const bool known = x.scalar_type() == torch::kFloat32
                         ? is_plain(norm.weight) && is_plain(norm.bias)
                         : norm.weight.scalar_type() == x.scalar_type() && !cuda_autocast_on();
  return has_cuda_ops(x) && known && cuda::knows_norm_width(norm.weight.size(0)) && x.numel() > 0;
}

torch::Tensor fused_norm(const torch::Tensor& x, const LayerNormImpl& norm, NormFor purpose) {
  return AddNorm::apply(x, std::nullopt, as_floats(norm.weight), as_floats(norm.bias), std::nullopt,
                        std::nullopt, 1.0, std::int64_t{0}, 0.0, norm.eps(), norm_type(x, purpose),
                        /*passes=*/false)[0];
}

SumAndNorms fused_with_norms(const torch::Tensor& x, const LayerNormImpl& first,
                             const LayerNormImpl* second) {
  std::optional<torch::Tensor> weight, bias;
  if (second) {
    weight = as_floats(second->weight);
    bias = as_floats(second->bias);
  }
  const auto results = AddNorm::apply(
      x, std::nullopt, as_floats(first.weight), as_floats(first.bias), weight, bias, 1.0,
      std::int64_t{0}, 0.0, first.eps(), norm_type(x, NormFor::kProduct), /*passes=*/true);
  return {results[0], results[1], second ? results[2] : torch::Tensor()};
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
    weight = as_floats(second->weight);
    bias = as_floats(second->bias);
  }
  const auto results =
      AddNorm::apply(x, std::make_optional(added), as_floats(first.weight), as_floats(first.bias),
                     weight, bias, factor, dropping.key, rate, first.eps(), type, /*passes=*/false);
  return {results[0], results[1], second ? results[2] : torch::Tensor()};
}

}  // namespace tutti::speech::gpu
#endif
