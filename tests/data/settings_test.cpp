#include "tutti/data/batching/settings.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tutti/config/load.h"

namespace tutti::data {
namespace {

using ::testing::HasSubstr;

std::string problems_of(const std::string& yaml, std::optional<RankCount> ranks = {}) {
  config::Problems problems;
  check_dataloader_block(config::parse_yaml(yaml, "t.yaml")["dataloader"], ranks, problems);
  return problems.describe();
}

DataloaderSettings parse(const std::string& yaml) {
  config::Problems problems;
  const auto settings =
      parse_dataloader(config::parse_yaml(yaml, "t.yaml")["dataloader"], {}, problems);
  problems.throw_if_any();
  return settings;
}

constexpr const char* kSeed = R"(
dataloader:
  collate_fn:
    _target_: espnet2.train.collate_fn.CommonCollateFn
    int_pad_value: -1
  train:
    total_shards: 16
    dist_world_size: 16
    iter_factory:
      _target_: espnet2.iterators.sequence_iter_factory.SequenceIterFactory
      shuffle: true
      collate_fn: {_target_: espnet2.train.collate_fn.CommonCollateFn, int_pad_value: -1}
      batches:
        type: unsorted
        shape_files: [exp/stats/train/feats_shape]
        batch_bins: 4000000
  valid:
    total_shards: 16
    dist_world_size: 16
    iter_factory:
      _target_: espnet2.iterators.sequence_iter_factory.SequenceIterFactory
      shuffle: false
      batches:
        type: unsorted
        shape_files: [exp/stats/valid/feats_shape]
        batch_bins: 4000000
)";

TEST(DataloaderBlock, TakesTheSeedsExampleAsItIs) {
  EXPECT_EQ(problems_of(kSeed, RankCount{2, 8}), "");
  const DataloaderSettings s = parse(kSeed);
  EXPECT_EQ(s.train.plan.batches.type, "unsorted");
  EXPECT_EQ(*s.train.plan.batches.batch_bins, 4000000);
  EXPECT_TRUE(s.train.plan.shuffle);
  EXPECT_FALSE(s.valid.plan.shuffle);
  EXPECT_EQ(s.train.plan.sharding->total_shards, 16);
  EXPECT_EQ(s.train.loader.collate.int_pad_value, -1);
}

TEST(DataloaderBlock, ShowsTheArithmeticOfShards) {
  const std::string text = problems_of(kSeed, RankCount{1, 8});
  EXPECT_THAT(text, HasSubstr("t.yaml:8:22: dataloader.train.dist_world_size: got 16, expected "
                              "num_nodes x num_device = 1 x 8 = 8"));
  EXPECT_THAT(text, HasSubstr("fix: set dist_world_size: ${num_nodes * num_device}"));
  EXPECT_THAT(
      problems_of("dataloader:\n  train: {total_shards: 10, dist_world_size: 8}\n",
                  RankCount{1, 8}),
      HasSubstr(
          "total_shards: got 10, expected a multiple of dist_world_size = 8 (10 = 1 x 8 + 2)"));
  EXPECT_THAT(problems_of("dataloader:\n  train: {total_shards: 10}\n"),
              HasSubstr("'total_shards' is set without 'dist_world_size'"));
}

TEST(DataloaderBlock, PlainDataLoaderKeysWorkWithTheTemplatesShards) {
  const std::string yaml =
      "dataloader:\n  train:\n    iter_factory: null\n    total_shards: 1\n    dist_world_size: "
      "1\n    batch_size: 4\n"
      "    shuffle: true\n    num_workers: 3\n    prefetch_factor: 4\n    drop_last: false\n    "
      "pin_memory: true\n";
  EXPECT_EQ(problems_of(yaml, RankCount{1, 1}), "");
  const ModeSettings train = parse(yaml).train;
  EXPECT_EQ(train.plan.batches.type, "sequential");
  EXPECT_EQ(*train.plan.batches.batch_size, 4);
  EXPECT_TRUE(train.plan.shuffle_within_batch);
  EXPECT_EQ(train.loader.num_workers, 3);
  EXPECT_EQ(train.loader.prefetch, 12);
  EXPECT_TRUE(train.pin_memory);
  EXPECT_FALSE(train.plan.sharding);
}

TEST(DataloaderBlock, OursIsShort) {
  const ModeSettings train =
      parse(
          "dataloader:\n  train:\n    batches: {batch_bins: 100, shape_files: [a]}\n    shuffle: "
          "true\n"
          "    batch_distribution: global\n    on_bad: skip\n    num_iters_per_epoch: 7\n")
          .train;
  EXPECT_EQ(train.plan.batches.type, "bucketed");
  EXPECT_TRUE(train.plan.global_batches);
  EXPECT_EQ(train.loader.on_bad, OnBad::kSkip);
  EXPECT_EQ(*train.plan.num_iters_per_epoch, 7);
}

TEST(DataloaderBlock, RefusesWhatItDoesNotKnow) {
  EXPECT_THAT(problems_of("dataloader:\n  trian: {}\n"), HasSubstr("did you mean 'train'?"));
  EXPECT_THAT(problems_of("dataloader:\n  train: {batch_sise: 3}\n"),
              HasSubstr("did you mean 'batch_size'?"));
  EXPECT_THAT(
      problems_of(
          "dataloader:\n  train:\n    iter_factory: {suffle: true, batches: {batch_size: 2}}\n"),
      HasSubstr("did you mean 'shuffle'?"));
  EXPECT_THAT(
      problems_of(
          "dataloader:\n  train:\n    iter_factory: {batches: {typ: sorted, batch_size: 2}}\n"),
      HasSubstr("did you mean 'type'?"));
  EXPECT_THAT(
      problems_of(
          "dataloader:\n  train:\n    iter_factory: {total_shards: 2, batches: {batch_size: 2}}\n"),
      HasSubstr("belongs beside iter_factory"));
  EXPECT_THAT(
      problems_of("dataloader:\n  train:\n    iter_factory: {_target_: a.MultipleIterFactory}\n"),
      HasSubstr("use total_shards"));
  EXPECT_THAT(problems_of("dataloader:\n  train:\n    iter_factory: {shuffle: true}\n"),
              HasSubstr("key 'batches' is missing"));
  EXPECT_THAT(
      problems_of(
          "dataloader:\n  train:\n    batches: {batch_size: 2}\n    batch_distribution: globl\n"),
      HasSubstr("did you mean 'global'?"));
  EXPECT_THAT(problems_of("dataloader: 3\n"), HasSubstr("expected a map"));
}

}  // namespace
}  // namespace tutti::data
