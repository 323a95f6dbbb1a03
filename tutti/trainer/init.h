// How weights begin, by ESPnet's names (`init:` of the training config).
//
//   initialize(*model.module(), "xavier_uniform");
//
// xavier_*, kaiming_* and normal (deviation 0.02) fill what has two or more dimensions; biases
// become zero. chainer (and chainer_espnet1) draws from a normal distribution of variance 1 /
// fan-in, makes vectors zero and the forget gates' biases of recurrent layers one. Embeddings are
// drawn with variance one, normalisations begin as nothing (one and zero) with every method.
//
// Draws from torch's global generator: seed it first.
#pragma once

#include <torch/nn/module.h>

#include <string>

#include "tutti/trainer/model.h"

namespace tutti::trainer {

// By name and shape alone; for rooms with layers of their own. Throws ConfigError listing the
// methods.
void initialize_tensors(const NamedTensors& parameters, const std::string& method);

// The same, and the rules for torch's own layers. An empty method changes nothing.
void initialize(torch::nn::Module& module, const std::string& method);

// A whole model. Throws ConfigError where it is not made of torch's modules (a TorchScript file
// brings its weights along).
void initialize(TrainableModel& model, const std::string& method);

}  // namespace tutti::trainer
