# Installs everything except the libraries: tools, headers, the Python package, documents, and files for CMake and pkg-config.
include(CMakePackageConfigHelpers)
set(package_source ${PROJECT_SOURCE_DIR}/packaging)
set(package_build ${PROJECT_BINARY_DIR}/packaging)

# Some tools need a CUDA compiler, and some are built only by their targets.
set(installed_tools "")
get_property(backends GLOBAL PROPERTY VERBENA_BACKENDS)
list(TRANSFORM backends PREPEND verbena-bench-symm- OUTPUT_VARIABLE rank_programs)
foreach(tool verbena-info verbena-perf nccl-perf verbena-bench ${rank_programs})
  if(TARGET ${tool})
    # In the build, the libraries are always in ../lib.
    set(folders $<REMOVE_DUPLICATES:$ORIGIN/../lib$<SEMICOLON>$ORIGIN/${VERBENA_LIBRARIES_FROM_TOOLS}>)
    set_target_properties(${tool} PROPERTIES BUILD_WITH_INSTALL_RPATH ON
      INSTALL_RPATH "$<$<IN_LIST:verbena,$<TARGET_PROPERTY:${tool},LINK_LIBRARIES>>:${folders}>")
    # What is packed depends on options, not on which targets somebody has built.
    get_target_property(left_out ${tool} EXCLUDE_FROM_ALL)
    if(NOT left_out)
      install(TARGETS ${tool})
      list(APPEND installed_tools ${tool})
    endif()
  endif()
endforeach()

add_library(verbena_device INTERFACE)
add_library(verbena::device ALIAS verbena_device)
set_target_properties(verbena_device PROPERTIES EXPORT_NAME device)
target_compile_features(verbena_device INTERFACE cxx_std_17)
target_include_directories(verbena_device INTERFACE $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include>
  $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
install(TARGETS verbena_device EXPORT verbena-targets)
install(DIRECTORY include/verbena DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}
  FILES_MATCHING PATTERN "*.h" PATTERN "*.hpp" PATTERN "*.cuh")

set(config_folder ${CMAKE_INSTALL_LIBDIR}/cmake/verbena)
install(EXPORT verbena-targets NAMESPACE verbena:: DESTINATION ${config_folder})
configure_package_config_file(${package_source}/verbena-config.cmake.in ${package_build}/verbena-config.cmake
  INSTALL_DESTINATION ${config_folder} PATH_VARS CMAKE_INSTALL_LIBDIR CMAKE_INSTALL_INCLUDEDIR)
write_basic_package_version_file(${package_build}/verbena-config-version.cmake COMPATIBILITY ${VERBENA_COMPATIBILITY})
install(FILES ${package_build}/verbena-config.cmake ${package_build}/verbena-config-version.cmake
  DESTINATION ${config_folder})

# Relative to the folder of the file.
foreach(folder PREFIX LIBDIR INCLUDEDIR)
  set(full ${CMAKE_INSTALL_FULL_${folder}})
  if(folder STREQUAL PREFIX)
    set(full ${CMAKE_INSTALL_PREFIX})
  endif()
  file(RELATIVE_PATH pkgconfig_${folder} ${CMAKE_INSTALL_FULL_LIBDIR}/pkgconfig ${full})
endforeach()
configure_file(${package_source}/verbena.pc.in ${package_build}/verbena.pc @ONLY)
install(FILES ${package_build}/verbena.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)

# With the metadata that pip expects of a package that it did not install itself.
install(DIRECTORY python/verbena DESTINATION ${VERBENA_PYTHON_DIR} COMPONENT python PATTERN __pycache__ EXCLUDE)
configure_file(${package_source}/python-metadata.in ${package_build}/METADATA @ONLY)
install(FILES ${package_build}/METADATA DESTINATION ${VERBENA_PYTHON_DIR}/verbena-${PROJECT_VERSION}.dist-info
  COMPONENT python)

install(FILES README.md CHANGELOG.md LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR})
install(DIRECTORY docs DESTINATION ${CMAKE_INSTALL_DOCDIR}
  FILES_MATCHING PATTERN "*.md" PATTERN "*.svg" PATTERN "*.png")
install(DIRECTORY examples DESTINATION ${CMAKE_INSTALL_DOCDIR} FILES_MATCHING PATTERN "*.cu" PATTERN "*.h" PATTERN "*.md")

if(NOT VERBENA_INSTRUMENTED)
  include(cmake/pages.cmake)
endif()
if(PROJECT_IS_TOP_LEVEL AND NOT VERBENA_INSTRUMENTED)
  include(cmake/debian.cmake)
endif()
