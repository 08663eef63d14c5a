# Shortens the build. Most of a compilation is reading the standard library, GoogleTest or JSON again, so targets share
# precompiled headers, and several sources of a target are compiled together (a unity build). Both hide a missing #include:
# -DVERBENA_SHORTCUTS=OFF compiles each file alone.
option(VERBENA_SHORTCUTS "Precompiled headers and unity builds" ON)
set(unity_batch 8) # sources at a time: a change compiles that many again

# The sources of these targets are compiled one by one: their unnamed namespaces use the same names for different things.
set(no_unity verbena_transport verbena_bootstrap verbena_proxy verbena-info protocol_test base_test transport_fixture tuner_test
  bootstrap_test message_queue_test softverbs_fake_cuda softverbs-bench verbena_emulator device_order_test)

# Tests that calculate for seconds. The others are compiled without optimisation, in half the time.
set(optimised_tests protocol_test emulator_test device_order_test device_calls_test device_one_shot_test tuner_test base_test message_queue_step_test)

set(standard_headers <algorithm> <array> <atomic> <cerrno> <cstdint> <cstdio> <cstdlib> <cstring> <deque> <functional> <map>
  <memory> <mutex> <optional> <span> <string> <string_view> <thread> <utility> <vector>)

# gcc 12 does not treat precompiled headers as system headers, and prints false warnings about std::string in them. A build
# without precompiled headers still has these warnings for our own code.
set(guesses "")
if(CMAKE_CXX_COMPILER_ID STREQUAL GNU)
  set(guesses -Wno-array-bounds -Wno-restrict -Wno-stringop-overflow -Wno-stringop-overread -Wno-maybe-uninitialized)
endif()

# share_headers(NAME LIBRARIES HEADER...): precompiled once, as target NAME.
function(share_headers name libraries)
  add_library(${name} OBJECT EXCLUDE_FROM_ALL ${PROJECT_SOURCE_DIR}/cmake/precompiled.cc)
  target_link_libraries(${name} PRIVATE verbena_options Threads::Threads ${libraries})
  target_precompile_headers(${name} PRIVATE ${standard_headers} ${ARGN})
  target_compile_options(${name} PRIVATE -fPIC)
endfunction()

function(collect_targets folder targets)
  get_property(found DIRECTORY ${folder} PROPERTY BUILDSYSTEM_TARGETS)
  get_property(subfolders DIRECTORY ${folder} PROPERTY SUBDIRECTORIES)
  foreach(subfolder ${subfolders})
    collect_targets(${subfolder} more)
    list(APPEND found ${more})
  endforeach()
  set(${targets} ${found} PARENT_SCOPE)
endfunction()

# shorten_compilation(TARGET HEADERS): HEADERS is a target of share_headers.
function(shorten_compilation target headers)
  get_target_property(type ${target} TYPE)
  get_target_property(sources ${target} SOURCES)
  get_target_property(visibility ${target} CXX_VISIBILITY_PRESET)
  if(NOT type MATCHES "LIBRARY|EXECUTABLE" OR type STREQUAL INTERFACE_LIBRARY OR sources MATCHES "\\.(c|cu)(;|$)")
    return()
  endif()
  if(NOT target IN_LIST no_unity)
    set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE ${unity_batch})
  endif()
  # Only targets with the same options can share a precompiled header.
  if(visibility STREQUAL hidden)
    target_precompile_headers(${target} REUSE_FROM ${headers})
    target_compile_options(${target} PRIVATE -fPIC -fpch-preprocess ${guesses}) # -fpch-preprocess: for ccache
  endif()
endfunction()

# Call it after all targets are defined.
function(shorten_all_compilations)
  if(NOT VERBENA_SHORTCUTS OR VERBENA_FUZZ)
    return()
  endif()
  share_headers(product_headers "")
  foreach(folder plugin device)
    collect_targets(${PROJECT_SOURCE_DIR}/${folder} targets)
    foreach(target ${targets})
      shorten_compilation(${target} product_headers)
    endforeach()
  endforeach()
  if(VERBENA_TOOLS)
    find_package(nlohmann_json REQUIRED)
    share_headers(tools_headers nlohmann_json::nlohmann_json <filesystem> <fstream> <nlohmann/json.hpp> <sstream>)
    collect_targets(${PROJECT_SOURCE_DIR}/tools targets)
    target_compile_options(tools_headers PRIVATE -O1) # as its users: gcc 13 takes no header of another level
    foreach(target ${targets})
      # The speed of these programs does not matter, except that of the two named ones.
      if(target MATCHES "^(verbena-perf|verbena_tools_common)$")
        shorten_compilation(${target} product_headers)
      else()
        shorten_compilation(${target} tools_headers)
        target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-O1>)
      endif()
    endforeach()
  endif()
  if(BUILD_TESTING AND VERBENA_TOOLS)
    find_package(GTest REQUIRED)
    set(test_header_files <filesystem> <fstream> <gmock/gmock.h> <gtest/gtest.h> <sstream>)
    share_headers(optimised_test_headers GTest::gmock ${test_header_files})
    share_headers(test_headers GTest::gmock ${test_header_files})
    target_compile_options(optimised_test_headers PRIVATE -O1)
    target_compile_options(test_headers PRIVATE -O0)
    collect_targets(${PROJECT_SOURCE_DIR}/tests targets)
    set_target_properties(test_headers optimised_test_headers PROPERTIES VERBENA_IS_TEST ON)
    foreach(target ${targets})
      if(target MATCHES "_test$|_fixture$")
        set_target_properties(${target} PROPERTIES VERBENA_IS_TEST ON)
        if(target IN_LIST optimised_tests)
          shorten_compilation(${target} optimised_test_headers)
          target_compile_options(${target} PRIVATE -O1)
        else()
          shorten_compilation(${target} test_headers)
          target_compile_options(${target} PRIVATE -O0)
        endif()
        target_compile_definitions(${target} PRIVATE GTEST_HAS_PTHREAD=1) # as GoogleTest's own target has it
      else()
        shorten_compilation(${target} product_headers)
      endif()
    endforeach()
  endif()
endfunction()
