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
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/cmake/public_headers.txt)
file(STRINGS ${CMAKE_SOURCE_DIR}/cmake/public_headers.txt headers REGEX "^tutti/")
foreach(header ${headers})
  get_filename_component(folder ${header} DIRECTORY)
  install(FILES ${CMAKE_SOURCE_DIR}/${header} DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/${folder})
endforeach()

# What a user runs, apart from what a developer links (`cmake --install build --component programs`, ./run install).
install(DIRECTORY ${CMAKE_BINARY_DIR}/bin/ DESTINATION ${CMAKE_INSTALL_BINDIR} USE_SOURCE_PERMISSIONS COMPONENT programs
        FILES_MATCHING REGEX "/tutti(-[a-z_]+)?$")
install(DIRECTORY ${CMAKE_SOURCE_DIR}/recipes DESTINATION ${CMAKE_INSTALL_DATADIR}/tutti COMPONENT programs
        USE_SOURCE_PERMISSIONS REGEX "recipes/[^/]+/(data|exp)$" EXCLUDE)
set(completions ${CMAKE_SOURCE_DIR}/packaging/completions)
install(FILES ${completions}/tutti.bash DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions RENAME tutti
        COMPONENT programs)
install(FILES ${completions}/_tutti DESTINATION ${CMAKE_INSTALL_DATADIR}/zsh/vendor-completions COMPONENT programs)
install(FILES ${completions}/tutti.fish DESTINATION ${CMAKE_INSTALL_DATADIR}/fish/vendor_completions.d
        COMPONENT programs)
install(CODE "execute_process(COMMAND \"${CMAKE_SOURCE_DIR}/packaging/man.sh\" \"${CMAKE_BINARY_DIR}/bin/tutti\"
  \"\$ENV{DESTDIR}\${CMAKE_INSTALL_PREFIX}/${CMAKE_INSTALL_MANDIR}/man1\" COMMAND_ERROR_IS_FATAL ANY)"
        COMPONENT programs)

install(FILES ${CMAKE_SOURCE_DIR}/cmake/TuttiPlugin.cmake DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/tutti)
configure_package_config_file(${CMAKE_SOURCE_DIR}/cmake/tutti-config.cmake.in
  ${CMAKE_BINARY_DIR}/tutti-config.cmake INSTALL_DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/tutti)
write_basic_package_version_file(${CMAKE_BINARY_DIR}/tutti-config-version.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_BINARY_DIR}/tutti-config.cmake ${CMAKE_BINARY_DIR}/tutti-config-version.cmake
        DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/tutti)

# ./run package deb: dpkg-shlibdeps names the packages of the libraries the programs load.
set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME tutti)
set(CPACK_PACKAGE_CONTACT "The Tutti developers <tutti@localhost>")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "Scale speech work by config")
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_RECOMMENDS "sentencepiece")
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_COMPONENTS_ALL programs)
set(CPACK_DEBIAN_PROGRAMS_PACKAGE_NAME tutti)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_PACKAGE_DIRECTORY ${CMAKE_BINARY_DIR})
include(CPack)
