# Build options of everything that is installed, which make an error harder to exploit: stack protector, checked copies
# (_FORTIFY_SOURCE), probed stacks, position-independent programs, and no table that stays writable after the start (full
# RELRO). tests/packages/binaries_test.py checks the binaries. Tests are built without these options: most are not optimised,
# which _FORTIFY_SOURCE needs. Sanitizers check more and do not work together with it.
include(CheckPIESupported)
include(CheckCXXSourceCompiles)
include(CMakePushCheckState)
check_pie_supported()

# Level 3 checks copies to memory whose size only the run tells. Compilers and libraries that do not know it warn.
cmake_push_check_state()
set(CMAKE_REQUIRED_FLAGS "-O2 -Werror -U_FORTIFY_SOURCE -D_FORTIFY_SOURCE=3")
check_cxx_source_compiles("#include <cstring>
int main() { return 0; }" VERBENA_HAS_FORTIFY_3)
cmake_pop_check_state()
set(fortify_level 2)
if(VERBENA_HAS_FORTIFY_3)
  set(fortify_level 3)
endif()

set(hardened_compilation -fstack-protector-strong -fstack-clash-protection
  $<$<NOT:$<CONFIG:Debug>>:-U_FORTIFY_SOURCE> $<$<NOT:$<CONFIG:Debug>>:-D_FORTIFY_SOURCE=${fortify_level}>)

function(harden target)
  get_target_property(type ${target} TYPE)
  if(VERBENA_INSTRUMENTED OR NOT type MATCHES "LIBRARY|EXECUTABLE" OR type STREQUAL INTERFACE_LIBRARY)
    return()
  endif()
  target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:C,CXX>:${hardened_compilation}>)
  target_link_options(${target} PRIVATE LINKER:-z,relro LINKER:-z,now LINKER:-z,noexecstack)
endfunction()
