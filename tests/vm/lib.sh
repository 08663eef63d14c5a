# Sourced by suite: runs cases and counts them; verbena-perf on both hosts; counters of the kernel that prove things.

work=$(mktemp -d)
passed=0
failed=0
skipped=0
perf=$build/bin/verbena-perf
limit_s=120 # of each process of a case

# run_case NAME FUNCTION ARGUMENT...: in a subshell, so that a case may set what it likes. 77 is skipped.
run_case() {
  local name=$1 status=0 started=$EPOCHREALTIME
  shift
  [[ $name =~ $only ]] || return 0
  ("$@") >"$work/output" 2>&1 </dev/null || status=$?
  printf -v seconds '%.1f' "$(awk -v a="$started" -v b="$EPOCHREALTIME" 'BEGIN { print b - a }')"
  case $status in
    0) passed=$((passed + 1)); echo "ok      $name ($seconds s)" ;;
    77) skipped=$((skipped + 1)); echo "skipped $name: $(tail -n 1 "$work/output")" ;;
    *)
      failed=$((failed + 1))
      echo "FAILED  $name (status $status, $seconds s)"
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
start_pair() {
  rdma-on h1 timeout -k 2 "$limit_s" env "${h1_settings[@]}" "$perf" --server --wait 60 --last-words 30 -v \
    >"$work/h1" 2>&1 &
  h1_pid=$!
  rdma-on h0 timeout -k 2 "$limit_s" env "${h0_settings[@]}" "$perf" --client 10.9.0.2 --wait 60 --last-words 30 \
    -v --timeout 60 --warmup 2 "$@" >"$work/h0" 2>&1 &
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
  local goal=$(($(count_sent "$1") + $2)) i
  for ((i = 0; i < 400; i++)); do
    [ "$(count_sent "$1")" -lt "$goal" ] || return 0
    sleep 0.1
  done
  complain "$1 sends nothing"
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
