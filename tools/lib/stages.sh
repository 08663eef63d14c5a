# Sourced by tools/test and tools/demo. A stage is one step with a name, a time limit and a result; run_stage never
# stops the script, so that one failure does not hide the next, and print_summary closes with every stage's time.

stage_names=()
stage_results=()
stage_seconds=()
tests_passed=0
tests_failed=0
tests_skipped=0
stage_pid=

# A stage runs in a process group of its own, so a signal to the script has to be handed on.
stop_stage() {
  [ -z "$stage_pid" ] || kill -TERM "$stage_pid" 2>/dev/null
  exit "$1"
}
trap 'stop_stage 130' INT
trap 'stop_stage 143' TERM

# run_stage NAME LIMIT_S COMMAND...: COMMAND may be a program or a function of a script that exports it; it may write
# "passed failed skipped" to $STAGE_COUNTS. Returns its status; 124 when the limit ended it.
run_stage() {
  local name=$1 limit_s=$2 status=0 started=$SECONDS counts
  shift 2
  counts=$(mktemp)
  printf '\n=== %s (at most %d s)\n' "$name" "$limit_s"
  STAGE_COUNTS=$counts timeout --kill-after=10 "$limit_s" "$@" </dev/null &
  stage_pid=$!
  wait "$stage_pid" || status=$?
  stage_pid=
  finish_stage "$name" "$status" $((SECONDS - started)) "$counts" "$limit_s"
  rm -f "$counts"
  return "$status"
}

finish_stage() {
  local name=$1 status=$2 seconds=$3 counts=$4 limit_s=$5 passed=0 failed=0 skipped=0 result=passed
  [ ! -s "$counts" ] || read -r passed failed skipped <"$counts"
  if [ "$status" != 0 ]; then
    result="FAILED (exit status $status)"
    [ "$status" != 124 ] || result="FAILED (stopped at its limit of $limit_s s)"
    [ "$failed" != 0 ] || failed=1
  fi
  tests_passed=$((tests_passed + passed))
  tests_failed=$((tests_failed + failed))
  tests_skipped=$((tests_skipped + skipped))
  [ "$passed$failed$skipped" = 000 ] || result+=": $passed passed, $failed failed, $skipped skipped"
  stage_names+=("$name")
  stage_results+=("$result")
  stage_seconds+=("$seconds")
  echo "=== $name: $result, $seconds s"
}

# skip_stage NAME WHY
skip_stage() {
  printf '\n=== %s: skipped: %s\n' "$1" "$2"
  stage_names+=("$1")
  stage_results+=("skipped: $2")
  stage_seconds+=(0)
}

# Prints a line a stage, then the counts alone on the last line; fails if anything failed.
print_summary() {
  local i
  printf '\n=== summary\n'
  for i in "${!stage_names[@]}"; do
    printf '%6d s  %-24s %s\n' "${stage_seconds[i]}" "${stage_names[i]}" "${stage_results[i]}"
  done
  printf '%6d s  in all\n' "$SECONDS"
  echo "$tests_passed passed, $tests_failed failed, $tests_skipped skipped"
  [ "$tests_failed" = 0 ] && [ "$tests_passed" != 0 ]
}

# count_junit FILE: "passed failed skipped" of a file that ctest --output-junit wrote. ctest counts a test that is
# disabled or skipped among the tests.
count_junit() {
  local tests failures disabled skipped
  tests=$(sed -n 's/.*[^a-z]tests="\([0-9]*\)".*/\1/p' "$1" | head -n 1)
  failures=$(sed -n 's/.*failures="\([0-9]*\)".*/\1/p' "$1" | head -n 1)
  disabled=$(sed -n 's/.*disabled="\([0-9]*\)".*/\1/p' "$1" | head -n 1)
  skipped=$(sed -n 's/.*skipped="\([0-9]*\)".*/\1/p' "$1" | head -n 1)
  echo "$((tests - failures - disabled - skipped)) $failures $((disabled + skipped))"
}

# configure_preset PRESET [CMAKE_ARGUMENT...]: with ccache when it is there, so that a second clone builds quickly.
configure_preset() {
  local preset=$1 launcher=()
  shift
  if command -v ccache >/dev/null; then
    export CCACHE_BASEDIR=$PWD CCACHE_NOHASHDIR=1
    launcher=(-DCMAKE_C_COMPILER_LAUNCHER=ccache -DCMAKE_CXX_COMPILER_LAUNCHER=ccache)
  fi
  cmake --preset "$preset" "${launcher[@]}" "$@"
}
