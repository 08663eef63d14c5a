# What a connection survives with failover, over two rails and over one, and how soon it says so when it does not.

failover_settings=(VERBENA_FAILOVER=1 VERBENA_ACK_TIMEOUT=17 VERBENA_RETRY_COUNT=2 VERBENA_RAIL_RETRY_MS=200
  VERBENA_PEER_GRACE_MS=1000)
lasting=VERBENA_FAILOVER_TIMEOUT_MS=600000 # it takes long to plug a cable in where this machine is busy
ending=VERBENA_FAILOVER_TIMEOUT_MS=4000
both_cables_name='rail rxe00:1, qp [0-9]+: .*rail rxe01:1, qp [0-9]+: '

start_failover_pair() { # RAILS OPTION...
  local rails=$1 list0=rxe00 list1=rxe10
  shift
  [ "$rails" = 1 ] || { list0+=,rxe01 list1+=,rxe11; }
  h0_settings+=("${failover_settings[@]}" "VERBENA_HCA==$list0")
  h1_settings+=("${failover_settings[@]}" "VERBENA_HCA==$list1")
  start_pair --rails "$rails" "$@"
  wait_for_traffic rxe00 300
}

# Until the client's output has so many lines of that kind; it ends anyway when the client does.
wait_for_line() { # COUNT REGULAR_EXPRESSION
  local deadline=$((SECONDS + 300))
  until [ "$(grep -Ec "$2" "$work/h0")" -ge "$1" ]; do
    if [ $SECONDS -ge $deadline ] || ! kill -0 "$h0_pid" 2>/dev/null; then
      complain "h0 has not said $1 times: $2"
      return
    fi
    sleep 0.1
  done
}

pull() { local cable; for cable; do ip -n sw link set "$cable" down; done; }
plug() { local cable; for cable; do ip -n sw link set "$cable" up; done; }

# Each cable in turn is pulled, noticed, plugged, and its rail is in use again, in the middle of one transfer, which goes on
# for as long as that takes.
pull_in_turn() { # RAILS CABLES OPTION...
  local rails=$1 cables=$2 cable times=0 missed=0
  shift 2
  failover_settings+=("$lasting")
  step_timeout_s=600
  start_failover_pair "$rails" --until "$work/enough" "$@" || missed=1
  for cable in $cables; do
    times=$((times + 1))
    pull "$cable"
    wait_for_line "$times" 'send to .*queue pairs are left' || missed=1
    plug "$cable"
    wait_for_line "$times" 'send to .* works again' || missed=1
    [ $missed = 0 ] || break
  done
  touch "$work/enough"
  finish_pair
  rm "$work/enough"
  heal
  expect_statuses 0 0 && [ $missed = 0 ]
}

lose_on_both() { # PERCENT OPTION...
  local percent=$1 nic
  shift
  for nic in h0r0 h0r1 h1r0 h1r1; do tc qdisc add dev "$nic" root netem loss "$percent%"; done
  failover_settings+=("$lasting")
  h0_settings+=("${failover_settings[@]}" 'VERBENA_HCA==rxe00,rxe01')
  h1_settings+=("${failover_settings[@]}" 'VERBENA_HCA==rxe10,rxe11')
  start_pair --rails 2 "$@"
  finish_pair
  heal
  expect_statuses 0 0
}

# So that what agrees on a failed queue pair and builds another one is lost now and then, too.
pull_while_losing() { # PERCENT RAILS CABLES OPTION...
  local percent=$1 nic
  shift
  for nic in h0r0 h0r1 h1r0 h1r1; do tc qdisc add dev "$nic" root netem loss "$percent%"; done
  pull_in_turn "$@"
}

# Nothing gets through on this rail any more, and no port is down.
silence() { local nic; for nic in "h0r$1" "h1r$1"; do tc qdisc add dev "$nic" root netem loss 100%; done; }

# As by default, but for the tries: Soft-RoCE never gives up at 7.
start_default_pair() {
  h0_settings+=(VERBENA_FAILOVER=1 VERBENA_ACK_TIMEOUT= VERBENA_RETRY_COUNT=6 'VERBENA_HCA==rxe00,rxe01')
  h1_settings+=(VERBENA_FAILOVER=1 VERBENA_ACK_TIMEOUT= VERBENA_RETRY_COUNT=6 'VERBENA_HCA==rxe10,rxe11')
  start_pair --rails 2 "$@"
}

read_uptime_ms() { local uptime; read -r uptime _ </proc/uptime; echo $((${uptime/./} * 10)); }

