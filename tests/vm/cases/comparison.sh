# The plugin beside NCCL's own IB transport, in one run between h0 and h1. Nothing here asserts a time.

compare() { # RAILS OPTION...
  local rails=$1
  shift
  [ -r "${NCCL_LIBRARY:-}" ] || { echo "no NCCL: set NCCL_LIBRARY to a libnccl.so.2"; return 77; }
  # Names that both transports know, and the interface of NCCL's handshake.
  export NCCL_IB_TIMEOUT=17 NCCL_IB_RETRY_CNT=6 NCCL_SOCKET_IFNAME=eth0
  h0_settings+=("NCCL_IB_HCA==rxe0${rails/ /,rxe0}")
  h1_settings+=("NCCL_IB_HCA==rxe1${rails/ /,rxe1}")
  server_options=(--nccl "$NCCL_LIBRARY")
  start_pair --nccl "$NCCL_LIBRARY" --against ib --rails "$(wc -w <<<"$rails")" "$@"
  finish_pair
  # The table is what a reader wants, also of a case that succeeds.
  grep -E '^# (verbena|ib):|^#  |^ ' "$work/h0" >&3
  expect_statuses 0 0 && expect_said h0 "# ib: NCCL .*'s own IB"
}

run_comparison_cases() {
  local sizes=${VM_COMPARISON_SIZES:---sizes 8:64k --factor 64 --rounds 1 --repeats 2 --iters 10}
  exec 3>&1
  for rails in 0 '0 1'; do
    run_case "comparison with NCCL's IB transport, rails $rails: direct" compare "$rails" $sizes --unpack 0
    run_case "comparison with NCCL's IB transport, rails $rails: staged" compare "$rails" $sizes --unpack 1
  done
  exec 3>&-
}
