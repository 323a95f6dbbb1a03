# tutti_add_plugin(NAME SOURCE... [TORCH]): libNAME.so for `plugins: [libNAME.so]`. It has Tutti's headers (TORCH: and
# torch's) and links nothing of Tutti: the program that loads it has the symbols.
function(tutti_add_plugin name)
  cmake_parse_arguments(P "TORCH" "" "" ${ARGN})
  add_library(${name} MODULE ${P_UNPARSED_ARGUMENTS})
  target_compile_features(${name} PRIVATE cxx_std_20)
  foreach(target flags torch)
    if(TARGET tutti::tutti_${target})  # of the installed package
      set(${target} tutti::tutti_${target})
    else()
      set(${target} tutti_${target})
    endif()
  endforeach()
  target_link_libraries(${name} PRIVATE ${flags} fmt::fmt nlohmann_json::nlohmann_json)
  if(P_TORCH)
    # Headers and definitions alone: the program brings torch, and a second copy must never come in.
    target_include_directories(${name} SYSTEM PRIVATE $<TARGET_PROPERTY:${torch},INTERFACE_INCLUDE_DIRECTORIES>)
    target_compile_definitions(${name} PRIVATE $<TARGET_PROPERTY:${torch},INTERFACE_COMPILE_DEFINITIONS>)
    target_compile_options(${name} PRIVATE $<TARGET_PROPERTY:${torch},INTERFACE_COMPILE_OPTIONS>)
  endif()
endfunction()
