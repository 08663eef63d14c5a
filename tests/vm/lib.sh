# Sourced by suite: runs cases and counts them; verbena-perf on both hosts; counters of the kernel that prove things.

work=$(mktemp -d)
passed=0
failed=0
skipped=0
repeated=0
within_s=${VM_SUITE_WITHIN_S:-1000000} # a case does not begin later
seen=0
IFS=/ read -r part parts <<<"${VM_PART:-1/1}" # every case of that number runs: the first, and the PARTSth after it
perf=$build/bin/verbena-perf
limit_s=900      # of each process of a case
step_timeout_s=60 # of verbena-perf's steps
slow_s=30    # a case that took longer shows its output even if it succeeded

# Sets idle and total, hundredths of a second of both processors since the machine's start.
read_idle() {
  local user nice system wait irq softirq
  read -r _ user nice system idle wait irq softirq _ </proc/stat
  total=$((user + nice + system + idle + wait + irq + softirq))
}

# Sets took: what time_case NAME FUNCTION ARGUMENT... took; its output: $work/output. In a subshell, so that a case may set
# what it likes.
time_case() {
  local status=0 started=$EPOCHREALTIME idle total idle_before total_before
  read_idle
  idle_before=$idle total_before=$total
  ("$@") >"$work/output" 2>&1 </dev/null || status=$?
  read_idle
  printf -v seconds '%.1f' "$(awk -v a="$started" -v b="$EPOCHREALTIME" 'BEGIN { print b - a }')"
  took="$seconds s, $((100 * (idle - idle_before) / (total - total_before + 1))) % idle"
  return $status
}

# run_case NAME FUNCTION ARGUMENT...: 77 is skipped. What fails is tried once more, and is said to have been: emulated
# hosts that get no processor time miss limits that NICs keep.
run_case() {
  local name=$1 status=0 seconds took tries=
  shift
  [[ $name =~ $only ]] || return 0
  if [ $((seen++ % parts)) != $((part - 1)) ]; then
    skipped=$((skipped + 1))
    echo "skipped $name: not in part $part of $parts"
    return 0
  fi
  if [ "$SECONDS" -ge "$within_s" ]; then
    skipped=$((skipped + 1))
    echo "skipped $name: the suite's $within_s s are over"
    return 0
  fi
  time_case "$@" || status=$?
  if [ $status != 0 ] && [ $status != 77 ] && [ "$SECONDS" -lt "$within_s" ]; then
    echo "        $name: status $status, $took; once more:"
    tail -n 30 "$work/output" | sed 's/^/        /'
    heal
    repeated=$((repeated + 1)) tries=', at the second try' status=0
    time_case "$@" || status=$?
  fi
  case $status in
    0)
      passed=$((passed + 1))
      echo "ok      $name ($took$tries)"
      grep '^figure: ' "$work/output" | sed 's/^/        /'
      [ "${seconds%.*}" -lt $slow_s ] || sed 's/^/        /' "$work/output"
      ;;
    77) skipped=$((skipped + 1)); echo "skipped $name: $(tail -n 1 "$work/output")" ;;
    *)
      failed=$((failed + 1))
      echo "FAILED  $name (status $status, $took)"
      tail -n 60 "$work/output" | sed 's/^/        /'
      ;;
  esac
  echo "$passed $failed $skipped" >"$counts"
}

run_limited() { timeout -k 2 "$limit_s" "$@"; }

complain() { echo "*** $*"; return 1; }

read_counter() { cat "/sys/class/infiniband/$1/ports/1/hw_counters/$2"; } # DEVICE COUNTER
count_sent() { read_counter "$1" sent_pkts; }
count_ipv6() { awk '$1 == "Ip6InReceives" { print $2 }' /proc/net/snmp6; }

# start_pair OPTION...: verbena-perf's server on h1 and client on h0, each with the settings in the arrays h1_settings and
# h0_settings. Both get time to tell their own cause. Their output: $work/h0 and $work/h1.
h0_settings=()
h1_settings=()
server_options=()
last_words_s=30 # how long each tool waits for the other to tell its own cause
start_pair() {
  rdma-on h1 timeout -k 2 "$limit_s" env "${h1_settings[@]}" "$perf" --server --wait 60 --last-words "$last_words_s" -v \
    "${server_options[@]}" \
    >"$work/h1" 2>&1 &
  h1_pid=$!
  rdma-on h0 timeout -k 2 "$limit_s" env "${h0_settings[@]}" "$perf" --client 10.9.0.2 --wait 60 --last-words "$last_words_s" \
    -v --timeout "$step_timeout_s" --warmup 2 "$@" >"$work/h0" 2>&1 &
  h0_pid=$!
}

# Sets h0_status and h1_status, and shows what both said.
finish_pair() {
  h0_status=0
  h1_status=0
  wait "$h0_pid" || h0_status=$?
  wait "$h1_pid" || h1_status=$?
  for host in h0 h1; do sed "s/^/$host: /" "$work/$host"; done
  echo "h0 left with $h0_status, h1 with $h1_status"
}

expect_statuses() { # STATUS_OF_H0 STATUS_OF_H1
  [ "$h0_status $h1_status" = "$1 $2" ] || complain "statuses $h0_status $h1_status instead of $1 $2"
}

expect_said() { # HOST REGULAR_EXPRESSION
  grep -Eq "$2" "$work/$1" || complain "$1 did not say: $2"
}

# Waits until this device of the pair has sent this many packets more.
wait_for_traffic() { # DEVICE PACKETS
  local goal=$(($(count_sent "$1") + $2)) deadline=$((SECONDS + 300))
  until [ "$(count_sent "$1")" -ge "$goal" ]; do
    [ $SECONDS -lt $deadline ] || { complain "$1 sends nothing"; return; }
    kill -0 "$h0_pid" 2>/dev/null || { complain "h0 ended before $1 had sent $2 packets"; return; }
    sleep 0.1
  done
}

# Undoes every fault that a case may have left.
heal() {
  local host rail nic
  for rail in 0 1; do
    ip -n sw link set "rail$rail" up
    for host in 0 1; do
      nic=h${host}r$rail
      ip -n sw link set "$nic" up
      tc qdisc del dev "$nic" root 2>/dev/null
      printf '%s\n' "link set $nic up mtu 9000" "addr replace 10.0.$rail.$((host + 1))/24 dev $nic" \
        "neigh replace 10.0.$rail.$((2 - host)) lladdr 02:00:00:00:0$((1 - host)):0$rail dev $nic"
    done
  done | ip -batch -
  ip -6 -batch - < <(for rail in 0 1; do for host in 0 1; do
    # An interface that was down has lost its routes.
    echo "route replace fd00:$rail::/64 dev h${host}r$rail table 1$host$rail"
    echo "neigh replace fd00:$rail::$((2 - host)) lladdr 02:00:00:00:0$((1 - host)):0$rail dev h${host}r$rail"
  done; done)
}
