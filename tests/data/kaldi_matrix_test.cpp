#include "tutti/data/io/kaldi_matrix.h"

#include <gtest/gtest.h>

#include "tutti/core/error.h"
#include "tutti/core/file.h"
#include "tutti/data/io/npy.h"

namespace tutti::data {
namespace {

template <class T>
void put(std::string& out, T value) {
  out.append(reinterpret_cast<const char*>(&value), sizeof value);
}

std::string plain_matrix(std::int32_t rows, std::int32_t columns, const std::vector<float>& cells) {
  std::string out("\0BFM ", 5);
  for (const std::int32_t size : {rows, columns}) {
    out += '\4';
    put(out, size);
  }
  for (const float cell : cells) put(out, cell);
  return out;
}

TEST(KaldiMatrix, IsReadFromTheMiddleOfAnArchive) {
  TempFolder folder;
  const std::string first = "utt1 " + plain_matrix(1, 2, {9, 9});
  const std::string file = (folder.path() / "a.ark").string();
  write_file_atomic(file, first + "utt2 " + plain_matrix(2, 3, {1, 2, 3, 4, 5, 6}));
  const std::string entry = file + ":" + std::to_string(first.size() + 5);
  EXPECT_TRUE(is_matrix_name(entry));
  EXPECT_FALSE(is_matrix_name("/data/a.wav"));
  const Array feats = read_matrix(entry);
  EXPECT_EQ(feats.shape, (std::vector<std::int64_t>{2, 3}));
  EXPECT_EQ(feats.data<float>()[4], 5);
}

TEST(KaldiMatrix, CompressedKindsAreUnderstood) {
  // Kind 2: 16 bits from -1 to 1. Kind 1: one column with marks at -1, -0.5, 0.5, 1.
  std::string even("\0BCM2 ", 6);
  put(even, -1.0F);
  put(even, 2.0F);
  put(even, std::int32_t{1});
  put(even, std::int32_t{2});
  put(even, std::uint16_t{0});
  put(even, std::uint16_t{65535});
  const Array two = parse_kaldi_matrix(even, "even");
  EXPECT_FLOAT_EQ(two.data<float>()[0], -1);
  EXPECT_FLOAT_EQ(two.data<float>()[1], 1);

  std::string marks("\0BCM ", 5);
  put(marks, -1.0F);
  put(marks, 2.0F);
  put(marks, std::int32_t{4});
  put(marks, std::int32_t{1});
  for (const int mark : {0, 16384, 49151, 65535}) put(marks, static_cast<std::uint16_t>(mark));
  for (const int cell : {0, 64, 192, 255}) put(marks, static_cast<std::uint8_t>(cell));
  const Array four = parse_kaldi_matrix(marks, "marks");
  EXPECT_NEAR(four.data<float>()[0], -1, 1e-4);
  EXPECT_NEAR(four.data<float>()[1], -0.5, 1e-4);
  EXPECT_NEAR(four.data<float>()[2], 0.5, 1e-4);
  EXPECT_NEAR(four.data<float>()[3], 1, 1e-4);
}

TEST(KaldiMatrix, WhatIsCutOrSomethingElseIsRefused) {
  const std::string whole = plain_matrix(2, 3, {1, 2, 3, 4, 5, 6});
  for (std::size_t size = 0; size < whole.size(); ++size)
    EXPECT_THROW(parse_kaldi_matrix(std::string_view(whole).substr(0, size), "cut"), DataError);
  EXPECT_THROW(parse_kaldi_matrix("utt1 [ 1 2 ]", "text"), DataError);
  EXPECT_THROW(parse_kaldi_matrix(plain_matrix(1 << 30, 1 << 30, {}), "huge"), DataError);
}

}  // namespace
}  // namespace tutti::data
