#include "tutti/data/batching/sampler.h"
#include "tests/places.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <set>

#include "tests/data/fixtures.h"
#include "tutti/config/load.h"
#include "tutti/core/json.h"
#include "tutti/core/random.h"

namespace tutti::data {
namespace {

using ::testing::HasSubstr;

LengthTable table_of(const std::vector<std::vector<std::uint32_t>>& rows, std::size_t num_columns) {
  LengthTable table;
  for (std::size_t i = 0; i < rows.size(); ++i) table.item.push_back(static_cast<std::uint32_t>(i));
  const std::uint32_t widths[] = {80, 5};
  for (std::size_t c = 0; c < num_columns; ++c) {
    auto& column = table.columns.emplace_back();
    for (const auto& row : rows) {
      column.length.push_back(row[c]);
      column.width.push_back(widths[c]);
    }
  }
  return table;
}

BatchSettings settings_of(const Json& json) {
  config::Problems problems;
  Json with_files = json;
  with_files["shape_files"] = json["type"] == "folded" ? Json{"a", "b"} : Json{"a"};
  BatchSettings settings = batch_schema().parse(config::from_json(with_files), problems);
  problems.throw_if_any();
  return settings;
}

TEST(Samplers, MakeTheBatchesOfEspnetsOwn) {
  const Json golden = parse_json(read_file(in_source("tests/data/golden/samplers.json")), "golden");
  std::map<std::string, int> checked;
  for (const Json& one : golden["cases"]) {
    const std::string type = one["settings"]["type"];
    const auto rows = golden["corpora"][one["corpus"].get<std::string>()]
                          .get<std::vector<std::vector<std::uint32_t>>>();
    const LengthTable table = table_of(rows, type == "unsorted" || type == "sorted" ? 1 : 2);
    const BatchList list = make_batches(settings_of(one["settings"]), table);
    std::vector<std::vector<std::uint32_t>> got;
    for (std::size_t b = 0; b < list.size(); ++b) got.emplace_back(list[b].begin(), list[b].end());
    ASSERT_EQ(got, one["batches"].get<std::vector<std::vector<std::uint32_t>>>())
        << one["corpus"] << " " << one["settings"];
    ++checked[type];
  }
  EXPECT_GT(checked["unsorted"], 30);
  EXPECT_GT(checked["sorted"], 100);
  EXPECT_GT(checked["folded"], 30);
  EXPECT_GT(checked["length"], 100);
  EXPECT_GT(checked["numel"], 100);
}

LengthTable random_table(std::size_t n, std::uint64_t seed, std::uint32_t longest) {
  Random random({seed});
  std::vector<std::vector<std::uint32_t>> rows;
  for (std::size_t i = 0; i < n; ++i)
    rows.push_back({1 + static_cast<std::uint32_t>(random.below(longest)),
                    1 + static_cast<std::uint32_t>(random.below(50))});
  return table_of(rows, 2);
}

TEST(Bucketed, KeepsEachUtteranceOnceAndTheBudgetForAnyWorld) {
  for (const std::size_t n : {1, 2, 7, 64, 500, 3000})
    for (const int world : {1, 2, 3, 8, 16})
      for (const std::int64_t bins : {1000, 200'000, 5'000'000}) {
        const LengthTable table = random_table(n, n, 1500);
        const BatchSettings settings{.batch_bins = bins};
        const BatchList list = make_batches(settings, table, {}, {3, 1, world});
        EXPECT_EQ(list.size() % static_cast<std::size_t>(world), 0U);
        std::set<std::uint32_t> seen;
        for (std::size_t b = 0; b < list.size(); ++b) {
          for (const auto row : list[b]) EXPECT_TRUE(seen.insert(row).second) << "twice";
          if (list[b].size() > 1) {
            EXPECT_LE(padded_bins(table, list[b]), static_cast<std::uint64_t>(bins));
          }
        }
        EXPECT_EQ(seen.size(), n);
        // Ranks are idle only when there are too few utterances for all.
        std::size_t empty = 0;
        for (std::size_t b = 0; b < list.size(); ++b) empty += list[b].empty();
        EXPECT_LT(empty, static_cast<std::size_t>(world));
      }
}

TEST(Bucketed, MixesCompanyBetweenEpochsButNotTheNumberOfBatches) {
  const LengthTable table = random_table(5000, 1, 300);
  const BatchSettings settings{.batch_bins = 100'000};
  const BatchList first = make_batches(settings, table, {}, {3, 0, 4});
  const BatchList again = make_batches(settings, table, {}, {3, 0, 4});
  const BatchList second = make_batches(settings, table, {}, {3, 1, 4});
  EXPECT_EQ(first, again);
  EXPECT_NE(first, second);
  EXPECT_EQ(first.size(), second.size());
}

TEST(Bucketed, FillsBatchesAndKeepsRanksTogether) {
  const LengthTable table = random_table(20000, 5, 1500);
  const std::uint64_t budget = 2'000'000;
  const BatchList list =
      make_batches({.batch_bins = static_cast<std::int64_t>(budget)}, table, {}, {0, 0, 8});
  double filled = 0;
  double imbalance = 0;
  for (std::size_t g = 0; g < list.size() / 8; ++g) {
    std::uint64_t least = ~0ULL;
    std::uint64_t most = 0;
    for (std::size_t r = 0; r < 8; ++r) {
      const std::uint64_t bins = padded_bins(table, list[g * 8 + r]);
      filled += static_cast<double>(bins);
      least = std::min(least, bins);
      most = std::max(most, bins);
    }
    imbalance += static_cast<double>(most - least) / static_cast<double>(most);
  }
  EXPECT_GT(filled / static_cast<double>(list.size() * budget), 0.9);
  EXPECT_LT(imbalance / (static_cast<double>(list.size()) / 8), 0.1);
}

Categories three_categories() {
  Categories categories;
  categories.rows.resize(3);
  for (std::uint32_t row = 0; row < 200; ++row)
    categories.rows[row < 150 ? 0 : row < 190 ? 1 : 2].push_back(row);
  return categories;
}

TEST(CategoryBalanced, CapsEachCategoryAndFillsBatches) {
  const BatchSettings settings{.type = "catbel", .batch_size = 6};
  const Categories categories = three_categories();
  const BatchList list = make_batches(settings, random_table(200, 2, 100), categories, {0, 4, 1});
  std::set<std::uint32_t> seen;
  ASSERT_GT(list.size(), 0U);
  for (std::size_t b = 0; b < list.size(); ++b) {
    EXPECT_EQ(list[b].size(), 6U);
    int count[3] = {};
    for (const auto row : list[b]) {
      ++count[row < 150 ? 0 : row < 190 ? 1 : 2];
      EXPECT_TRUE(seen.insert(row).second);
    }
    for (const int c : count) EXPECT_LE(c, 6 / 3 + 1);
  }
  EXPECT_EQ(list, make_batches(settings, random_table(200, 2, 100), categories, {0, 4, 1}));
  EXPECT_NE(list, make_batches(settings, random_table(200, 2, 100), categories, {0, 5, 1}));
}

TEST(CategoryPower, DrawsCategoriesByPowerOfTheirShare) {
  LengthTable table = random_table(200, 2, 100);
  for (auto& length : table.columns[0].length) length = 10;
  BatchSettings settings{
      .type = "catpow", .batch_bins = 55, .upsampling_factor = 0.0, .dataset_scaling_factor = 30.0};
  const BatchList list = make_batches(settings, table, three_categories(), {1, 1, 1});
  double count[3] = {};
  double total = 0;
  for (std::size_t b = 0; b < list.size(); ++b) {
    // Closed by the utterance that passes the budget, as in ESPnet.
    if (b + 1 < list.size()) {
      EXPECT_EQ(list[b].size(), 6U);
    }
    for (const auto row : list[b]) ++count[row < 150 ? 0 : row < 190 ? 1 : 2], ++total;
  }
  EXPECT_NEAR(total, 200 * 30, 1);
  for (const double c : count) EXPECT_NEAR(c / total, 1.0 / 3, 0.03);  // exponent 0: all alike
  settings.upsampling_factor = 1.0;
  const BatchList natural = make_batches(settings, table, three_categories(), {1, 1, 1});
  double large = 0;
  for (const auto row : natural.items()) large += row < 150;
  EXPECT_NEAR(large / static_cast<double>(natural.num_items()), 0.75, 0.03);
}

TEST(Unsorted, WithCategoriesLosesNobodyAndMixesNobody) {
  const BatchList list = make_batches({.type = "unsorted", .batch_size = 7},
                                      random_table(200, 2, 100), three_categories());
  std::set<std::uint32_t> seen;
  for (std::size_t b = 0; b < list.size(); ++b) {
    std::set<int> kinds;
    for (const auto row : list[b]) {
      kinds.insert(row < 150 ? 0 : row < 190 ? 1 : 2);
      seen.insert(row);
    }
    EXPECT_EQ(kinds.size(), 1U);
  }
  EXPECT_EQ(seen.size(), 200U);
}

TEST(Unsorted, WithBinsOnlyCutsInOrderWithinTheBudget) {
  const LengthTable table = random_table(300, 9, 200);
  const BatchList list = make_batches({.type = "unsorted", .batch_bins = 60'000}, table);
  std::uint32_t expected = 0;
  for (std::size_t b = 0; b < list.size(); ++b) {
    for (const auto row : list[b]) EXPECT_EQ(row, expected++);
    if (list[b].size() > 1) {
      EXPECT_LE(padded_bins(table, list[b]), 60'000U);
    }
  }
  EXPECT_EQ(expected, 300U);
}

TEST(BatchSchema, SaysWhatIsMissingOrWrong) {
  const auto problems_of = [](const std::string& yaml) {
    config::Problems problems;
    batch_schema().parse(config::parse_yaml(yaml, "t.yaml"), problems);
    return problems.describe();
  };
  EXPECT_THAT(problems_of("type: sorted\n"), HasSubstr("type sorted needs 'batch_size'"));
  EXPECT_THAT(problems_of("type: numell\nbatch_bins: 3\n"), HasSubstr("did you mean 'numel'?"));
  EXPECT_THAT(problems_of("type: folded\nbatch_size: 2\nshape_files: [a, b]\nfold_lengths: [1]\n"),
              HasSubstr("1 fold_lengths for 2 shape_files"));
  EXPECT_THAT(problems_of("batch_bins: 0\n"), HasSubstr("got 0, expected 1 or more"));
  EXPECT_THAT(problems_of("batch_bin: 10\n"), HasSubstr("did you mean 'batch_bins'?"));
  EXPECT_THAT(problems_of("batch_bins: 10\ndrop_last: true\n"), HasSubstr("keeps every utterance"));
  EXPECT_EQ(problems_of("type: unsorted\nbatch_size: 4\n"), "");
}

TEST(ShapeFiles, AreReadByIdOrByPositionAndChecked) {
  TempFolder folder;
  const testing::FakeDataset dataset(4);
  const auto write = [&](const std::string& name, const std::string& text) {
    write_file_atomic(folder.path() / name, text);
    return folder.path() / name;
  };
  const LengthTable table = read_shape_files({write("a", "u2 10,80\nu0 20,80\nu1 30,80\nu3 5,80\n"),
                                              write("b", "u0 1\nu1 2\nu2 3\nu3 4\n")},
                                             dataset);
  EXPECT_EQ(table.item, (std::vector<std::uint32_t>{2, 0, 1, 3}));
  EXPECT_EQ(table.columns[0].length, (std::vector<std::uint32_t>{10, 20, 30, 5}));
  EXPECT_EQ(table.columns[0].width[0], 80U);
  EXPECT_EQ(table.columns[1].length, (std::vector<std::uint32_t>{3, 1, 2, 4}));
  EXPECT_EQ(read_shape_files({write("c", "0 7,80\n1 8,80\n3 9,80\n")}, dataset).item,
            (std::vector<std::uint32_t>{0, 1, 3}));
  EXPECT_THROW(read_shape_files({write("d", "u0 1\nu9 1\n")}, dataset), DataError);
  EXPECT_THROW(read_shape_files({write("e", "u0 1,x\n")}, dataset), DataError);
  EXPECT_THROW(read_shape_files({write("f", "")}, dataset), DataError);
  EXPECT_THROW(read_shape_files({write("g", "u0 1\n"), write("h", "u1 1\n")}, dataset), DataError);
  EXPECT_THROW(read_shape_files({write("i", "u0 99999999999,80\n")}, dataset), DataError);
}

}  // namespace
}  // namespace tutti::data
