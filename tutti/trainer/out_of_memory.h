#pragma once

#include <exception>

namespace tutti::trainer {

// Whether an exception says that a device or the host has no memory left.
bool is_out_of_memory(const std::exception& error) noexcept;

}  // namespace tutti::trainer
