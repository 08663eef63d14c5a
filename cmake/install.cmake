# Where files are installed. Installed programs find the others by relative paths, so the folder can be moved.
include(GNUInstallDirs)
set(CMAKE_INSTALL_DEFAULT_COMPONENT_NAME verbena)
# The path from the tools to the libraries: ../lib, or ../lib/x86_64-linux-gnu in Debian's layout.
file(RELATIVE_PATH VERBENA_LIBRARIES_FROM_TOOLS ${CMAKE_INSTALL_FULL_BINDIR} ${CMAKE_INSTALL_FULL_LIBDIR})
file(RELATIVE_PATH VERBENA_DATA_FROM_TOOLS ${CMAKE_INSTALL_FULL_BINDIR} ${CMAKE_INSTALL_FULL_DATADIR})
set(VERBENA_PYTHON_DIR lib/python3/dist-packages CACHE STRING "Where the Python package is installed")

# Before 1.0.0 a minor release may change the binary interface (CHANGELOG.md), so it is part of the name until then.
if(PROJECT_VERSION_MAJOR EQUAL 0)
  set(VERBENA_SOVERSION 0.${PROJECT_VERSION_MINOR})
  set(VERBENA_COMPATIBILITY SameMinorVersion)
else()
  set(VERBENA_SOVERSION ${PROJECT_VERSION_MAJOR})
  set(VERBENA_COMPATIBILITY SameMajorVersion)
endif()

# The library has its installed run path from the start: CMake would pad a path that it replaces later with colons, and each
# of them means the current folder.
# install_library(TARGET NAME): a shared library that others link, as verbena::NAME.
function(install_library target name)
  set_target_properties(${target} PROPERTIES EXPORT_NAME ${name} INSTALL_RPATH $ORIGIN BUILD_WITH_INSTALL_RPATH ON)
  if(NOT SKBUILD) # a wheel has no links: each name of a library would be a copy
    set_target_properties(${target} PROPERTIES VERSION ${PROJECT_VERSION} SOVERSION ${VERBENA_SOVERSION})
  endif()
  target_include_directories(${target} INTERFACE $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
  add_library(verbena::${name} ALIAS ${target})
  set_property(GLOBAL APPEND PROPERTY VERBENA_LIBRARIES ${target})
  install(TARGETS ${target} EXPORT verbena-targets LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
endfunction()
