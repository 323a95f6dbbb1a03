#include "tutti/speech/ops/gpu/relative_attention.h"

#include "tutti/core/error.h"

#ifdef TUTTI_WITH_CUDA_KERNELS
#include "tutti/speech/kernels/relative_attention.h"
#include "tutti/speech/ops/gpu/cuda_ops.h"
#include "tutti/speech/ops/gpu/tools.h"

namespace tutti::speech::gpu {

namespace {

// (B, T, D) as the kernels read it: frames at equal distances, in units of 16 bytes. It may be columns
// of a wider matrix.
torch::Tensor frames_of(const torch::Tensor& x) {
  const bool fits = x.stride(2) == 1 && x.stride(0) == x.size(1) * x.stride(1) &&
                    x.stride(1) % 8 == 0 && x.storage_offset() % 8 == 0;
  return fits ? x : x.contiguous();
}

class RelativeAttention : public Function<RelativeAttention> {
 public:
  static torch::Tensor forward(AutogradContext* context, const torch::Tensor& q_BTD,
                               const torch::Tensor& u, const torch::Tensor& v,
                               const torch::Tensor& key_BTD, const torch::Tensor& value_BTD,
                               const torch::Tensor& table_ND,
                               const std::optional<torch::Tensor>& valid, std::int64_t drop_key,
                               double rate) {
    const PlainArithmetic plain;
    const c10::cuda::CUDAGuard guard(q_BTD.device());
    const torch::Tensor q = frames_of(q_BTD), key = frames_of(key_BTD),
                        value = frames_of(value_BTD), table = table_ND.contiguous();
    const torch::Tensor mask = valid ? valid->contiguous() : torch::Tensor();
    const cuda::AttentionSize size(q.size(0), u.size(0), q.size(1), u.size(1));
    const auto stream = stream_of(q);
    const std::int64_t parts = size.heads * size.blocks;

    torch::Tensor with_u = fresh(q.sizes(), q.options());
    torch::Tensor with_v =
        fresh({parts, size.batch * cuda::kQueryBlock, size.head_size}, q.options());
    torch::Tensor spread = fresh({parts, size.columns, size.head_size}, q.options());
    torch::Tensor scores =
        fresh({parts, size.batch * cuda::kQueryBlock, size.columns}, q.options());
    cuda::attention_queries(size, q.data_ptr(), q.stride(1), floats(u), floats(v),
                            with_u.data_ptr(), with_v.data_ptr(), stream);
    cuda::spread_positions(size, table.data_ptr(), table.size(0), spread.data_ptr(), stream);
    at::bmm_out(scores, with_v, spread.transpose(1, 2));

    torch::Tensor out = fresh(q.sizes(), q.options());
    torch::Tensor sums =
        fresh({size.batch, size.heads, size.blocks * cuda::kQueryBlock}, floats_like(q));
    cuda::relative_attention(
        describe(size, with_u, key, value, mask, scores, {drop_key, rate}, out, sums), stream);
    variable_list saved{with_u, with_v, spread, key, value, scores, out, sums};
    if (valid) saved.push_back(mask);
    context->save_for_backward(saved);
    context->saved_data["table_rows"] = table.size(0);
    Dropping{drop_key, rate}.save(*context, "key", "rate");
    return out;
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const PlainArithmetic plain;
    const auto saved = context->get_saved_variables();
    const torch::Tensor &with_u = saved[0], &with_v = saved[1], &spread = saved[2], &key = saved[3],
                        &value = saved[4], &scores = saved[5], &out = saved[6], &sums = saved[7];
    const c10::cuda::CUDAGuard guard(with_u.device());
    const torch::Tensor g = gradients[0].contiguous();
    const std::int64_t head_size = spread.size(2), heads = with_u.size(2) / head_size;
    const cuda::AttentionSize size(with_u.size(0), heads, with_u.size(1), head_size);
    const auto stream = stream_of(g);
    const cuda::RelativeAttention call =
        describe(size, with_u, key, value, saved.size() > 8 ? saved[8] : torch::Tensor(), scores,
                 Dropping::load(*context, "key", "rate"), out, sums);

    torch::Tensor products = fresh_like(sums), grad_scores = fresh_like(scores),
                  grad_with_u = fresh_like(with_u);
    // Side by side, as the product that made queries, keys and values wants them.
    const std::int64_t width = with_u.size(2);
    const torch::Tensor all = fresh({with_u.size(0), with_u.size(1), 3 * width}, with_u.options());
    const torch::Tensor grad_q = all.narrow(2, 0, width), grad_k = all.narrow(2, width, width),
                        grad_v = all.narrow(2, 2 * width, width);
    cuda::RelativeAttentionBack back;
    back.grad_out = g.data_ptr();
    back.products = products.data_ptr<float>();
    back.grad_q = grad_with_u.data_ptr();
    back.grad_k = grad_k.data_ptr();
    back.grad_v = grad_v.data_ptr();
    back.grad_row = 3 * width;
    back.grad_scores = grad_scores.data_ptr();
    cuda::relative_attention_back(call, back, stream);

    torch::Tensor grad_with_v = fresh_like(with_v), grad_spread = fresh_like(spread);
    at::bmm_out(grad_with_v, grad_scores, spread);
    at::bmm_out(grad_spread, grad_scores.transpose(1, 2), with_v);
    torch::Tensor grad_table =
        fresh({context->saved_data["table_rows"].toInt(), heads * head_size}, g.options());
    cuda::gather_positions(size, grad_spread.data_ptr(), grad_table.size(0), grad_table.data_ptr(),
                           stream);
    torch::Tensor grad_uv = fresh({2, heads, head_size}, floats_like(g));
    cuda::attention_queries_back(size, grad_with_u.data_ptr(), grad_with_v.data_ptr(),
                                 grad_q.data_ptr(), 3 * width, grad_uv.data_ptr<float>(),
                                 scratch_for_sums(2, heads * head_size, g), stream);
    variable_list result(9);
    result[0] = grad_q;
    result[1] = grad_uv[0];
    result[2] = grad_uv[1];
    result[3] = grad_k;
    result[4] = grad_v;
    result[5] = grad_table;
    return result;
  }

