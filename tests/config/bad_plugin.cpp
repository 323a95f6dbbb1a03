// Plugins that must be refused, each with its own words; check_test.cpp loads them. FAULT says which this is.
#include <stdexcept>

#include "tutti/config/plugin.h"

namespace tutti::config {
void nobody_has_this();
}

#if FAULT == 1  // of another version
#undef TUTTI_VERSION
#define TUTTI_VERSION "0.0.9"
TUTTI_PLUGIN(registry) {}
#elif FAULT == 2  // throws
TUTTI_PLUGIN(registry) { throw std::runtime_error("no licence"); }
#elif FAULT == 3  // undefined symbol
TUTTI_PLUGIN(registry) { tutti::config::nobody_has_this(); }
#endif            // 4: registers nothing
