#include "tutti/systems/item_model.h"

#include <gtest/gtest.h>

#include "tutti/config/load.h"

namespace tutti::systems {
namespace {

TEST(ItemModel, SeveralUtterancesGoTogetherWhereTheConfigNamesAGpuOrSaysHowMany) {
  const auto together = [](const char* yaml) {
    return batch_size_of(config::parse_yaml(yaml, "inference.yaml"));
  };
  EXPECT_EQ(together("model: {asr_model_file: a.pth}"), 1U);
  EXPECT_EQ(together("model: {device: cpu}\nparallel: {env: local_gpu}"), 1U);
  for (const char* gpu : {"model: {device: cuda}", "model: {device: 'cuda:1'}",
                          "device: cuda\nmodel: {asr_model_file: a.pth}",
                          "model: {device: auto}\nparallel: {env: local_gpu}"})
    EXPECT_EQ(together(gpu), 32U) << gpu;
  EXPECT_EQ(together("model: {device: cuda, batch_size: 5}"), 5U);
  EXPECT_EQ(together("batch_size: 7\nmodel: {device: cuda, batch_size: 5}"), 7U);
  EXPECT_EQ(together("model: {_target_: torchscript}\nparallel: {env: local_gpu}"), 1U);
}

}  // namespace
}  // namespace tutti::systems
