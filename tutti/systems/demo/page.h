// The demo page, made from page.html at configure time.
#pragma once

#include <string_view>

namespace tutti::systems {

extern const std::string_view kDemoPage;

}  // namespace tutti::systems
