# Links everything against the glibc in the folder VERBENA_GLIBC_ROOT (tools/wheel makes it), which is older than this machine's, so that it
# loads there. The compiler and its headers are this machine's: objects are those of any other build. What an older glibc does not have is in
# old_glibc.c.
set(VERBENA_GLIBC_ROOT "" CACHE PATH "A folder with an older glibc, to link against")
if(VERBENA_GLIBC_ROOT)
  set(object ${PROJECT_BINARY_DIR}/old_glibc.o)
  execute_process(COMMAND ${CMAKE_C_COMPILER} -std=gnu17 -D_GNU_SOURCE -O2 -Wall -Wextra -Werror -fPIC -fvisibility=hidden
    -c ${CMAKE_CURRENT_LIST_DIR}/old_glibc.c -o ${object} COMMAND_ERROR_IS_FATAL ANY)
  set(libraries ${VERBENA_GLIBC_ROOT}/usr/lib/${CMAKE_LIBRARY_ARCHITECTURE})
  foreach(kind SHARED MODULE EXE)
    string(APPEND CMAKE_${kind}_LINKER_FLAGS " --sysroot=${VERBENA_GLIBC_ROOT} -B${libraries}/ -L${libraries}"
      " -L${VERBENA_GLIBC_ROOT}/lib/${CMAKE_LIBRARY_ARCHITECTURE} -static-libstdc++ -static-libgcc")
  endforeach()
  # Functions that have moved into libc.so since then.
  foreach(language C CXX)
    string(APPEND CMAKE_${language}_STANDARD_LIBRARIES " ${object} -Wl,--push-state,--no-as-needed -lpthread -ldl -lrt -Wl,--pop-state")
  endforeach()
  set(LIBELF "${libraries}/libelf.a;${libraries}/libz.a" CACHE STRING "" FORCE)
endif()