 private:
  static cuda::RelativeAttention describe(const cuda::AttentionSize& size,
                                          const torch::Tensor& with_u, const torch::Tensor& key,
                                          const torch::Tensor& value, const torch::Tensor& valid,
                                          const torch::Tensor& scores, const Dropping& dropping,
                                          const torch::Tensor& out, const torch::Tensor& sums) {
    cuda::RelativeAttention call{.size = size};
    call.q = with_u.data_ptr();
    call.k = key.data_ptr();
    call.v = value.data_ptr();
    call.k_row = key.stride(1);
    call.v_row = value.stride(1);
    call.valid = bytes_of(valid);
    call.scores = scores.data_ptr();
    call.dropout = dropping.call();
    call.out = out.data_ptr();
    call.sums = sums.data_ptr<float>();
    return call;
  }
};

}  // namespace

bool can_fuse_attention(const torch::Tensor& q_BTD, const torch::Tensor& table_ND,
                        const torch::Tensor& u_Hd) {
  return has_cuda_ops(q_BTD) && q_BTD.scalar_type() == torch::kBFloat16 &&
         table_ND.scalar_type() == torch::kBFloat16 && can_be_floats(u_Hd) &&
         cuda::knows_head_size(u_Hd.size(1)) && q_BTD.numel() > 0;
}

torch::Tensor fused_relative_attention(const ThreeProducts& qkv, const torch::Tensor& u_Hd,
                                       const torch::Tensor& v_Hd, const torch::Tensor& table_ND,
                                       const torch::Tensor& valid_BT, double rate) {
  const Dropping dropping = Dropping::draw(rate);
  return RelativeAttention::apply(qkv.first, as_floats(u_Hd), as_floats(v_Hd), qkv.second,
                                  qkv.third, table_ND, given(valid_BT), dropping.key, rate);
}

}  // namespace tutti::speech::gpu

#else

namespace tutti::speech::gpu {

bool can_fuse_attention(const torch::Tensor&, const torch::Tensor&, const torch::Tensor&) {
  return false;
}
torch::Tensor fused_relative_attention(const ThreeProducts&, const torch::Tensor&,
                                       const torch::Tensor&, const torch::Tensor&,
                                       const torch::Tensor&, double) {
  throw InternalError("this build has no GPU kernels");
}

}  // namespace tutti::speech::gpu
#endif
