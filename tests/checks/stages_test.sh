#!/bin/bash
# tools/lib/stages.sh: a failure, a time limit and an empty run each turn the summary red, and the counts add up.
set -uo pipefail
cd "$(dirname "$0")/../.." || exit 1
unset stage_deadline # of the run that this test is a part of
failures=0

# expect NAME WANTED_STATUS WANTED_LAST_LINE SCRIPT
expect() {
  local name=$1 wanted_status=$2 wanted_line=$3 output status=0
  output=$(bash -uc ". tools/lib/stages.sh; $4; print_summary") || status=$?
  if [ $status != "$wanted_status" ] || [ "$(tail -n 1 <<<"$output")" != "$wanted_line" ]; then
    printf 'FAILED %s: status %d\n%s\n' "$name" "$status" "$output"
    failures=$((failures + 1))
  fi
}

count='count() { echo "$*" >"$STAGE_COUNTS"; }; export -f count'
expect 'counts add up' 0 '5 passed, 0 failed, 1 skipped' \
  "$count; run_stage a 60 bash -c 'count 3 0 0'; run_stage b 60 bash -c 'count 2 0 1'"
expect 'a failed test' 1 '3 passed, 1 failed, 0 skipped' "$count; run_stage a 60 bash -c 'count 3 1 0; exit 8'"
expect 'a failure without counts' 1 '2 passed, 1 failed, 0 skipped' \
  "$count; run_stage a 60 bash -c 'count 2 0 0'; run_stage b 60 false"
expect 'a failure that says it has none' 1 '2 passed, 1 failed, 0 skipped' "$count; run_stage a 60 bash -c 'count 2 0 0; exit 1'"
expect 'a stage over its limit' 1 '1 passed, 1 failed, 0 skipped' \
  "$count; run_stage a 60 bash -c 'count 1 0 0'; run_stage b 1 sleep 20"
expect 'nothing ran' 1 '0 passed, 0 failed, 0 skipped' "run_stage a 60 true; skip_stage b 'no QEMU'"

expect 'a stage cut to what is left' 1 '0 passed, 1 failed, 0 skipped' 'within_s=2; run_stage a 60 sleep 20'
expect 'a stage that has no time' 0 '1 passed, 0 failed, 0 skipped' \
  "$count; within_s=50; run_stage a 60 bash -c 'count 1 0 0'; ! has_time b 51 || run_stage b 60 false"
expect 'a stage that has time' 1 '0 passed, 1 failed, 0 skipped' 'within_s=50; ! has_time a 40 || run_stage a 60 false'

# A preset with tests: `steady` passes, `unsteady` fails only in its first run, and `late` does what a variable says.
folder=$(mktemp -d)
mkdir "$folder/source"
cat >"$folder/source/CMakeLists.txt" <<'END'
cmake_minimum_required(VERSION 3.25)
project(repeated NONE)
enable_testing()
foreach(i RANGE 1 6)
  add_test(NAME steady${i} COMMAND true)
endforeach()
add_test(NAME unsteady COMMAND bash -c "rm ${CMAKE_BINARY_DIR}/first 2>/dev/null && exit 1 || exit 0")
add_test(NAME late COMMAND bash -c "${LATE}")
add_test(NAME thorough COMMAND false) # not without --all
set_tests_properties(thorough PROPERTIES LABELS thorough)
END
expect_repeated() { # NAME STATUS LAST_LINE COMMAND_OF_LATE
  cmake -S "$folder/source" -B "$folder/build/made" "-DLATE=$4" >"$folder/output" || cat "$folder/output"
  touch "$folder/build/made/first"
  expect "$1" "$2" "$3" ". tools/lib/ctest.sh; export jobs=1 long= all=; cd $folder; run_stage a 60 bash -c 'test_preset made'"
}
expect_repeated 'a test that passes at the second try' 0 '8 passed, 0 failed, 0 skipped' true
expect_repeated 'a test that fails at both' 1 '7 passed, 1 failed, 0 skipped' false
expect_repeated "a sanitizer's finding, not repeated" 1 '6 passed, 2 failed, 0 skipped' \
  "echo SUMMARY: ThreadSanitizer: data race && echo its stack && exit 66"
summarise() {
  bash -uc ". tools/lib/stages.sh; . tools/lib/ctest.sh; export jobs=1 long= all=; cd $folder
    run_stage a 60 bash -c 'test_preset made' >/dev/null; print_summary"
}
shown=$(summarise)
if ! grep -qx -- '--- failed: late (.*)' <<<"$shown" || ! grep -q '^SUMMARY: Thread' <<<"$shown"; then
  printf 'FAILED the summary shows what failed\n%s\n' "$shown"
  failures=$((failures + 1))
fi
cmake -S "$folder/source" -B "$folder/build/made" "-DLATE=true" >/dev/null
touch "$folder/build/made/first"
summarise | grep -q 'passed: 8 passed, 0 failed, 0 skipped; 1 passed only alone' ||
  { echo 'FAILED the summary counts what passed only alone'; failures=$((failures + 1)); }
expect 'a preset in parts' 0 '8 passed, 0 failed, 0 skipped' \
  ". tools/lib/ctest.sh; export jobs=1 long= all=; within_s=600; cd $folder; run_stage a 60 bash -c 'test_preset made'"
expect 'parts that there is no time for' 0 '2 passed, 0 failed, 0 skipped' \
  ". tools/lib/ctest.sh; export jobs=1 long= all=; within_s=20; cd $folder; run_stage a 60 bash -c 'test_preset made'"
rm -rf "$folder"

# Days share the presets and their programs, and --long leaves none out.
parts=$(. tools/lib/ctest.sh; long=; for day in 4 5 6; do other_presets; part_of tsan; part_of arm64; part_of tidy; part_of default; done
  long=1; other_presets; part_of tsan)
[ "${parts//$'\n'/ }" = 'tsan 2/2 2/4 2/3 arm64 2/2 2/4 3/3 asan 1/2 3/4 1/3 asan tsan arm64' ] || { echo "FAILED the day's part: $parts"; failures=$((failures + 1)); }

# A signal to the script also ends its stage.
marker="sleep 61.$$"
bash -uc ". tools/lib/stages.sh; run_stage a 70 $marker" >/dev/null &
script=$!
for _ in {1..600}; do pgrep -fx "$marker" >/dev/null && break; sleep 0.1; done
kill -TERM $script
wait $script
status=$?
for _ in {1..600}; do pgrep -fx "$marker" >/dev/null || break; sleep 0.1; done
if [ $status != 143 ] || pgrep -fx "$marker" >/dev/null; then
  echo "FAILED a stopped script leaves its stage: status $status"
  failures=$((failures + 1))
fi

# The attributes that ctest's --output-junit writes, in its order and over several lines.
junit=$(mktemp)
printf '<?xml version="1.0"?>\n<testsuite name="(empty)"\n\ttests="12"\n\tfailures="2"\n\tdisabled="1"\n\tskipped="3"\n/>\n' >"$junit"
counted=$(. tools/lib/stages.sh; count_junit "$junit")
[ "$counted" = '6 2 4' ] || { echo "FAILED count_junit: $counted"; failures=$((failures + 1)); }
rm -f "$junit"
[ $failures = 0 ] && echo "all passed"
