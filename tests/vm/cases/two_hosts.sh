# verbena-perf's server on h1, its client on h0: transfers that succeed.

# Every byte right on both sides, over the devices of these rails ("0", "1" or "0 1").
transfer() { # RAILS OPTION...
  local rails=$1 rail device count=0
  local -A before
  shift
  h0_settings+=("VERBENA_HCA==rxe0${rails/ /,rxe0}")
  h1_settings+=("VERBENA_HCA==rxe1${rails/ /,rxe1}")
  for rail in $rails; do
    count=$((count + 1))
    for device in "rxe0$rail" "rxe1$rail"; do before[$device]=$(count_sent "$device"); done
  done
  start_pair --rails "$count" "$@"
  finish_pair
  expect_statuses 0 0 || return
  for device in "${!before[@]}"; do
    [ "$(count_sent "$device")" -gt $((before[$device] + 10)) ] || complain "$device sent next to nothing" || return
  done
}

staged() {
  transfer "$@" --unpack 1 --threshold 4m && expect_said h0 '^# .* [1-9][0-9]* messages staged, 0 direct'
}

direct() {
  transfer "$@" --unpack 0 && expect_said h0 '^# .* 0 messages staged, [1-9][0-9]* direct'
}

both_paths() { transfer "$@" --threshold 32k && expect_said h0 '[1-9][0-9]* messages staged, [1-9][0-9]* direct'; }

# The kernel's own list of shared receive queues names the queue pairs attached to each.
show_shared_queue() {
  start_pair --size 64k --iters 100 --mode bandwidth --unpack 1 --threshold 1m --until "$work/enough"
  local queues
  wait_for_traffic rxe00 100
  queues=$(rdma resource show srq dev rxe10)
  touch "$work/enough"
  finish_pair
  rm "$work/enough"
  echo "$queues"
  expect_statuses 0 0 && expect_said h0 '[1-9][0-9]* messages staged, 0 direct' || return
  [[ $queues =~ "srqn "[0-9]+.*"lqpn "[0-9]+.*"comm verbena-perf" ]] || complain 'no queue pair on a shared receive queue'
}

# Both hosts take a GID of this form, and the packets are of this version of IP.
use_address() { # GID_EXPRESSION IP_VERSION SETTING OPTION...
  local gid=$1 version=$2 before sent
  h0_settings+=("$3")
  h1_settings+=("$3")
  shift 3
  before=$(count_ipv6)
  transfer "$@" --sizes 4k:256k --factor 64 --iters 3 || return
  sent=$(($(count_ipv6) - before))
  expect_said h0 "device rxe0.*, gid $gid" && expect_said h1 "device rxe1.*, gid $gid" || return
  if [ "$version" = 6 ]; then [ "$sent" -gt 200 ]; else [ "$sent" -lt 100 ]; fi || complain "$sent packets of IPv6"
}

# One end's packets of 4 KiB would not fit the other's NIC. At 1 KiB a packet, 256 KiB is 256 of them.
differ_in_mtu() { # NIC_WITH_1500
  local before sent
  ip link set "$1" mtu 1500
  before=$(count_sent rxe00)
  transfer 0 --size 256k --iters 4 --mode bandwidth
  local status=$?
  sent=$(($(count_sent rxe00) - before))
  heal
  echo "$sent packets for 2 MiB"
  [ $status = 0 ] || return
  [ "$sent" -gt 2000 ] || complain 'packets were longer than the smaller MTU'
}

# 64 connections in each direction over each rail; all carry messages, the last is measured beside the first.
many() { # QUEUE_PAIRS RAILS
  h0_settings+=("VERBENA_QPS_PER_CONNECTION=$1")
  h1_settings+=("VERBENA_QPS_PER_CONNECTION=$1")
  transfer "$2" --pairs 64 --unpack 0 --sizes 4k:1m --factor 256 --iters 3 &&
    expect_said h0 '64 connections in each direction'
}

run_two_host_cases() {
  local small='--sizes 4k:4m --factor 32 --iters 3'
  for rails in 0 '0 1'; do
    run_case "hosts, rails $rails: staged, 4 KiB to 4 MiB" staged "$rails" $small
    run_case "hosts, rails $rails: direct, 4 KiB to 4 MiB" direct "$rails" $small
  done
  run_case 'hosts: both paths in one run, the oldest table' both_paths 0 --abi 7 --sizes 8k:128k --factor 4 --iters 10
  run_case 'hosts: the staged path runs over a shared receive queue' show_shared_queue
  run_case 'hosts: 64 connections over each of two rails' many 1 '0 1'
  run_case 'hosts: 64 connections with two queue pairs on each of two rails' many 2 '0 1'
  run_case 'hosts: IPv6 by family, two rails' use_address fd00: 6 VERBENA_ADDRESS_FAMILY=AF_INET6 '0 1'
  run_case 'hosts: IPv4 by index' use_address ::ffff:10.0.1 4 VERBENA_GID_INDEX=1 1
  run_case 'hosts: IPv6 by range' use_address fd00::[12] 6 VERBENA_ADDRESS_RANGE=fd00::/16 0
  run_case 'hosts: link-local, two rails' use_address fe80: 6 VERBENA_GID_INDEX=0 '0 1'
  run_case 'hosts: the sender has the smaller MTU' differ_in_mtu h0r0
  run_case 'hosts: the receiver has the smaller MTU' differ_in_mtu h1r0
}
