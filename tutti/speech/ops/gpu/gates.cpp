#ifdef TUTTI_WITH_CUDA_KERNELS
#include "tutti/speech/ops/gpu/conv.h"
#include "tutti/speech/ops/gpu/cuda_ops.h"
#include "tutti/speech/ops/gpu/fused.h"
#include "tutti/speech/ops/gpu/known_sums.h"
#include "tutti/speech/ops/gpu/tools.h"

namespace tutti::speech::gpu {

namespace {

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
    cuda::position_queries(describe(input, head_size, scale), input.data_ptr(), floats(u),
                           floats(v), with_u.data_ptr(), with_v.data_ptr(), stream_of(q));
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
    torch::Tensor grad_b = fresh_like(grad_a), sums = fresh({2, grad_a.size(-1)}, floats_like(g));
    cuda::join_back(describe(grad_a, saved.empty() ? torch::Tensor() : saved[0],
                             Dropping::load(*context, "key_a", "rate"),
                             Dropping::load(*context, "key_b", "rate")),
                    g.data_ptr(), grad_a.data_ptr(), grad_b.data_ptr(),
                    sums_to(sums, 2, grad_a.size(-1)), stream_of(g));
    know_sums(grad_a, sums[0]);
    know_sums(grad_b, sums[1]);
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

}  // namespace

bool can_fuse_queries(const torch::Tensor& q_BTD, const torch::Tensor& u_Hd) {
  return has_cuda_ops(q_BTD) && is_plain(u_Hd) && u_Hd.size(1) % 8 == 0;
}

PositionQueries fused_position_queries(const torch::Tensor& q_BTD, const torch::Tensor& u_Hd,
                                       const torch::Tensor& v_Hd, double scale) {
  const auto results = Queries::apply(q_BTD, u_Hd, v_Hd, scale);
  return {results[0], results[1]};
}

bool can_fuse_gate(const torch::Tensor& h_BTC, const LayerNormImpl& norm, const Conv1dImpl& conv) {
  return has_cuda_ops(h_BTC) && can_be_floats(norm.weight) && can_be_floats(conv.weight) &&
         conv.shape().kernel % 2 == 1 && conv.shape().kernel < 64 &&
         cuda::knows_norm_width(norm.weight.size(0)) && h_BTC.numel() > 0;
}

torch::Tensor fused_gated_convolution(const torch::Tensor& h_BTC, const LayerNormImpl& norm,
                                      const Conv1dImpl& conv, const torch::Tensor& valid_BT,
                                      double rate) {
  const Dropping dropping = Dropping::draw(rate);
  return GatedConvolution::apply(h_BTC, as_floats(norm.weight), as_floats(norm.bias),
                                 as_floats(conv.weight), as_floats(conv.bias), given(valid_BT),
                                 norm.eps(), dropping.key, rate);
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

}  // namespace tutti::speech::gpu
#endif
