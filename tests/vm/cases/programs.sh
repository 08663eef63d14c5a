# The project's own test programs over the system's libibverbs: both ends on this host, or in processes that they fork.

run_over() { # DEVICES PROGRAM [FILTER]
  [ -x "$build/bin/$2" ] || { echo "$2 was not built"; return 77; }
  VERBENA_IBVERBS_LIB=libibverbs.so.1 VERBENA_HCA="=$1" VERBENA_PEER_GRACE_MS=2000 \
    run_limited "$build/bin/$2" --gtest_filter="${3:-*}"
}

# And the first device must have carried it.
transfer_over() { # DEVICES PROGRAM [FILTER]
  local devices=$1 before
  before=$(count_sent "${devices%%,*}")
  run_over "$@" || return
  [ "$(count_sent "${devices%%,*}")" -gt $((before + 50)) ] || complain "${devices%%,*} sent next to nothing"
}

# NCCL's device API, driven as its proxy does it by processes of this host; every signal is counted, every payload checked.
gin_over() { # DEVICES RAILS OPTION...
  local devices=$1 rails=$2 before
  shift 2
  [ -x "$build/bin/gin-host" ] || { echo "gin-host was not built"; return 77; }
  before=$(count_sent "${devices%%,*}")
  VERBENA_IBVERBS_LIB=libibverbs.so.1 VERBENA_HCA="=$devices" VERBENA_MERGE_NICS=1 VERBENA_PEER_GRACE_MS=2000 \
    run_limited "$build/bin/gin-host" --rails "$rails" --seconds "$((limit_s - 5))" "$@" || return
  [ "$(count_sent "${devices%%,*}")" -gt $((before + 50)) ] || complain "${devices%%,*} sent next to nothing"
}

run_program_cases() {
  local four=rxe00,rxe01,rxe10,rxe11
  run_case 'program: the verbs layer, in a process and between two' transfer_over rxe00,rxe10 verbs_transfer_test
  run_case 'program: a pulled cable, a silent address' run_over rxe00,rxe10 verbs_cable_test
  export VERBENA_ACK_TIMEOUT=16 VERBENA_RETRY_COUNT=3
  run_case 'program: the transport, requests in any order' transfer_over $four transport_order_test '-*AnyMixture*'
  run_case 'program: the transport, closing in any order' transfer_over $four transport_close_test '-*TwoHundred*:*ManyConnections*:*AbortLosesNoPage*'
  run_case 'program: the transport, processes that die' transfer_over $four transport_failure_test '-*BeforeTheFirst*:*BetweenStaged*'
  run_case 'program: the transport, threads' transfer_over $four transport_threads_test
  run_case 'program: one-sided operations' transfer_over rxe00 one_sided_operation_test '*TwoRanks:*PushedGets'
  VERBENA_FAILOVER=1 VERBENA_MIN_STRIPE_BYTES=4096 VERBENA_RAIL_RETRY_MS=200 VERBENA_FAILOVER_TIMEOUT_MS=300000 \
    run_case 'program: one-sided operations, each of three cables out and in again' run_over $four one_sided_cable_test
  run_case "program: NCCL's device API, a rail" gin_over rxe00 1 --ranks 2 --messages 2000
  run_case "program: NCCL's device API, two rails, gets and puts of GIN v13" gin_over rxe00,rxe01 2 --ranks 2 --messages 1000 --table ncclGinPlugin_v13
  run_case 'program: the plugin, closing in any order' transfer_over rxe00,rxe01 nccl_abi_test '*CloseOrder*RecvSendListen:-*ManyConnections*'
}
