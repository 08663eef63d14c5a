# Packages for Debian and Ubuntu: `cpack` in a build folder. They do not depend on a CUDA library.
set(debian_source ${PROJECT_SOURCE_DIR}/packaging/debian)
set(debian_build ${package_build}/debian)
set(VERBENA_DEBIAN_RELEASE 1)
set(VERBENA_CONTACT "Verbena maintainers <maintainers@verbena.invalid>")

set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME verbena)
# Each package has its own description; CPack would put the project's before it.
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "")
set(CPACK_PACKAGE_VENDOR "Verbena maintainers")
set(CPACK_PACKAGE_CONTACT ${VERBENA_CONTACT})
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_PACKAGE_DIRECTORY ${PROJECT_BINARY_DIR}/packages)
set(CPACK_STRIP_FILES ON)
set(CPACK_DEBIAN_COMPRESSION_TYPE xz)
set(CPACK_DEBIAN_PACKAGE_RELEASE ${VERBENA_DEBIAN_RELEASE})
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION ON)
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_COMPONENTS_GROUPING ONE_PER_GROUP)

# Files that a package has and a plain installation does not: a copyright file and changelogs, where Debian expects them.
# They are compressed at build time, with the manual pages.
string(TIMESTAMP VERBENA_DEBIAN_DATE "%a, %d %b %Y 00:00:00 +0000" UTC)
configure_file(${debian_source}/changelog.in ${debian_build}/entry @ONLY)
set(compressed ${debian_build}/changelog.Debian.gz ${debian_build}/changelog.gz)
if(VERBENA_GZIP)
  add_custom_command(OUTPUT ${compressed}
    COMMAND ${CMAKE_COMMAND} -E copy ${debian_build}/entry ${debian_build}/changelog.Debian
    COMMAND ${CMAKE_COMMAND} -E copy ${PROJECT_SOURCE_DIR}/CHANGELOG.md ${debian_build}/changelog
    COMMAND ${VERBENA_GZIP} -9nf ${debian_build}/changelog.Debian ${debian_build}/changelog
    DEPENDS ${debian_build}/entry ${PROJECT_SOURCE_DIR}/CHANGELOG.md VERBATIM)
  add_custom_target(verbena_changelogs ALL DEPENDS ${compressed})
endif()
foreach(name verbena python3-verbena verbena-nccl-default)
  string(REPLACE - _ component debian_${name})
  set(folder ${CMAKE_INSTALL_DATAROOTDIR}/doc/${name})
  install(FILES ${debian_source}/copyright ${compressed} DESTINATION ${folder} COMPONENT ${component} EXCLUDE_FROM_ALL)
  if(EXISTS ${debian_source}/${name}.lintian-overrides)
    install(FILES ${debian_source}/${name}.lintian-overrides DESTINATION ${CMAKE_INSTALL_DATAROOTDIR}/lintian/overrides
      RENAME ${name} COMPONENT ${component} EXCLUDE_FROM_ALL)
  endif()
endforeach()

# Plugin, tools, libraries, headers and bitcode belong together and are one package.
set(CPACK_COMPONENTS_ALL verbena debian_verbena python debian_python3_verbena default debian_verbena_nccl_default)
set(CPACK_COMPONENT_VERBENA_GROUP main)
set(CPACK_COMPONENT_DEBIAN_VERBENA_GROUP main)
set(CPACK_DEBIAN_MAIN_PACKAGE_NAME verbena)
set(CPACK_DEBIAN_MAIN_PACKAGE_SECTION net)
# Recommended libraries are loaded at run time if they are installed. python3 runs the script for --plot, --compare and the
# report.
set(CPACK_DEBIAN_MAIN_PACKAGE_DEPENDS "python3:any")
if(CMAKE_CROSSCOMPILING)
  # This machine's dpkg does not know the other's libraries: the releases that they were linked with are named here.
  set(CPACK_DEBIAN_PACKAGE_ARCHITECTURE arm64)
  string(REGEX MATCH "^[0-9]+" gcc_release ${CMAKE_CXX_COMPILER_VERSION})
  string(APPEND CPACK_DEBIAN_MAIN_PACKAGE_DEPENDS ", libc6 (>= 2.36), libgcc-s1, libstdc++6 (>= ${gcc_release}), libelf1 | libelf1t64")
