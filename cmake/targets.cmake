# Libraries and programs of three kinds. Targets of a kind have the same options and share a precompiled header, because most of a
# compilation is reading the standard library, GoogleTest or JSON again:
#
#   verbena_add_library(NAME TYPE SOURCE...)       what is installed, and what tests link or start: hardened, at the level of
#   verbena_add_executable(NAME SOURCE...)         optimisation of the build
#   verbena_add_tool(NAME SOURCE...)               programs whose speed does not matter, and their parts: hardened, at -O1
#   verbena_add_tool_library(NAME TYPE SOURCE...)
#   verbena_add_test(NAME SOURCES source...)       programs of tests, and what they share: not optimised, in half the time; those
#   verbena_add_test_library(NAME TYPE SOURCE...)  that calculate for seconds are OPTIMISED, and compiled at -O1
#
# The presets also compile several sources of a target together (CMAKE_UNITY_BUILD); a target whose unnamed namespaces use the same
# names for different things sets UNITY_BUILD OFF. This and the precompiled headers hide a missing
# #include: -DCMAKE_UNITY_BUILD=OFF -DCMAKE_DISABLE_PRECOMPILE_HEADERS=ON compiles each file alone.
set(headers_of_product <algorithm> <array> <atomic> <cerrno> <cstdint> <cstdio> <cstdlib> <cstring> <deque> <functional> <map>
  <memory> <mutex> <optional> <span> <string> <string_view> <thread> <utility> <vector>)
set(headers_of_tool ${headers_of_product} <filesystem> <fstream> <nlohmann/json.hpp> <sstream>)
set(headers_of_test ${headers_of_product} <filesystem> <fstream> <gmock/gmock.h> <gtest/gtest.h> <sstream>)
set(headers_of_optimised_test ${headers_of_test})

# use_options(TARGET KIND): the options of a kind, and its header, which verbena_share_header has made.
function(use_options target kind)
  target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:${options_of_${kind}}>)
  if(kind MATCHES test)
    set_target_properties(${target} PROPERTIES VERBENA_IS_TEST ON)
    # GoogleTest's own target defines GTEST_HAS_PTHREAD, too. Some tests are shorter in instrumented builds.
    target_compile_definitions(${target} PRIVATE GTEST_HAS_PTHREAD=1 VERBENA_IS_SANITIZED=$<BOOL:${VERBENA_INSTRUMENTED}>)
    target_include_directories(${target} BEFORE PRIVATE ${PROJECT_SOURCE_DIR}/tests ${PROJECT_SOURCE_DIR})
    target_link_libraries(${target} PRIVATE verbena_options)
  else()
    harden(${target})
  endif()
  get_target_property(sources ${target} SOURCES)
  if(CMAKE_DISABLE_PRECOMPILE_HEADERS OR sources MATCHES "\\.(c|cu)(;|$)")
    return()
  endif()
  # -fPIC: of programs, too, as their header is that of libraries. -fpch-preprocess: for ccache.
  target_compile_options(${target} PRIVATE -fPIC -fpch-preprocess)
  # gcc 12 does not treat precompiled headers as system headers, and prints false warnings about std::string in them. A build
  # without precompiled headers still has these warnings for our own code.
  if(CMAKE_CXX_COMPILER_ID STREQUAL GNU)
    target_compile_options(${target} PRIVATE
      -Wno-array-bounds -Wno-restrict -Wno-stringop-overflow -Wno-stringop-overread -Wno-maybe-uninitialized)
  endif()
  if(NOT target STREQUAL ${kind}_headers)
    target_precompile_headers(${target} REUSE_FROM ${kind}_headers)
  endif()
endfunction()
set(options_of_tool -O1)
set(options_of_test -O0)
set(options_of_optimised_test -O1)

# verbena_share_header(KIND LIBRARY...)
function(verbena_share_header kind)
  add_library(${kind}_headers OBJECT EXCLUDE_FROM_ALL ${PROJECT_SOURCE_DIR}/cmake/precompiled.cc)
  target_link_libraries(${kind}_headers PRIVATE verbena_options Threads::Threads ${ARGN})
  target_precompile_headers(${kind}_headers PRIVATE ${headers_of_${kind}})
  use_options(${kind}_headers ${kind})
endfunction()

function(verbena_add_library name)
  add_library(${name} ${ARGN})
  use_options(${name} product)
endfunction()

function(verbena_add_executable name)
  add_executable(${name} ${ARGN})
  use_options(${name} product)
endfunction()

function(verbena_add_tool name)
  add_executable(${name} ${ARGN})
  use_options(${name} tool)
endfunction()

function(verbena_add_tool_library name)
  add_library(${name} ${ARGN})
  use_options(${name} tool)
endfunction()

