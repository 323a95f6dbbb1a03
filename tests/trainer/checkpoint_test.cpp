// Checkpoints: whole or absent, checked, and readable by Python.
#include "tutti/trainer/checkpoint/checkpoint.h"
#include "tests/trainer/python.h"
#include "tests/trainer/toy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <torch/torch.h>

#include <csignal>
#include <fstream>

#include "tutti/core/error.h"
#include "tutti/core/file.h"
#include "tutti/core/subprocess.h"
#include "tutti/trainer/checkpoint/pth.h"
#include "tutti/trainer/checkpoint/store.h"

namespace tutti::trainer {
namespace fs = std::filesystem;
namespace {

using testing::HasSubstr;

TensorMap some_tensors() {
  torch::manual_seed(3);
  return {{"a.weight", torch::randn({3, 4})},
          {"b", torch::randn({2}, torch::kDouble)},
          {"bf", torch::randn({5}).to(torch::kBFloat16)},
          {"count", torch::tensor({7}, torch::kLong)},
          {"empty", torch::empty({0, 3})},
          {"flag", torch::tensor({true, false})},
          {"scalar", torch::tensor(2.5)},
          {"view", torch::randn({4, 3}).t()}};
}

void expect_equal(const TensorMap& a, const TensorMap& b) {
  ASSERT_EQ(a.size(), b.size());
  for (const auto& [name, tensor] : a) {
    ASSERT_TRUE(b.count(name)) << name;
    EXPECT_EQ(tensor.scalar_type(), b.at(name).scalar_type()) << name;
    EXPECT_TRUE(tensor.equal(b.at(name))) << name;
  }
}

template <class F>
std::string message_of(F f) {
  try {
    f();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

void damage(const fs::path& path, std::streamoff offset) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekg(offset);
  const char byte = static_cast<char>(file.get());
  file.seekp(offset);
  file.put(static_cast<char>(byte ^ 0x10));
}

TEST(Safetensors, RoundTripsEveryType) {
  TempFolder folder;
  const fs::path path = folder.path() / "x.safetensors";
  const FileSum sum = write_safetensors(path, some_tensors());
  EXPECT_EQ(sum.num_bytes, fs::file_size(path));
  expect_equal(some_tensors(), read_safetensors(path, sum.crc32c));
}

TEST(Safetensors, RefusesTruncatedAndForgedFiles) {
  TempFolder folder;
  const fs::path path = folder.path() / "x.safetensors";
  const FileSum sum = write_safetensors(path, some_tensors());
  const std::string whole = read_file(path);
  for (std::size_t n : {std::size_t{0}, std::size_t{5}, std::size_t{40}, whole.size() - 1}) {
    write_file_atomic(path, whole.substr(0, n));
    EXPECT_THROW(read_safetensors(path), DataError) << n;
  }
  write_file_atomic(path, whole);
  damage(path, static_cast<std::streamoff>(whole.size()) - 3);
  EXPECT_THAT(message_of([&] { read_safetensors(path, sum.crc32c); }), HasSubstr("damaged"));
  const auto forged = [&](const std::string& header) {
    std::string text(8, '\0');
    text[0] = static_cast<char>(header.size());
    write_file_atomic(path, text + header + std::string(16, 'x'));
    return message_of([&] { read_safetensors(path); });
  };
  EXPECT_THAT(
      forged(R"({"a":{"dtype":"F32","shape":[4611686018427387904],"data_offsets":[0,16]}})"),
      HasSubstr("larger than the file"));
  EXPECT_THAT(forged(R"({"a":{"dtype":"F32","shape":[4],"data_offsets":[8,24]}})"),
              HasSubstr("do not fit"));
  EXPECT_THAT(forged(R"({"a":{"dtype":"F99","shape":[4],"data_offsets":[0,16]}})"),
              HasSubstr("F99"));
  EXPECT_THAT(forged(R"([1,2])"), HasSubstr("not an object"));
}

TEST(Checkpoint, FallsBackToTheOneBeforeWhenTheNewestIsDamaged) {
  TempFolder folder;
  {
    CheckpointStore store(folder.path(), {});
    for (int step : {10, 20, 30}) {
      Checkpoint checkpoint;
      checkpoint.model["w"] = torch::full({100}, step);
      checkpoint.trainer = {{"step", step}};
      store.save(checkpoint, {0, step, {}});
    }
    store.flush();
  }
  EXPECT_FALSE(fs::exists(folder.path() / "step-00000010"));  // two are kept
  EXPECT_EQ(CheckpointStore::newest(folder.path())->checkpoint.trainer["step"], 30);
  EXPECT_EQ(fs::read_symlink(folder.path() / "last"), "step-00000030");
  damage(folder.path() / "step-00000030" / "model.safetensors", 200);
  testing::internal::CaptureStderr();
  EXPECT_EQ(CheckpointStore::newest(folder.path())->checkpoint.trainer["step"], 20);
  EXPECT_THAT(testing::internal::GetCapturedStderr(), HasSubstr("step-00000030 cannot be used"));
  fs::resize_file(folder.path() / "step-00000020" / "trainer.json", 3);
  EXPECT_FALSE(CheckpointStore::newest(folder.path()));
}

TEST(Checkpoint, ACriterionMayLookAtEveryNthEpochOnly) {
  TempFolder folder;
  const Criterion criterion{"loss", Better::kLower, 5, /*every_n_epochs=*/2};
  CheckpointStore store(folder.path(), {.criteria = {criterion}});
  Checkpoint checkpoint;
  checkpoint.model["w"] = torch::zeros({1});
  for (int epoch = 0; epoch < 5; ++epoch)
    store.save(checkpoint, {epoch, epoch + 1, {{"loss", -epoch}}});
  store.flush();
  EXPECT_EQ(store.best("loss").size(), 2u);  // the second and the fourth epoch
  EXPECT_EQ(store.top(criterion)->epoch, 3);
}

TEST(Checkpoint, FullDiskLeavesNothingHalfWrittenAndSaysSo) {
  TempFolder folder;
  CheckpointStore store(folder.path(), {});
  Checkpoint checkpoint;
  checkpoint.model["w"] = torch::zeros({1 << 18});
  rlimit old{};
  getrlimit(RLIMIT_FSIZE, &old);
  std::signal(SIGXFSZ, SIG_IGN);
  const rlimit tight{1 << 16, old.rlim_max};
  setrlimit(RLIMIT_FSIZE, &tight);
  store.save(checkpoint, {0, 1, {}});
  const std::string message = message_of([&] { store.flush(); });
  setrlimit(RLIMIT_FSIZE, &old);
  EXPECT_THAT(message, HasSubstr("could not be written"));
  EXPECT_TRUE(fs::is_empty(folder.path()));
  store.save(checkpoint, {0, 2, {}});
  EXPECT_NO_THROW(store.flush());
}

TEST(Pth, PythonReadsOursAndWeReadPythons) {
  if (!toy::python_has_torch()) GTEST_SKIP() << TUTTI_PYTHON " has no torch here";
  TempFolder folder;
  write_pth(folder.path() / "ours.pth", some_tensors());
  expect_equal(some_tensors(), read_pth(folder.path() / "ours.pth"));
  const std::string script = R"(
import sys, torch, collections
d = sys.argv[1]
x = torch.load(d + "/ours.pth", weights_only=True)
assert list(x) == ["a.weight", "b", "bf", "count", "empty", "flag", "scalar", "view"], list(x)
assert x["a.weight"].shape == (3, 4) and x["bf"].dtype == torch.bfloat16 and x["scalar"] == 2.5
torch.save(x, d + "/plain.pth")
net = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2))
net[0].weight.data.fill_(0.5)
torch.save(net.state_dict(), d + "/state.pth")
opt = torch.optim.Adam(net.parameters())
torch.save({"state_dict": net.state_dict(), "epoch": 3, "lr": 1e-3, "optimizer_states": [opt.state_dict()]}, d + "/lightning.ckpt")
torch.save({"t": torch.arange(6.).view(2, 3).t(), "p": net[0].weight}, d + "/views.pth")
torch.save(net, d + "/module.pth")
)";
  const auto result = run_command({.argv = {TUTTI_PYTHON, "-c", script, folder.path().string()},
                                   .timeout = std::chrono::seconds(60)});
  ASSERT_TRUE(result.ok()) << result.describe();
  expect_equal(some_tensors(), read_pth(folder.path() / "plain.pth"));
  for (const char* file : {"state.pth", "lightning.ckpt"}) {
    const TensorMap state = read_pth(folder.path() / file);
    EXPECT_EQ(state.size(), 7u) << file;
    EXPECT_TRUE(state.at("0.weight").equal(torch::full({2, 3}, 0.5f)));
    EXPECT_EQ(state.at("1.num_batches_tracked").item<std::int64_t>(), 0);
  }
  const TensorMap views = read_pth(folder.path() / "views.pth");
  EXPECT_TRUE(views.at("t").equal(torch::arange(6.).view({2, 3}).t()));
  EXPECT_THAT(message_of([&] { read_pth(folder.path() / "module.pth"); }),
              HasSubstr("which is not weights"));
  write_file_atomic(folder.path() / "garbage.pth", std::string(1000, 'x'));
  EXPECT_THROW(read_pth(folder.path() / "garbage.pth"), DataError);
}

}  // namespace
}  // namespace tutti::trainer
