# Sourced by tools/test, after stages.sh: a preset's tests as a stage. Takes $jobs, $all and $long from there.

export most_repeated=8
export day=$(($(date +%s) / 86400))
export finding='SUMMARY: [A-Za-z]*Sanitizer|runtime error:'
# qemu-user has no process_vm_readv(), by which softverbs copies from another process, and no mincore(); it delivers no SIGBUS,
# starts no program of the emulated processor, no thread in a forked child, and does not run exit handlers as a process does.
arm64_left_out='SharedFate|AForkedChildUnwatches|TwoProcesses|AllThatAreOnItLearnOfADeath|APeerThatVanishesIs|DatagramPeerTest|AKilledPeer'
arm64_left_out+='|process_crowd|ASenderMayStop|DeathTest|LongTransfer|HasMemoryAsFar|RegistersOnlyMemory|RegistrationThatFails'
arm64_left_out+='|ProcessThatExits|DumpAtExit|Unloaded'
# These have deadlines that it is too slow for, or take minutes.
arm64_left_out+='|AThreadThatDoesNotCall|AddressesAreTakenOnce|Footprint|Failure[.]|FailoverTest|ThreadsShareOne|OneSidedOrderTest'
arm64_left_out+='|Simulation|Seeds/|Shapes/|NothingIsLeftOfManyGroups'
export arm64_left_out
failed_tests=$(realpath "$(dirname "${BASH_SOURCE[0]}")")/failed_tests.py
export failed_tests

# ctest_preset PRESET JUNIT_FILE CTEST_ARGUMENT...
ctest_preset() {
  local preset=$1 junit=$2 launch=()
  shift 2
  # gcc 12's thread sanitizer cannot map its shadow where the kernel randomises with many bits.
  [ "$preset" != tsan ] || ! setarch "$(uname -m)" -R true 2>/dev/null || launch=(setarch "$(uname -m)" -R)
  rm -f "$junit"
  "${launch[@]}" ctest --test-dir "build/$preset" --timeout 300 --output-on-failure --output-junit "$junit" \
    --no-tests=error "$@"
}

# part_of NAME: prints K/N, the part that runs on this day of a preset's test programs, of vm's cases or of tidy's pieces. Prints
# nothing if all of them run, which takes hours for the sanitizers and Arm.
part_of() {
  [ -z "$long" ] || return 0
  case $1 in
    asan | tsan) echo "$((day / 3 % 2 + 1))/2" ;;
    vm | tidy) echo "$((day % 3 + 1))/3" ;;
    arm64) echo "$((day / 3 % 4 + 1))/4" ;;
  esac
}

# The presets that run beside the default one: one of them a day, so that a slow machine has time for each of them in turn.
other_presets() {
  local all_of_them=(asan tsan arm64)
  if [ -n "$long" ]; then echo "${all_of_them[@]}"; else echo "${all_of_them[day % 3]}"; fi
}

# test_preset PRESET: runs all its tests. With a $stage_deadline (seconds since 1970), a sanitizer's or an emulator's preset runs
# every fourth test, then the ones after these, and so on until the deadline.
test_preset() {
  local preset=$1 status=0 slices=1 slice started slowest_s=0 took_s passed=0 failed=0 skipped=0 note part
  [ -z "${stage_deadline:-}" ] || [ "$preset" = default ] || slices=4
  part=$(part_of "$preset")
  note=${part:+part $part of the programs, by the date}
  for ((slice = 1; slice <= slices; slice++)); do
    started=$(date +%s)
    if [ "$slice" != 1 ] && [ $((stage_deadline - started)) -lt $((2 * slowest_s + 30)) ]; then
      note+="${note:+; }$((slices - slice + 1)) of $slices slices left out for lack of time"
      break
    fi
    test_slice "$preset" "$slice" $slices || status=$?
    took_s=$(($(date +%s) - started))
    [ $took_s -le $slowest_s ] || slowest_s=$took_s
  done
  echo "$passed $failed $skipped $note" >"$STAGE_COUNTS"
  return $status
}

# Adds to its caller's passed, failed, skipped and note.
test_slice() { # PRESET SLICE SLICES
  local junit=$PWD/build/$1/junit.xml status=0 excluded='^vm$' counts again=0 left_out=()
  [ -n "$long" ] || excluded+='|^long$'
  [ -n "$all$long" ] || excluded+='|^thorough$'
  [ "$1" = default ] || excluded+="|^checks\$|^no-$1\$" # scripts have no use for a sanitizer
  [ "$1" != arm64 ] || left_out=(-E "$arm64_left_out")
  # Half as many again as processors: many tests wait for a deadline or for another process.
  ctest_preset "$1" "$junit" -j $((jobs + (jobs + 1) / 2)) -LE "$excluded" "${left_out[@]}" -I "$2,,$3" || status=$?
  [ -s "$junit" ] || return $status
  read -ra counts < <(count_junit "$junit")
  if [ "${counts[1]}" -gt 0 ] && [ "${counts[1]}" -le $most_repeated ] && ! grep -Eq "$finding" "$junit"; then
    status=0
    repeat_alone "$1" "${counts[1]}" || { status=$? again=$(<"build/$1/failed_again"); junit=${junit%.xml}_alone.xml; }
    [ "${counts[1]}" -le "$again" ] || note+="${note:+; }$((counts[1] - again)) passed only alone"
    counts=($((counts[0] + counts[1] - again)) "$again" "${counts[2]}")
  fi
  passed=$((passed + counts[0])) failed=$((failed + counts[1])) skipped=$((skipped + counts[2]))
  [ $status = 0 ] || python3 "$failed_tests" "$junit" >>"$STAGE_FAILURES"
  return $status
}

# Repeats a few failed tests, each alone, because they may have lacked processor time; the output shows it. A sanitizer's
# finding remains a failure, even if it does not repeat.
repeat_alone() { # PRESET FAILED: how many fail again is in build/PRESET/failed_again
  local junit=$PWD/build/$1/junit_alone.xml status=0
  printf '\n=== %d tests failed while other tests ran; each runs again, alone\n' "$2"
  ctest_preset "$1" "$junit" -j 1 --rerun-failed || status=$?
  if [ -s "$junit" ]; then count_junit "$junit" | cut -d ' ' -f 2; else echo "$2"; fi >"build/$1/failed_again"
  return $status
}

export -f ctest_preset part_of test_preset test_slice repeat_alone count_junit
