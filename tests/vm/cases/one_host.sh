# Both processes on one host: verbena-perf's own two workers, so that only the named devices are in play.

list_exactly() { # HOST DEVICE...
  local host=$1 found
  shift
  found=$(rdma-on "$host" ibv_devices | awk 'NR > 2 { print $1 }' | sort | xargs)
  [ "$found" = "$*" ] || complain "$host lists: $found"
}

# Demands that each of the devices, and no softverbs, carried packets.
perf_over() { # DEVICES OPTION...
  local devices=$1 device
  local -A before
  shift
  for device in ${devices//,/ }; do before[$device]=$(count_sent "$device"); done
  VERBENA_HCA="=$devices" run_limited "$perf" --timeout 60 --warmup 2 "$@" || return
  for device in ${devices//,/ }; do
    [ "$(count_sent "$device")" -gt $((before[$device] + 10)) ] || complain "$device sent next to nothing" || return
  done
}

refuse_absent_device() {
  local said
  said=$(VERBENA_HCA="=nonesuch" run_limited "$perf" --size 4k --timeout 30 2>&1) && complain "it did not fail"
  echo "$said"
  [[ $said == *"=nonesuch selects no port that is both active and usable. Ports found: rxe00"* ]]
}

run_one_host_cases() {
  local staged='--unpack 1 --threshold 1m'
  run_case 'host 0 has its two devices' list_exactly h0 rxe00 rxe01
  run_case 'host 1 has its two devices' list_exactly h1 rxe10 rxe11
  run_case 'one host: staged' perf_over rxe00 --sizes 8:1m --factor 16 --iters 10 $staged
  run_case 'one host: direct, two rails' perf_over rxe00,rxe01 --rails 2 --sizes 4k:1m --factor 16 --iters 5 --unpack 0
  run_case 'one host: misaligned' perf_over rxe10 --sizes 1:64k --factor 64 --iters 10 $staged --src-offset 1 --dst-offset 3
  run_case 'one host: the LL protocol goes direct' perf_over rxe11 --sizes 4k:64k --factor 4 --iters 10 --protocol ll
  run_case 'one host: the oldest table of NCCL' perf_over rxe00 --sizes 4k:64k --factor 4 --iters 10 --abi 7
  run_case 'a device that is not there is an error that says what is' refuse_absent_device
}
