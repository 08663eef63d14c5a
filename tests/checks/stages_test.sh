#!/bin/bash
# tools/lib/stages.sh: a failure, a time limit and an empty run each turn the summary red, and the counts add up.
set -uo pipefail
cd "$(dirname "$0")/../.." || exit 1
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
  "$count; run_stage a 5 bash -c 'count 3 0 0'; run_stage b 5 bash -c 'count 2 0 1'"
expect 'a failed test' 1 '3 passed, 1 failed, 0 skipped' "$count; run_stage a 5 bash -c 'count 3 1 0; exit 8'"
expect 'a failure without counts' 1 '2 passed, 1 failed, 0 skipped' \
  "$count; run_stage a 5 bash -c 'count 2 0 0'; run_stage b 5 false"
expect 'a failure that says it has none' 1 '2 passed, 1 failed, 0 skipped' "$count; run_stage a 5 bash -c 'count 2 0 0; exit 1'"
expect 'a stage over its limit' 1 '1 passed, 1 failed, 0 skipped' \
  "$count; run_stage a 5 bash -c 'count 1 0 0'; run_stage b 1 sleep 20"
expect 'nothing ran' 1 '0 passed, 0 failed, 0 skipped' "run_stage a 5 true; skip_stage b 'no QEMU'"

# A script that is told to stop takes its stage with it.
marker="sleep 61.$$"
bash -uc ". tools/lib/stages.sh; run_stage a 70 $marker" >/dev/null &
script=$!
for _ in {1..50}; do pgrep -fx "$marker" >/dev/null && break; sleep 0.1; done
kill -TERM $script
wait $script
status=$?
for _ in {1..50}; do pgrep -fx "$marker" >/dev/null || break; sleep 0.1; done
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
