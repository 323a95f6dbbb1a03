// Feature matrices made elsewhere: Kaldi's archives ("raw_mfcc.ark:1234", as feats.scp names them;
// float, double and the three compressed kinds) and numpy's .npy files.
#pragma once

#include <string>
#include <string_view>

#include "tutti/data/array.h"

namespace tutti::data {

// Whether a list entry names a matrix and not a recording.
bool is_matrix_name(std::string_view entry) noexcept;

// float32 [T, D]. Throws IoError, or DataError when it is no such matrix.
Array read_matrix(const std::string& entry);
// Any shape and type: a matrix, a vector of Kaldi's (x-vectors), or what the .npy file holds.
Array read_array(const std::string& entry);
// A matrix on bytes that begin with Kaldi's "\0B"; `name` stands in errors.
Array parse_kaldi_matrix(std::string_view bytes, const std::string& name);

}  // namespace tutti::data
