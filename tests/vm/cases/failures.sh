# What ends a transfer: both hosts must notice by themselves and say device, peer and cause. Retries take about a second
# here; the limit of the processes is what a hang would meet.

fail_settings=(VERBENA_ACK_TIMEOUT=16 VERBENA_RETRY_COUNT=3)
named='rail rxe[01]0:1, qp [0-9]+: (.*\(status [0-9]+,|its address .* is gone|the port is down)' # device and why
cause="($named|peer closed the connection)"

start_long_pair() { # OPTION...
  h0_settings+=("${fail_settings[@]}" VERBENA_HCA==rxe00)
  h1_settings+=("${fail_settings[@]}" VERBENA_HCA==rxe10)
  start_pair --iters 100000 "$@"
  wait_for_traffic rxe00 300
}

# A fault that both hosts live through and the connection does not.
break_transfer() { # FAULT OPTION...
  local fault=$1 began
  shift
  start_long_pair "$@" && eval "$fault"
  began=$EPOCHREALTIME
  finish_pair
  awk -v a="$began" -v b="$EPOCHREALTIME" 'BEGIN { printf "both had left %.1f s after the fault\n", b - a }'
  heal
  expect_statuses 1 1 || return
  expect_said h0 "WARN verbena: (send to|receive from) 10\.9\.0\.2:[0-9]+: message [0-9]+: $cause|$cause" &&
    expect_said h1 "WARN verbena: (send to|receive from) 10\.9\.0\.1:[0-9]+: .*$cause" &&
    grep -hEq "$named" "$work/h0" "$work/h1" ||
    complain 'nobody named a device and what became of it'
}

kill_peer() { # OPTION...
  start_long_pair "$@" && kill -KILL -- "-$h1_pid"
  finish_pair
  expect_statuses 1 137 || return
  expect_said h0 "WARN verbena: (send to|receive from) 10\.9\.0\.2:[0-9]+: .*$cause" &&
    expect_said h0 "the server's worker in .*: the connection to the process was closed"
}

# No host has the address that h1 sends: the kernel gives up resolving it.
call_silent_address() {
  h0_settings+=("${fail_settings[@]}" VERBENA_HCA==rxe00)
  h1_settings+=("${fail_settings[@]}" VERBENA_HCA==rxe10)
  ip neigh replace 10.0.0.2 lladdr 02:00:00:00:01:00 nud failed dev h0r0
  sysctl -qw net.ipv4.conf.h1r0.arp_ignore=8
  start_pair --size 4k
  finish_pair
  sysctl -qw net.ipv4.conf.h1r0.arp_ignore=0
  heal
  expect_statuses 1 1 && expect_said h0 '10\.0\.0\.2'
}

run_failure_cases() {
  local bulk='--size 256k --mode bandwidth --unpack 0' pages='--size 64k --mode bandwidth --unpack 1 --threshold 1m'
  local turns='--size 4k --mode latency'
  run_case "failure: the sender's cable is pulled, direct" break_transfer 'ip -n sw link set h0r0 down' $bulk
  run_case "failure: the sender's cable is pulled, staged" break_transfer 'ip -n sw link set h0r0 down' $pages
  run_case "failure: the receiver's cable is pulled" break_transfer 'ip -n sw link set h1r0 down' $bulk
  run_case "failure: the sender's NIC is set down" break_transfer 'ip link set h0r0 down' $pages
  run_case "failure: the receiver's NIC is set down" break_transfer 'ip link set h1r0 down' $bulk
  run_case 'failure: the switch dies' break_transfer 'ip -n sw link set rail0 down' $turns
  run_case 'failure: what the receiver sends is lost' break_transfer 'tc qdisc add dev h1r0 root netem loss 100%' $bulk
  run_case "failure: the sender's address is deleted" break_transfer 'ip addr del 10.0.0.1/24 dev h0r0' $bulk
  run_case "failure: the receiver's address is deleted" break_transfer 'ip addr del 10.0.0.2/24 dev h1r0' $pages
  run_case 'failure: the receiver is killed' kill_peer $bulk
  run_case 'failure: nobody answers at the address' call_silent_address
}
