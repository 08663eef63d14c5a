# Manual pages and shell completions of the installed tools, made from their --help.
find_program(VERBENA_HELP2MAN help2man DOC "Makes manual pages; without it there are none")
find_program(VERBENA_GZIP gzip)
find_program(VERBENA_PYTHON3 python3)
set(pages_folder ${PROJECT_BINARY_DIR}/share)
set(pages "")
set(about_verbena-info "show RDMA devices, GPUs and what NCCL will use of them")
set(about_verbena-perf "measure and verify messages through a NCCL net plugin, without NCCL or a GPU")
set(about_nccl-perf "measure and verify NCCL's collectives over the Verbena plugin")
set(about_verbena-bench "measure and verify what GPUs do")
set(about_verbena-bench-coll "measure and verify collectives between GPUs")
set(about_verbena-bench-symm "measure and verify symmetric memory between GPUs")
set(about_verbena-bench-unpack "measure and verify the unpacking of messages on a GPU")
foreach(program ${rank_programs})
  set(about_${program} "a rank of verbena-bench symm")
endforeach()
set(about_softverbs-run "run a program over softverbs, a software RDMA device")

# add_pages(TOOL): creates share/man/man1/TOOL.1.gz, TOOL-SUBCOMMAND.1.gz, and a completion file for each shell.
function(add_pages tool)
  set(folder ${CMAKE_RUNTIME_OUTPUT_DIRECTORY})
  set(made_from ${folder}/${tool}) # a script
  set(names "")
  set(subcommands "")
  set(found "")
  if(TARGET ${tool})
    get_target_property(names ${tool} VERBENA_SUBCOMMANDS)
    if(NOT names)
      set(names "")
    else()
      list(TRANSFORM names PREPEND "${tool} " OUTPUT_VARIABLE subcommands)
    endif()
    set(folder $<TARGET_FILE_DIR:${tool}>)
    set(made_from ${tool})
  endif()
  if(CMAKE_CROSSCOMPILING_EMULATOR AND TARGET ${tool})
    set(folder ${PROJECT_BINARY_DIR}/emulated)
    list(JOIN CMAKE_CROSSCOMPILING_EMULATOR " " emulator)
    file(GENERATE OUTPUT ${folder}/${tool} CONTENT "#!/bin/sh\nexec ${emulator} $<TARGET_FILE:${tool}> \"$@\"\n"
      FILE_PERMISSIONS OWNER_READ OWNER_WRITE OWNER_EXECUTE)
  endif()
  if(VERBENA_HELP2MAN AND VERBENA_GZIP)
    foreach(command ${tool} ${subcommands})
      string(REPLACE " " "-" name ${command})
      set(page ${pages_folder}/man/man1/${name}.1)
      # Run by its name alone, so that the text contains no path.
      add_custom_command(OUTPUT ${page}.gz
        COMMAND ${CMAKE_COMMAND} -E env "PATH=${folder}:$ENV{PATH}"
          ${VERBENA_HELP2MAN} --no-info --section=1 "--name=${about_${name}}" "--source=Verbena ${PROJECT_VERSION}"
          "--manual=Verbena" --include=${PROJECT_SOURCE_DIR}/packaging/see-also.h2m --output=${page} ${command}
        # help2man takes the first word for the name.
        COMMAND sed -i -e "s/^[.]TH [^ ]*/.TH ${name}/" -e "/^[.]SH NAME/{n;s/^[^ ]*/${name}/}" ${page}
        COMMAND ${VERBENA_GZIP} -9nf ${page}
        DEPENDS ${made_from} ${PROJECT_SOURCE_DIR}/packaging/see-also.h2m COMMENT "Writing the manual page of ${command}" VERBATIM)
      list(APPEND found ${page}.gz)
      install(FILES ${page}.gz DESTINATION ${CMAKE_INSTALL_MANDIR}/man1)
    endforeach()
  endif()
  if(VERBENA_PYTHON3)
    set(bash ${pages_folder}/bash-completion/completions/${tool})
    set(zsh ${pages_folder}/zsh/vendor-completions/_${tool})
    add_custom_command(OUTPUT ${bash} ${zsh}
      COMMAND ${VERBENA_PYTHON3} ${PROJECT_SOURCE_DIR}/packaging/make_completion ${folder}/${tool} ${names} --bash ${bash} --zsh ${zsh}
      DEPENDS ${made_from} ${PROJECT_SOURCE_DIR}/packaging/make_completion COMMENT "Writing the completions of ${tool}" VERBATIM)
    list(APPEND found ${bash} ${zsh})
    install(FILES ${bash} DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions)
    install(FILES ${zsh} DESTINATION ${CMAKE_INSTALL_DATADIR}/zsh/vendor-completions)
  endif()
  set(pages ${pages} ${found} PARENT_SCOPE)
endfunction()

file(MAKE_DIRECTORY ${pages_folder}/man/man1 ${pages_folder}/bash-completion/completions
  ${pages_folder}/zsh/vendor-completions)
foreach(tool ${installed_tools} softverbs-run)
  add_pages(${tool})
endforeach()
if(NOT VERBENA_HELP2MAN)
  message(STATUS "manual pages: not built, no help2man (tools/setup build installs it)")
endif()
add_custom_target(verbena_pages ALL DEPENDS ${pages})
