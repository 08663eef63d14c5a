# Toolchain for 64-bit Arm on another machine: Debian's cross compiler, a folder of Arm packages (tools/setup arm64 makes
# it; VERBENA_ARM64_ROOT names another), and qemu-user for the programs that the build and ctest start.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)

if(DEFINED ENV{VERBENA_ARM64_ROOT})
  set(CMAKE_SYSROOT $ENV{VERBENA_ARM64_ROOT})
elseif(DEFINED ENV{XDG_CACHE_HOME})
  set(CMAKE_SYSROOT $ENV{XDG_CACHE_HOME}/verbena/arm64)
else()
  set(CMAKE_SYSROOT $ENV{HOME}/.cache/verbena/arm64)
endif()
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_PACKAGE ONLY)
set(CMAKE_CROSSCOMPILING_EMULATOR qemu-aarch64 -L ${CMAKE_SYSROOT})
