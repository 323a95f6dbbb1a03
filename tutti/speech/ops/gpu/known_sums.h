// Sums over rows that a kernel made on its way. Where it wrote the gradient `g` of a product's result,
// their sum is the gradient of the product's bias, which would otherwise read all of g again.
//
//   know_sums(g, sums);            // the node that makes g
//   take_sums(g)                   // the node that gets it; undefined if g is another one, or changed
//
// A thread knows its last few. Internal to speech/.
#pragma once

#include <torch/types.h>

namespace tutti::speech::gpu {

void know_sums(const torch::Tensor& g, const torch::Tensor& sums);
torch::Tensor take_sums(const torch::Tensor& g);

}  // namespace tutti::speech::gpu
