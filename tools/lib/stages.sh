# Sourced by tools/test and tools/demo. A stage is one step with a name, a time limit and a result; run_stage never
# stops the script, so that one failure does not hide the next, and print_summary closes with every stage's time.

stage_names=()
stage_results=()
stage_seconds=()
stage_cpu_s=()
stage_failures=()
tests_passed=0
tests_failed=0
tests_skipped=0
stage_pid=
within_s=0 # all stages together, since the script's start; 0: no limit

# left_s: prints the remaining seconds.
left_s() { if [ "$within_s" = 0 ]; then echo 1000000; else echo $((within_s - SECONDS)); fi; }

# A stage runs in a separate process group, so a signal to the script has to be handed on.
stop_stage() {
  [ -z "$stage_pid" ] || kill -TERM "$stage_pid" 2>/dev/null
  exit "$1"
}
trap 'stop_stage 130' INT
trap 'stop_stage 143' TERM

# Sets cpu_s: the processor seconds of all processes that have ended. On a busy machine they show the time of a quiet one.
cpu_s=0
count_cpu_s() {
  local file
  file=$(mktemp)
  times >"$file" # not by a pipe: a subshell has none of our children
  cpu_s=$(awk -F '[ms ]+' 'NR == 2 { printf "%d", 60 * ($1 + $3) + $2 + $4 }' "$file")
  rm -f "$file"
}

# run_stage NAME LIMIT_S COMMAND...: COMMAND may be a program or a function of a script that exports it; it may write
# "passed failed skipped", and a remark, to $STAGE_COUNTS, and text about failures for the summary to $STAGE_FAILURES.
# Returns its status; 124 when the limit ended it.
run_stage() {
  local name=$1 limit_s=$2 status=0 started=$SECONDS started_cpu_s counts failures
  shift 2
  count_cpu_s
  started_cpu_s=$cpu_s
  [ "$limit_s" -lt "$(left_s)" ] || limit_s=$(left_s)
  counts=$(mktemp) failures=$(mktemp)
  printf '\n=== %s (at most %d s)\n' "$name" "$limit_s"
  [ "$within_s" = 0 ] || export stage_deadline=$(($(date +%s) + $(left_s)))
  STAGE_COUNTS=$counts STAGE_FAILURES=$failures timeout --kill-after=10 "$limit_s" "$@" </dev/null &
  stage_pid=$!
  wait "$stage_pid" || status=$?
  stage_pid=
  count_cpu_s
  stage_cpu_s+=($((cpu_s - started_cpu_s)))
  finish_stage "$name" "$status" $((SECONDS - started)) "$counts" "$limit_s"
  [ ! -s "$failures" ] || stage_failures+=("=== failed in: $name"$'\n'"$(<"$failures")")
  rm -f "$counts" "$failures"
  return "$status"
}

finish_stage() {
  local name=$1 status=$2 seconds=$3 counts=$4 limit_s=$5 passed=0 failed=0 skipped=0 note='' result=passed
  [ ! -s "$counts" ] || read -r passed failed skipped note <"$counts"
  if [ "$status" != 0 ]; then
    result="FAILED (exit status $status)"
    [ "$status" != 124 ] || result="FAILED (stopped at its limit of $limit_s s)"
    [ "$failed" != 0 ] || failed=1
  fi
  tests_passed=$((tests_passed + passed))
  tests_failed=$((tests_failed + failed))
  tests_skipped=$((tests_skipped + skipped))
  [ "$passed$failed$skipped" = 000 ] || result+=": $passed passed, $failed failed, $skipped skipped${note:+; $note}"
  stage_names+=("$name")
  stage_results+=("$result")
  stage_seconds+=("$seconds")
  echo "=== $name: $result, $seconds s"
}

# has_time NAME SECONDS: true if that many seconds are left; otherwise skips the stage.
has_time() {
  [ "$(left_s)" -ge "$2" ] || { skip_stage "$1" "takes about $2 s here, and of --within $(left_s) s are left"; return 1; }
}

# skip_stage NAME WHY
skip_stage() {
  printf '\n=== %s: skipped: %s\n' "$1" "$2"
  stage_names+=("$1")
  stage_results+=("skipped: $2")
  stage_seconds+=(0)
  stage_cpu_s+=(0)
}

# Prints the failures again, because readers start at the end of a long log; then one line per stage, the names of what failed,
# and on the last line only the counts. Fails if anything failed.
print_summary() {
  local i
  [ "${#stage_failures[@]}" = 0 ] || printf '\n%s\n' "${stage_failures[@]}"
  printf '\n=== summary\n'
  for i in "${!stage_names[@]}"; do
    printf '%6d s %6d CPU s  %-24s %s\n' "${stage_seconds[i]}" "${stage_cpu_s[i]}" "${stage_names[i]}" "${stage_results[i]}"
  done
  printf '%6d s %6d CPU s  in all\n' "$SECONDS" "$cpu_s"
  # A log of which only the end is kept still names them.
  for i in "${stage_failures[@]}"; do
    grep -E '^(=== failed in|--- failed)' <<<"$i" | head -n 12
  done
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
