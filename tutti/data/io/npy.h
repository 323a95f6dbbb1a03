// numpy's .npy and .npz files. Written ones load with numpy.load; read are C- and Fortran-ordered
// arrays of the types of Array; other types are refused by name.
//
//   write_npz("stats.npz", {{"count", n}, {"sum", s}});
//   std::map<std::string, Array> arrays = read_npz("stats.npz");
//
// Files are written whole or not at all. Compressed members (savez_compressed) are refused with the
// call that writes them plainly. Throws DataError, IoError.
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tutti/data/array.h"

namespace tutti::data {

void write_npy(const std::filesystem::path& file, const Array& array);
Array read_npy(const std::filesystem::path& file);
void write_npz(const std::filesystem::path& file,
               const std::vector<std::pair<std::string, Array>>& arrays);
std::map<std::string, Array> read_npz(const std::filesystem::path& file);

// On bytes in memory; `name` stands in errors.
std::string encode_npy(const Array& array);
Array parse_npy(std::string_view bytes, const std::string& name);
std::map<std::string, Array> parse_npz(std::string_view bytes, const std::string& name);

// Any element type, flattened.
std::vector<double> to_doubles(const Array& array);

}  // namespace tutti::data
