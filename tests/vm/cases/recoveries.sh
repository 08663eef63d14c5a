# What a transfer must survive: every byte is verified on both sides.

# FAULT is a command that undoes itself, or is undone by heal.
survive() { # RAILS FAULT OPTION...
  local rails=$1 fault=$2 count missed=0
  shift 2
  h0_settings+=("VERBENA_HCA==rxe0${rails/ /,rxe0}")
  h1_settings+=("VERBENA_HCA==rxe1${rails/ /,rxe1}")
  count=$(wc -w <<<"$rails")
  # It goes on until the fault is over, and beyond.
  start_pair --rails "$count" --until "$work/enough" "$@"
  wait_for_traffic rxe00 200 && eval "$fault" && wait_for_traffic rxe00 200 || missed=1
  touch "$work/enough"
  finish_pair
  rm "$work/enough"
  heal
  [ $missed = 0 ] && expect_statuses 0 0
}

pull_shortly() { ip -n sw link set "$1" down; sleep 0.2; ip -n sw link set "$1" up; } # CABLE
stop_shortly() { kill -STOP -- "-$1"; sleep 2; kill -CONT -- "-$1"; } # PROCESS_GROUP

lose_some() { # RAILS OPTION...
  tc qdisc add dev h0r0 root netem loss 1%
  tc qdisc add dev h1r0 root netem loss 1%
  survive "$@"
}

run_recovery_cases() {
  local bulk='--size 256k --iters 40 --mode bandwidth --unpack 0' pages='--size 64k --iters 150 --mode bandwidth --unpack 1 --threshold 1m'
  export VERBENA_ACK_TIMEOUT=19 # the first retry after 2 s: a pull may last that long on a busy machine
  run_case "recovery: the sender's cable is out for 0.2 s" survive 0 'pull_shortly h0r0' $bulk
  run_case "recovery: the receiver's cable is out for 0.2 s" survive 0 'pull_shortly h1r0' $pages
  run_case 'recovery: the receiver stops for 2 s' survive 0 'stop_shortly "$h1_pid"' $pages
  run_case 'recovery: the sender stops for 2 s, direct' survive 0 'stop_shortly "$h0_pid"' $bulk
  export VERBENA_ACK_TIMEOUT=17
  run_case 'recovery: one of two rails loses 1 % each way, staged' lose_some '0 1' : --size 64k --iters 150 --mode bandwidth --threshold 1m
  run_case 'recovery: one of two rails loses 1 % each way, direct' lose_some '0 1' : --size 256k --iters 40 --mode bandwidth --unpack 0
}
