# Compiler settings and the two functions every room uses: tutti_add_room and tutti_add_tests.
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE RelWithDebInfo)
endif()
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bin)

find_program(TUTTI_CCACHE ccache)
if(TUTTI_CCACHE)
  # Sloppiness is what lets ccache handle a precompiled header; hash_dir off shares hits between checkouts.
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CMAKE_COMMAND} -E env
      CCACHE_SLOPPINESS=pch_defines,time_macros,include_file_mtime,include_file_ctime
      CCACHE_PCH_EXTSUM=1 CCACHE_NOHASHDIR=1 CCACHE_BASEDIR=${CMAKE_SOURCE_DIR} ${TUTTI_CCACHE})
endif()

add_library(tutti_flags INTERFACE)
target_include_directories(tutti_flags INTERFACE $<BUILD_INTERFACE:${CMAKE_SOURCE_DIR}>
                                                 $<INSTALL_INTERFACE:include>)
if(TUTTI_JOIN AND CMAKE_BUILD_TYPE STREQUAL Release AND NOT TUTTI_WARNINGS)
  # Warnings and line numbers are for people who change the code, and cost a tenth of the time.
  target_compile_options(tutti_flags INTERFACE $<BUILD_INTERFACE:-w>)
else()
  target_compile_options(tutti_flags INTERFACE
    # Fields left out of a designated initialiser have defaults by design; g++ 12's -Wrestrict and
    # -Wstringop-overflow are wrong about std::string.
    $<BUILD_INTERFACE:-Wall> $<BUILD_INTERFACE:-Wextra> $<BUILD_INTERFACE:-Wno-missing-field-initializers>
    $<$<CXX_COMPILER_ID:GNU>:$<BUILD_INTERFACE:-Wno-restrict>>
    $<$<CXX_COMPILER_ID:GNU>:$<BUILD_INTERFACE:-Wno-stringop-overflow>> $<BUILD_INTERFACE:-g1>)
endif()
if(TUTTI_JOIN)
  # -Wsubobject-linkage looks at the file that is compiled, which only includes. g++ collects garbage from 128 MB on, all
  # of a precompiled header each time: a fifth of its time; from a gigabyte on it takes a tenth more memory instead.
  target_compile_options(tutti_flags INTERFACE
                         $<$<CXX_COMPILER_ID:GNU>:$<BUILD_INTERFACE:-Wno-subobject-linkage>>
                         $<$<CXX_COMPILER_ID:GNU>:$<BUILD_INTERFACE:--param=ggc-min-heapsize=1048576>>)
endif()
if(TUTTI_SANITIZE)
  target_compile_options(tutti_flags INTERFACE -fsanitize=${TUTTI_SANITIZE} -fno-omit-frame-pointer
                                               -fno-sanitize-recover=all)
  target_link_options(tutti_flags INTERFACE -fsanitize=${TUTTI_SANITIZE})
endif()
if(TUTTI_BUILD_FUZZ)  # everywhere, so that precompiled headers fit
  target_compile_options(tutti_flags INTERFACE -fsanitize=fuzzer-no-link)
endif()
find_program(TUTTI_LLD ld.lld)
if(TUTTI_LLD)
  target_link_options(tutti_flags INTERFACE $<BUILD_INTERFACE:-fuse-ld=lld>)
endif()

include(CheckCXXCompilerFlag)
check_cxx_compiler_flag(-munroll-only-small-loops TUTTI_HAS_UNROLL_SMALL)  # g++ 13 and later

find_package(Threads REQUIRED)
find_package(fmt REQUIRED)
find_package(nlohmann_json REQUIRED)

# A precompiled header serves only TUs with the same flags: -fPIC for libraries and executables alike.
function(tutti_pch_flags target)
  set_target_properties(${target} PROPERTIES POSITION_INDEPENDENT_CODE OFF)
  target_compile_options(${target} PRIVATE -fPIC $<$<CXX_COMPILER_ID:GNU>:-fpch-preprocess>)
endfunction()