else()
  set(CPACK_DEBIAN_MAIN_PACKAGE_SHLIBDEPS ON)
  set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS_PRIVATE_DIRS ${CMAKE_LIBRARY_OUTPUT_DIRECTORY})
endif()
set(CPACK_DEBIAN_MAIN_PACKAGE_RECOMMENDS "libibverbs1, ibverbs-providers, libhwloc15")
set(CPACK_DEBIAN_MAIN_PACKAGE_SUGGESTS "python3-verbena, verbena-nccl-default, gnuplot-nox, graphviz")
set(CPACK_DEBIAN_MAIN_DESCRIPTION "NCCL network plugin over RDMA, with its tools
Verbena moves NCCL's messages over RDMA verbs; a GPU can unpack by itself what
arrives for it. Where there is no RDMA NIC a software device takes its place.

NCCL loads the plugin with NCCL_NET_PLUGIN=verbena. Also here: verbena-perf and
other measuring tools; libverbena.so, its headers and device bitcode, by which
kernels reach the memory of other GPUs. No CUDA package is needed to install.")
set(shlibs "")
get_property(libraries GLOBAL PROPERTY VERBENA_LIBRARIES)
foreach(library ${libraries})
  string(APPEND shlibs "lib${library} ${VERBENA_SOVERSION} verbena (>= ${PROJECT_VERSION})\n")
endforeach()
file(CONFIGURE OUTPUT ${debian_build}/shlibs CONTENT "${shlibs}" @ONLY)
set(CPACK_DEBIAN_MAIN_PACKAGE_CONTROL_EXTRA "${debian_build}/shlibs;${debian_source}/triggers")

set(version "${PROJECT_VERSION}-${VERBENA_DEBIAN_RELEASE}")
set(CPACK_COMPONENT_PYTHON_GROUP python)
set(CPACK_COMPONENT_DEBIAN_PYTHON3_VERBENA_GROUP python)
set(CPACK_DEBIAN_PYTHON_PACKAGE_NAME python3-verbena)
set(CPACK_DEBIAN_PYTHON_PACKAGE_ARCHITECTURE all)
set(CPACK_DEBIAN_PYTHON_PACKAGE_SECTION python)
set(CPACK_DEBIAN_PYTHON_PACKAGE_DEPENDS "python3 (>= 3.10), verbena (>= ${version})")
set(CPACK_DEBIAN_PYTHON_DESCRIPTION "symmetric memory between GPUs, for Python and Triton
Contexts, windows and teams of libverbena.so as Python objects, and its
primitives for kernels written in Triton.")
set(CPACK_DEBIAN_PYTHON_PACKAGE_CONTROL_EXTRA "${debian_source}/postinst;${debian_source}/prerm")

set(CPACK_COMPONENT_DEFAULT_GROUP default)
set(CPACK_COMPONENT_DEBIAN_VERBENA_NCCL_DEFAULT_GROUP default)
set(CPACK_DEBIAN_DEFAULT_PACKAGE_NAME verbena-nccl-default)
set(CPACK_DEBIAN_DEFAULT_PACKAGE_SECTION net)
set(CPACK_DEBIAN_DEFAULT_PACKAGE_DEPENDS "verbena (= ${version})")
set(CPACK_DEBIAN_DEFAULT_DESCRIPTION "makes Verbena the network plugin that NCCL takes unasked
Only the link libnccl-net.so to Verbena's plugin: with it every job of this
machine uses Verbena unless NCCL_NET_PLUGIN names another plugin, or none.")

include(CPack)
