#include "tutti/data/fields.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/data/fixtures.h"
#include "tutti/config/load.h"
#include "tutti/data/collate.h"
#include "tutti/data/io/npy.h"
#include "tutti/data/sources.h"

namespace tutti::data {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

config::Node yaml(const std::string& text) { return config::parse_yaml(text, "t.yaml"); }

Sample sample_with(const config::Node& fields, std::size_t index, std::size_t size = 3) {
  const testing::FakeDataset dataset(size);
  Sample sample = dataset.read(index);
  for (const auto& add : open_fields(fields, dataset)) add(sample);
  return sample;
}

template <class T>
std::vector<T> values(const Array& array) {
  return {array.data<T>(), array.data<T>() + array.size()};
}

template <class Work>
std::string error_of(Work work) {
  try {
    work();
  } catch (const DataError& error) {
    return error.what();
  }
  return "no error";
}

TEST(Fields, NumbersOfALine) {
  TempFolder folder;
  write_file_atomic(folder.path() / "ids", "u1 7\nu0 3 4  5\nu2 -1\nelsewhere 9\n");
  write_file_atomic(folder.path() / "csv", "u0 0.5, 1e3\nu1 2\nu2 0.25,3\n");
  const auto fields = yaml("ids: {path: " + (folder.path() / "ids").string() +
                           ", type: text_int}\ncsv: {path: " + (folder.path() / "csv").string() +
                           ", type: csv_float}\n");
  const Sample sample = sample_with(fields, 0);
  EXPECT_THAT(values<std::int64_t>(sample.extra.at("ids")), ElementsAre(3, 4, 5));
  EXPECT_THAT(values<float>(sample.extra.at("csv")), ElementsAre(0.5F, 1000.0F));
  EXPECT_THAT(field_tensors(fields), ElementsAre("ids", "ids_lengths", "csv", "csv_lengths"));
  // Stacked and padded as everything else.
  const Batch batch = collate({sample, sample_with(fields, 1)}, {});
  EXPECT_THAT(values<std::int64_t>(batch.arrays.at("ids")), ElementsAre(3, 4, 5, 7, -1, -1));
  EXPECT_THAT(values<std::int64_t>(batch.arrays.at("ids_lengths")), ElementsAre(3, 1));
}

TEST(Fields, ArraysOfNumpyAndKaldi) {
  TempFolder folder;
  Array matrix = Array::make(DType::kInt16, {2, 3});
  for (std::int16_t i = 0; i < 6; ++i) matrix.data<std::int16_t>()[i] = i;
  write_npy(folder.path() / "a.npy", matrix);
  write_file_atomic(folder.path() / "feats.scp", "u0 a.npy\n");  // beside the list
  std::string vector("u0 \0BFV \4", 9);
  for (const std::int32_t size : {2}) vector.append(reinterpret_cast<const char*>(&size), 4);
  for (const float x : {1.5F, -2.0F}) vector.append(reinterpret_cast<const char*>(&x), 4);
  write_file_atomic(folder.path() / "x.ark", vector);
  write_file_atomic(folder.path() / "x.scp", "u0 " + (folder.path() / "x.ark").string() + ":3\n");
  const Sample sample = sample_with(
      yaml("feats: {path: " + (folder.path() / "feats.scp").string() + ", type: npy}\nx: {path: " +
           (folder.path() / "x.scp").string() + ", type: kaldi_ark}\n"),
      0, 1);
  EXPECT_THAT(sample.extra.at("feats").shape, ElementsAre(2, 3));
  EXPECT_THAT(values<std::int16_t>(sample.extra.at("feats")), ElementsAre(0, 1, 2, 3, 4, 5));
  EXPECT_THAT(sample.extra.at("x").shape, ElementsAre(2));
  EXPECT_THAT(values<float>(sample.extra.at("x")), ElementsAre(1.5F, -2.0F));
}

TEST(Fields, WhatIsWrongIsNamed) {
  TempFolder folder;
  const std::string file = (folder.path() / "ids").string();
  const auto fields = yaml("spk: {path: " + file + ", type: text_int}\n");
  write_file_atomic(file, "u0 1\nu1 2\n");
  EXPECT_THAT(error_of([&] { sample_with(fields, 0); }), HasSubstr("utterance 'u2' is not there"));
  write_file_atomic(file, "u0 1\nu0 2\n");
  EXPECT_THAT(error_of([&] { sample_with(fields, 0); }), HasSubstr("'u0' is there twice"));
  write_file_atomic(file, "u0 1\nu1 1x\nu2 3\n");
  EXPECT_THAT(error_of([&] { sample_with(fields, 1); }),
              HasSubstr("u1: got '1x', expected a whole number"));
  write_file_atomic(file, "u0 gone.npy\nu1 gone.npy\nu2 gone.npy\n");
  EXPECT_THAT(error_of([&] { sample_with(yaml("e: {path: " + file + ", type: npy}\n"), 1); }),
              HasSubstr("u1: field 'e'"));
}

TEST(Fields, TheConfigIsCheckedWithoutFiles) {
  const auto problems = [](const std::string& entry) {
    config::Problems found;
    DatasetSources::standard().check(yaml(entry), found);
    return found.describe();
  };
  const std::string start = "data_src: jsonl\ndata_src_args: {manifest: a.jsonl}\nfields: ";
  EXPECT_EQ(problems(start + "{spk: {path: a, type: text_int}}\n"), "");
  EXPECT_THAT(problems(start + "{spk: {path: a, type: text_imt}}\n"), HasSubstr("text_int"));
  EXPECT_THAT(problems(start + "{spk: {type: text_int}}\n"), HasSubstr("'path' is missing"));
  EXPECT_THAT(problems(start + "{speech: {path: a, type: npy}}\n"), HasSubstr("already"));
  EXPECT_THAT(problems(start + "[spk]\n"), HasSubstr("expected a map"));
}

}  // namespace
}  // namespace tutti::data