# tutti_make_pch(NAME LIBS ... HEADERS ...): a precompiled header for targets with the flags of these libraries.
function(tutti_make_pch name)
  cmake_parse_arguments(P "" "" "LIBS;HEADERS" ${ARGN})
  file(GENERATE OUTPUT ${CMAKE_BINARY_DIR}/${name}.cpp CONTENT "// Carries a precompiled header.\n")
  add_library(${name} OBJECT ${CMAKE_BINARY_DIR}/${name}.cpp)
  target_link_libraries(${name} PRIVATE tutti_flags ${P_LIBS})
  tutti_pch_flags(${name})
  target_precompile_headers(${name} PRIVATE ${P_HEADERS})
  # A compiler finishes the templates that headers began in every file, ten seconds with CLI11: this one is preprocessed only.
  set_source_files_properties(${CMAKE_BINARY_DIR}/${name}.cpp PROPERTIES COMPILE_OPTIONS -E)
  # ccache takes this text for the header's contents, which are never the same twice: so clones share their objects.
  set(versions ${CMAKE_CXX_COMPILER_ID} ${CMAKE_CXX_COMPILER_VERSION} ${CMAKE_CXX_FLAGS} ${CMAKE_BUILD_TYPE}
      ${TUTTI_SANITIZE} ${fmt_VERSION} ${nlohmann_json_VERSION} ${TUTTI_TORCH_VERSION} ${P_HEADERS})
  string(SHA256 sum "${versions}")
  file(WRITE ${CMAKE_CURRENT_BINARY_DIR}/CMakeFiles/${name}.dir/cmake_pch.hxx.gch.sum ${sum})
endfunction()

set(TUTTI_BASE_HEADERS <fmt/format.h> <nlohmann/json.hpp> <chrono> <filesystem> <functional> <map> <memory>
    <optional> <string> <unordered_map> <vector>)
if(TUTTI_PCH)
  tutti_make_pch(tutti_base_pch LIBS fmt::fmt nlohmann_json::nlohmann_json HEADERS ${TUTTI_BASE_HEADERS})
  if(TUTTI_BUILD_TESTS)
    find_package(GTest REQUIRED)
    tutti_make_pch(tutti_test_pch LIBS fmt::fmt nlohmann_json::nlohmann_json GTest::gmock
                   HEADERS ${TUTTI_BASE_HEADERS} <gmock/gmock.h>)
  endif()
endif()

# Code that waits for people, files and other processes, not for the processor: -O1 halves the time it takes to compile.
set(TUTTI_COLD_FLAGS $<$<CONFIG:Release>:-O1>)
if(TUTTI_HAS_UNROLL_SMALL)  # -O1 would change both, and the precompiled header would not fit
  list(APPEND TUTTI_COLD_FLAGS $<$<CONFIG:Release>:-munroll-only-small-loops> $<$<CONFIG:Release>:-mvzeroupper>)
endif()

# tutti_join(VARIABLE NAME FILES...): what to compile for these files: themselves or, with TUTTI_JOIN, files that include
# up to sixteen of them each. Headers and templates cost more than the code, so that takes less than half the time; but one
# edited file then compiles sixteen. For people who build once (./run demo, ./run install).
function(tutti_join variable name)
  if(NOT TUTTI_JOIN)
    set(${variable} ${ARGN} PARENT_SCOPE)
    return()
  endif()
  set(joined)
  list(TRANSFORM ARGN REPLACE "^([^/].*)" "${CMAKE_CURRENT_SOURCE_DIR}/\\1")
  list(LENGTH ARGN count)
  math(EXPR pieces "(${count} + 15) / 16")
  foreach(piece RANGE 1 ${pieces})  # of about the same size
    math(EXPR begin "${count} * (${piece} - 1) / ${pieces}")
    math(EXPR size "${count} * ${piece} / ${pieces} - ${begin}")
    list(SUBLIST ARGN ${begin} ${size} files)
    list(TRANSFORM files REPLACE "(.+)" "#include \"\\1\"\n")
    string(JOIN "" text ${files})
    set(file ${CMAKE_CURRENT_BINARY_DIR}/joined/${name}_${piece}.cpp)
    file(CONFIGURE OUTPUT ${file} CONTENT "${text}" @ONLY)
    list(APPEND joined ${file})
  endforeach()
  set(${variable} ${joined} PARENT_SCOPE)
endfunction()

# tutti_unit(NAME LARGER FILES...): sources of a torch room that are one translation unit; with TUTTI_JOIN they are part of
# a larger one. Torch's headers cost more than the code of most files: seven seconds before the first line.
function(tutti_unit name larger)
  if(TUTTI_JOIN)
    set(name ${larger})
  endif()
  set_source_files_properties(${ARGN} PROPERTIES UNITY_GROUP ${name})
endfunction()

# tutti_without_torch(FILES...): sources of a torch room that need nothing of torch: they take the small precompiled header.
function(tutti_without_torch)
  set_source_files_properties(${ARGN} PROPERTIES SKIP_PRECOMPILE_HEADERS ON)
  # A pip torch brings headers of its own fmt, which do not go with those in the precompiled header.
  if(TUTTI_PCH AND NOT TUTTI_TORCH_ROOT)
    set(pch ${CMAKE_BINARY_DIR}/CMakeFiles/tutti_base_pch.dir/cmake_pch.hxx)
    set_source_files_properties(${ARGN} PROPERTIES COMPILE_OPTIONS "-Winvalid-pch;-include;${pch}"
                                OBJECT_DEPENDS ${pch}.gch)
  endif()
