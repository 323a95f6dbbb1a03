# `cmake --install` and find_package(tutti): headers, static libraries, programs and recipes' tools.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

get_property(rooms GLOBAL PROPERTY TUTTI_ROOMS)
set(exported tutti_flags ${rooms})
if(TUTTI_WITH_TORCH)
  list(APPEND exported tutti_torch)
endif()
install(TARGETS ${exported} EXPORT tutti-targets ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(EXPORT tutti-targets NAMESPACE tutti:: DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/tutti)
install(DIRECTORY ${CMAKE_SOURCE_DIR}/tutti DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} FILES_MATCHING PATTERN "*.h")
install(DIRECTORY ${CMAKE_BINARY_DIR}/bin/ DESTINATION ${CMAKE_INSTALL_BINDIR} USE_SOURCE_PERMISSIONS
        FILES_MATCHING REGEX "/tutti(-[a-z_]+)?$")

configure_package_config_file(${CMAKE_SOURCE_DIR}/cmake/tutti-config.cmake.in
  ${CMAKE_BINARY_DIR}/tutti-config.cmake INSTALL_DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/tutti)
write_basic_package_version_file(${CMAKE_BINARY_DIR}/tutti-config-version.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_BINARY_DIR}/tutti-config.cmake ${CMAKE_BINARY_DIR}/tutti-config-version.cmake
        DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/tutti)
