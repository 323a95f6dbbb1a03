// Where the programs and the sources of this build are: in_bin("tutti"), in_source("docs"). Functions, not
// macros with a path in them, so that the compiler cache knows a test that another clone has compiled.
#pragma once

#include <string>
#include <string_view>

namespace tutti {

std::string in_bin(std::string_view name = {});
std::string in_source(std::string_view name = {});

}  // namespace tutti
