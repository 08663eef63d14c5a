# Rails that are not equally fast: what each of h0's carried, by the plugin's own count.

# Sets `first` and `second` to the bytes that h0 has posted on rail 0 and rail 1.
read_rail_bytes() {
  local counts
  counts=$(grep -Eo 'by rail [0-9]+ [0-9]+ bytes' "$work/h0" | tail -n 1)
  [ -n "$counts" ] || complain 'h0 did not say what each rail carried' || return
  read -r _ _ first second _ <<<"$counts"
  echo "h0: rail 0 carried $((first >> 10)) KiB, rail 1 $((second >> 10)) KiB" >&3
}

# FAULT once it is under way, LEAST and MOST percent that rail 0 may carry of everything.
share_rails() { # FAULT LEAST MOST OPTION...
  local fault=$1 least=$2 most=$3 first second
  shift 3
  h0_settings+=('VERBENA_HCA==rxe00,rxe01')
  h1_settings+=('VERBENA_HCA==rxe10,rxe11')
  start_pair --rails 2 "$@"
  wait_for_traffic rxe00 100 && eval "$fault"
  finish_pair
  heal
  expect_statuses 0 0 && read_rail_bytes || return
  grep -E '^ +[0-9]' "$work/h0" >&3
  local percent=$((100 * first / (first + second)))
  [ $percent -ge "$least" ] && [ $percent -le "$most" ] ||
    complain "rail 0 carried $percent % instead of $least to $most %"
}

slow_down() { tc qdisc add dev h0r0 root netem rate 16mbit; } # emulation reaches 10 times as much, or 50

run_rail_cases() {
  local bulk='--size 1m --iters 60 --mode bandwidth --unpack 0'
  local pages='--size 256k --iters 160 --mode bandwidth --unpack 1 --threshold 1m'
  exec 3>&1
  export VERBENA_ACK_TIMEOUT=19 # what waits for its turn on the slow rail is not lost
  run_case 'rails: equal ones share a long message' share_rails : 30 70 $bulk
  run_case 'rails: one that turns slow carries less than a third' share_rails slow_down 0 33 $bulk
  run_case 'rails: one that turns slow carries less than a third, staged' share_rails slow_down 0 33 $pages
  export VERBENA_ACK_TIMEOUT=17
  exec 3>&-
}