# Includes begin at tests/ or at the top. ctest lists each case, behind PREFIX; with NAME, the program as one test; or nothing yet.
# NEEDS are targets that it loads or starts.
function(verbena_add_test name)
  cmake_parse_arguments(PARSE_ARGV 1 test "OPTIMISED;UNLISTED" "NAME;PREFIX;TIMEOUT_S"
    "SOURCES;LIBRARIES;DEFINITIONS;NEEDS;LABELS;ENVIRONMENT")
  set(kind test)
  if(test_OPTIMISED)
    set(kind optimised_test)
  endif()
  add_executable(${name} ${test_SOURCES})
  use_options(${name} ${kind})
  leave_out(${name} ${test_LABELS})
  if(TARGET quiet_fork)
    target_sources(${name} PRIVATE $<TARGET_OBJECTS:quiet_fork>)
  endif()
  target_link_libraries(${name} PRIVATE ${test_LIBRARIES} GTest::gmock GTest::gtest_main)
  target_compile_definitions(${name} PRIVATE ${test_DEFINITIONS})
  if(test_NEEDS)
    add_dependencies(${name} ${test_NEEDS})
  endif()
  if(NOT test_UNLISTED)
    verbena_list_test(${name} NAME "${test_NAME}" PREFIX "${test_PREFIX}" TIMEOUT_S "${test_TIMEOUT_S}" LABELS ${test_LABELS}
      ENVIRONMENT ${test_ENVIRONMENT})
  endif()
endfunction()

# leave_out(PROGRAM LABEL...): what a sanitizer cannot run (label no-asan or no-tsan), and what is not in VERBENA_TEST_PART, is not
# built and not listed.
set(VERBENA_TEST_PART "" CACHE STRING "K/N builds every Nth test program from the Kth on; empty: all")
function(leave_out program)
  get_property(before GLOBAL PROPERTY VERBENA_TEST_PROGRAMS)
  set_property(GLOBAL APPEND PROPERTY VERBENA_TEST_PROGRAMS ${program})
  list(LENGTH before number)
  set(part 0)
  if(VERBENA_TEST_PART MATCHES "^([0-9]+)/([0-9]+)$")
    math(EXPR part "(${number} + 1 - ${CMAKE_MATCH_1}) % ${CMAKE_MATCH_2}")
  endif()
  if(part OR "no-${VERBENA_SANITIZER}" IN_LIST ARGN)
    set_target_properties(${program} PROPERTIES EXCLUDE_FROM_ALL ON)
    set_property(GLOBAL APPEND PROPERTY VERBENA_LEFT_OUT ${program})
  endif()
endfunction()

# verbena_list_test(PROGRAM [NAME name | PREFIX prefix] [FILTER filter] [TIMEOUT_S s] [LABELS label...] [ENVIRONMENT name=value...])
function(verbena_list_test program)
  cmake_parse_arguments(PARSE_ARGV 1 test "" "NAME;PREFIX;FILTER;TIMEOUT_S" "LABELS;ENVIRONMENT")
  get_target_property(is_left_out ${program} EXCLUDE_FROM_ALL)
  if(is_left_out OR "no-${VERBENA_SANITIZER}" IN_LIST test_LABELS)
    return()
  endif()
  if(NOT test_TIMEOUT_S)
    set(test_TIMEOUT_S 300)
  endif()
  set(filter "")
  if(test_FILTER)
    set(filter --gtest_filter=${test_FILTER})
  endif()
  if(test_NAME)
    add_test(NAME ${test_NAME} COMMAND ${program} ${filter})
    set_tests_properties(${test_NAME} PROPERTIES TIMEOUT ${test_TIMEOUT_S} LABELS "${test_LABELS}"
      ENVIRONMENT "${test_ENVIRONMENT}")
    return()
  endif()
  string(MAKE_C_IDENTIFIER "${program} ${test_PREFIX} ${test_FILTER}" cases)
  gtest_discover_tests(${program} NO_PRETTY_VALUES DISCOVERY_TIMEOUT 300 TEST_PREFIX "${test_PREFIX}" TEST_FILTER "${test_FILTER}"
    TEST_LIST ${cases} PROPERTIES TIMEOUT ${test_TIMEOUT_S})
  if(test_LABELS OR test_ENVIRONMENT) # gtest_discover_tests would take the first of several alone
    file(GENERATE OUTPUT ${cases}.cmake CONTENT "foreach(case \${${cases}})
  set_tests_properties(\"\${case}\" PROPERTIES LABELS \"${test_LABELS}\" ENVIRONMENT \"${test_ENVIRONMENT}\")
endforeach()
")
    set_property(DIRECTORY APPEND PROPERTY TEST_INCLUDE_FILES ${CMAKE_CURRENT_BINARY_DIR}/${cases}.cmake)
  endif()
endfunction()

function(verbena_add_test_library name)
  add_library(${name} ${ARGN})
  use_options(${name} test)
endfunction()

verbena_share_header(product)
