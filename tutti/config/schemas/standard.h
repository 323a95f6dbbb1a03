// Every component Tutti has, under all its names.
#pragma once

#include "tutti/config/registry.h"

namespace tutti::config {

Catalogue standard_catalogue();

}  // namespace tutti::config
