# `cmake --install` and find_package(tutti).
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)
