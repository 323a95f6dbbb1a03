#include "tutti/trainer/checkpoint/weights.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tutti/core/error.h"
#include "tutti/core/file.h"
#include "tutti/trainer/checkpoint/checkpoint.h"
#include "tutti/trainer/checkpoint/pth.h"

namespace tutti::trainer {
namespace {

using testing::HasSubstr;

TensorMap a_model() {
  return {{"encoder.weight", torch::randn({5, 7})},
          {"encoder.count", torch::full({}, 3, torch::kLong)},
          {"scale", torch::randn({4}).to(torch::kBFloat16)}};
}

void expect_same(const TensorMap& a, const TensorMap& b) {
  ASSERT_EQ(a.size(), b.size());
  for (const auto& [name, tensor] : a) EXPECT_TRUE(torch::equal(tensor, b.at(name))) << name;
}

TEST(Weights, GoFromACheckpointToBothKindsOfFileAndBack) {
  TempFolder folder;
  Checkpoint checkpoint;
  checkpoint.model = a_model();
  checkpoint.extra["trained/encoder.weight"] = torch::ones({5, 7});
  checkpoint.trainer = {{"step", 12}, {"world_size", 4}};
  write_checkpoint(folder.path() / "step-00000012", checkpoint);
  const auto source = open_weights(folder.path());  // the newest in the folder
  EXPECT_THAT(source->describe(), HasSubstr("step 12"));
  EXPECT_THAT(source->describe(), HasSubstr("4 ranks"));
  const auto pth = folder.path() / "x.pth", safe = folder.path() / "y.safetensors";
  write_weights(*source, pth);
  expect_same(read_pth(pth), checkpoint.model);
  write_weights(*open_weights(pth), safe);
  expect_same(read_safetensors(safe), checkpoint.model);
  write_weights(*open_weights(folder.path() / "step-00000012", /*trained=*/true), safe);
  EXPECT_TRUE(torch::equal(read_safetensors(safe).at("encoder.weight"), torch::ones({5, 7})));
  EXPECT_TRUE(torch::equal(read_safetensors(safe).at("scale"), checkpoint.model.at("scale")));
}

// Views and shared storages of a .pth file come out as tensors of their own.
TEST(Weights, RangesOfAFileAreReadAlone) {
  TempFolder folder;
  const auto path = folder.path() / "x.safetensors";
  const TensorMap tensors = a_model();
  write_safetensors(path, tensors);
  const SafetensorsFile file(path);
  const auto flat = tensors.at("encoder.weight").reshape({-1});
  EXPECT_TRUE(torch::equal(file.read("encoder.weight", 11, 9), flat.narrow(0, 11, 9)));
  EXPECT_EQ(file.read("encoder.weight", 35, 0).numel(), 0);
  EXPECT_THROW(file.read("encoder.weight", 30, 6), InternalError);
}

TEST(Weights, ADownloadThatDidNotHappenIsToldFromAnOldFile) {
  TempFolder folder;
  const auto path = folder.path() / "x.pth";
  const auto complaint = [&](const std::string& bytes) -> std::string {
    write_file_atomic(path, bytes);
    try {
      open_weights(path);
    } catch (const DataError& error) {
      return error.what();
    }
    return "none";
  };
  write_pth(path, a_model());
  const std::string whole = read_file(path);
  EXPECT_THAT(complaint("version https://git-lfs.github.com/spec/v1\noid sha256:12\nsize 9\n"),
              testing::AllOf(HasSubstr("Git LFS pointer"), HasSubstr("fix: git lfs pull")));
  for (const std::size_t length : {std::size_t{0}, std::size_t{20}, whole.size() / 2})
    EXPECT_THAT(complaint(whole.substr(0, length)),
                testing::AllOf(HasSubstr("cut short"), HasSubstr("fix: fetch it again")));
  EXPECT_THAT(complaint("\x80\x02\x8a\x0al"), HasSubstr("PyTorch before 1.6"));
}

TEST(Weights, BadInputIsNamed) {
  TempFolder folder;
  EXPECT_THROW(open_weights(folder.path() / "nowhere"), IoError);
  EXPECT_THROW(open_weights(folder.path()), DataError);
  write_file_atomic(folder.path() / "x.txt", "x");
  EXPECT_THROW(open_weights(folder.path() / "x.txt"), ConfigError);
  write_file_atomic(folder.path() / "x.pth", "garbage");
  EXPECT_THROW(open_weights(folder.path() / "x.pth"), DataError);
  write_safetensors(folder.path() / "x.safetensors", a_model());
  const auto source = open_weights(folder.path() / "x.safetensors");
  EXPECT_THROW(write_weights(*source, folder.path() / "x.bin"), ConfigError);
  EXPECT_THROW(open_weights(folder.path() / "x.safetensors", /*trained=*/true), ConfigError);
}

}  // namespace
}  // namespace tutti::trainer