# A transfer without the fault, for its time, and one with it. Without the neighbours' addresses the kernel cannot
# connect queue pairs; with them it does, and the requests fail.
begin_with_a_silent_rail() { # RAIL KNOWN OPTION...
  local rail=$1 known=$2 started first
  shift 2
  started=$(read_uptime_ms)
  start_default_pair "$@" && finish_pair && expect_statuses 0 0 || return
  first=$(($(read_uptime_ms) - started))
  silence "$rail"
  [ "$known" = 1 ] || printf 'neigh del 10.0.%s.%s dev h%sr%s\n' "$rail" 2 0 "$rail" "$rail" 1 1 "$rail" | ip -batch -
  started=$(read_uptime_ms)
  start_default_pair "$@"
  finish_pair
  echo "figure: $first ms; with rail $rail silent from the start $(($(read_uptime_ms) - started)) ms"
  heal
  expect_statuses 0 0 && { [ "$known" = 1 ] || grep -q 'starts with its other queue pairs' "$work/h0" "$work/h1" ||
    complain "no end says that it starts with its other queue pairs"; }
}

go_silent_under_way() { # RAIL OPTION...
  local rail=$1 began took missed=0
  shift
  step_timeout_s=600
  start_default_pair --until "$work/enough" "$@"
  wait_for_traffic "rxe0$rail" 300 || missed=1
  began=$(read_uptime_ms)
  silence "$rail"
  wait_for_line 1 'send to .*queue pairs are left' || missed=1
  took=$(($(read_uptime_ms) - began))
  touch "$work/enough"
  finish_pair
  rm "$work/enough"
  echo "figure: rail $rail was left $took ms after it went silent, looked at every 100 ms"
  heal
  expect_statuses 0 0 && [ $missed = 0 ]
}

# For good: both ends give up in time and name every rail.
lose_all_rails() { # FAULT OPTION...
  local fault=$1
  shift
  failover_settings+=("$ending")
  start_failover_pair 2 "$@" && eval "$fault"
  finish_pair
  expect_statuses 1 1 && expect_said h0 "WARN verbena: (send to|receive from) 10\.9\.0\.2:[0-9]+: message [0-9]+: $both_cables_name"
}

pull_all_cables() {
  lose_all_rails 'pull h0r0 h0r1' "$@"
  local status=$?
  heal
  return $status
}

# The peer's whole network goes, control socket and rails alike: nothing tells h0 that h1 is gone. A sender that has
# everything acknowledged and waits to be granted more has no rail to blame.
lose_peer_host() { # BEFORE OPTION...
  local before=$1
  shift
  last_words_s=1
  failover_settings+=("$ending")
  start_failover_pair 2 "$@" && eval "$before" && ip -n h1 link set eth0 down && pull h1r0 h1r1 && kill -KILL -- "-$h1_pid"
  finish_pair
  ip -n h1 link set eth0 up
  heal
  expect_statuses 1 137 && expect_said h0 'WARN verbena: send to 10\.9\.0\.2:[0-9]+: (.*rail rxe0[01]:1, qp [0-9]+: |peer closed)'
}

run_failover_cases() {
  local bulk='--size 256k --iters 40 --mode bandwidth --unpack 0'
  local pages='--size 64k --iters 150 --mode bandwidth --unpack 1 --threshold 1m'
  local endless='--size 256k --iters 100000 --mode bandwidth --unpack 0'
  run_case 'failover: one of two cables out and in again, staged' pull_in_turn 2 h0r1 $pages
  run_case 'failover: each of two cables out and in again, direct' pull_in_turn 2 'h0r0 h1r1' $bulk
  run_case 'failover: the only cable out and in again, direct' pull_in_turn 1 h0r0 $bulk
  run_case 'failover: the only cable out and in again, staged' pull_in_turn 1 h1r0 $pages
  run_case 'failover: both rails lose 5 % each way' lose_on_both 5 --size 16k --iters 100 --mode bandwidth --unpack 0
  run_case 'failover: a cable out and in again while both rails lose 5 % each way' pull_while_losing 5 2 h0r1 $bulk
  run_case 'failover: a rail is silent from the start, its address unknown' begin_with_a_silent_rail 1 0 $bulk
  run_case 'failover: the first rail is silent from the start, its address unknown' begin_with_a_silent_rail 0 0 $pages
  run_case 'failover: a rail is silent from the start' begin_with_a_silent_rail 1 1 $bulk
  run_case 'failover: a rail goes silent under way' go_silent_under_way 1 $bulk
  run_case 'failover: the first rail goes silent under way' go_silent_under_way 0 $bulk
  run_case 'failover: both cables out for good' pull_all_cables $endless
  run_case "failover: the peer's host vanishes" lose_peer_host : $endless
  run_case "failover: the peer's host vanishes while a rail is recovered" lose_peer_host \
    "pull h0r1 && wait_for_line 1 'send to .*queue pairs are left'" $endless
}

# The last case of all: what connected the hosts cannot be made again.
run_deleted_namespace_case() {
  run_case 'failover: the namespace of the switches is deleted' lose_all_rails 'ip netns del sw' \
    --size 256k --iters 100000 --mode bandwidth --unpack 0
}