endfunction()

# Torch TUs take about 1.1 GB each, 2.2 GB with TUTTI_JOIN: two at a time unless told.
set(TUTTI_TORCH_JOBS 2 CACHE STRING "Torch sources compiled at a time")
set_property(GLOBAL APPEND PROPERTY JOB_POOLS torch_pool=${TUTTI_TORCH_JOBS})

# tutti_add_room(NAME [TORCH] [COLD] SOURCES ... [PUBLIC ...] [PRIVATE ...]): the library tutti::NAME.
function(tutti_add_room name)
  cmake_parse_arguments(R "TORCH;COLD" "" "SOURCES;PUBLIC;PRIVATE" ${ARGN})
  add_library(tutti_${name} STATIC ${R_SOURCES})
  add_library(tutti::${name} ALIAS tutti_${name})
  set_target_properties(tutti_${name} PROPERTIES EXPORT_NAME ${name})
  if(R_COLD)
    target_compile_options(tutti_${name} PRIVATE ${TUTTI_COLD_FLAGS})
  endif()
  target_link_libraries(tutti_${name} PUBLIC tutti_flags ${R_PUBLIC} PRIVATE ${R_PRIVATE})
  if(R_TORCH)
    tutti_use_torch(tutti_${name} PUBLIC)
  elseif(TUTTI_PCH)
    target_precompile_headers(tutti_${name} REUSE_FROM tutti_base_pch)
    tutti_pch_flags(tutti_${name})
  endif()
  set_property(GLOBAL APPEND PROPERTY TUTTI_ROOMS tutti_${name})
endfunction()

# One Python for all tests, scripts and benches: the first of TUTTI_PYTHON (as given), Debian's and the first on PATH that has
# the modules the tests compare with. A pyenv or conda first on PATH changes nothing.
function(tutti_find_python)
  if(TUTTI_PYTHON)
    return()
  endif()
  find_program(TUTTI_PATH_PYTHON python3)
  foreach(modules "torch, numpy, yaml" "numpy, yaml" "sys")
    foreach(python /usr/bin/python3 ${TUTTI_PATH_PYTHON})
      execute_process(COMMAND ${python} -c "import ${modules}" RESULT_VARIABLE failed OUTPUT_QUIET ERROR_QUIET)
      if(NOT failed)
        set(TUTTI_PYTHON ${python} CACHE FILEPATH "Python of tests and benches")
        message(STATUS "Python of the tests: ${python} (${modules})")
        return()
      endif()
    endforeach()
  endforeach()
  set(TUTTI_PYTHON /usr/bin/python3 CACHE FILEPATH "Python of tests and benches")
endfunction()

# The programs that start it know it as TUTTI_PYTHON.
function(tutti_uses_python target)
  target_compile_definitions(${target} PRIVATE TUTTI_PYTHON="${TUTTI_PYTHON}")
endfunction()

# tutti_add_tests(NAME [TORCH] [LABEL unit|dist|cluster|e2e|gpu] [TIMEOUT s] SOURCES ... LIBS ... [PROPERTIES ...])
# One executable, one ctest entry per gtest case; PROPERTIES go to every entry. Any two may run beside each other.
function(tutti_add_tests name)
  cmake_parse_arguments(T "TORCH" "LABEL;TIMEOUT" "SOURCES;LIBS;PROPERTIES" ${ARGN})
  add_executable(${name} ${T_SOURCES})
  target_link_libraries(${name} PRIVATE tutti_flags ${T_LIBS} tutti_test_places GTest::gmock GTest::gtest_main)
  target_compile_options(${name} PRIVATE ${TUTTI_COLD_FLAGS})  # tests wait for compilers, not for themselves
  if(T_TORCH)
    tutti_use_torch(${name} PRIVATE)
  elseif(TUTTI_PCH)
    target_precompile_headers(${name} REUSE_FROM tutti_test_pch)
    tutti_pch_flags(${name})
  endif()
  if(NOT T_LABEL)
    set(T_LABEL unit)
  endif()
  if(NOT T_TIMEOUT)
    set(T_TIMEOUT 120)
  endif()
  gtest_discover_tests(${name} DISCOVERY_TIMEOUT 60 PROPERTIES LABELS ${T_LABEL} TIMEOUT ${T_TIMEOUT}
                       ${T_PROPERTIES})
endfunction()
