# The project's own test programs over the system's libibverbs.

run_over() { # DEVICES PROGRAM ARGUMENT...
  local devices=$1 program=$2
  shift 2
  [ -x "$build/bin/$program" ] || { echo "$program was not built"; return 77; }
  VERBENA_IBVERBS_LIB=libibverbs.so.1 VERBENA_HCA="=$devices" run_limited "$build/bin/$program" "$@"
}

run_program_cases() {
  run_case 'program: the verbs layer, in a process and between two' run_over rxe00,rxe10 verbs_transfer_test
  run_case 'program: a pulled cable, a silent address' run_over rxe00,rxe10 verbs_cable_test
}
