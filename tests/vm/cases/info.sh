# verbena-info on the kernel's devices: what it says is held against sysfs, which is another way to the same ports.

info=$build/bin/verbena-info

run_info() { # OPTION...: on h0, nothing but its devices in play
  rdma-on h0 env VERBENA_IBVERBS_LIB=libibverbs.so.1 timeout -k 2 "$limit_s" "$info" --nccl /nonexistent "$@"
}

# expect_info STATUS [OPTION...]: output to $work/info, and to the case's.
expect_info() {
  local expected=$1 status=0
  shift
  run_info "$@" >"$work/info" 2>&1 || status=$?
  cat "$work/info"
  [ "$status" = "$expected" ] || complain "verbena-info $* left with $status instead of $expected"
}

expect_shown() { # FIXED_STRING...
  local words
  for words; do
    # Lines are broken between words.
    tr -s ' \n' ' ' <"$work/info" | grep -qF -- "$words" || complain "not shown: $words" || return
  done
}

show_devices() {
  expect_info 0 &&
    expect_shown '[0] verbena_rxe00 rxe00 port 1 link active, Ethernet' '[1] verbena_rxe01 rxe01 port 1 link active' \
      '[1] ::ffff:10.0.0.1, RoCE v2 (chosen: RoCE v2 and IPv4: the best of 3 entries)' '[1] ::ffff:10.0.1.1, RoCE v2 (chosen' \
      'GPU memory none (a software device of the kernel can access host memory only)' \
      "Only software devices of the kernel were found. They are good for trying and testing, but slow"
}

match_sysfs() {
  run_info --json >"$work/info.json" || complain "--json left with $?" || return
  rdma-on h0 python3 tests/vm/info_against_sysfs.py "$work/info.json" rxe00 rxe01
}

test_rails() {
  local before
  before=$(count_sent rxe01)
  VERBENA_MERGE_NICS=1 expect_info 0 --check &&
    expect_shown '# 6 ok, 0 failed, 1 skipped' 'ok verbena_rxe00 host memory connect, data' \
      'ok verbena_rxe01 host memory connect, data' 'ok verbena_rxe01 staged connect, data (7 sizes to 4M, ' \
      'ok rails 0+1 joined connect (verbena_rxe00+verbena_rxe01), data' || return
  [ "$(count_sent rxe01)" -gt $((before + 100)) ] || complain 'rxe01 sent next to nothing'
}

# Soft-RoCE does everything, on both rails, but has no dma-buf.
test_devices() {
  expect_info 0 --self-test || return
  python3 - "$work/info" <<'PYTHON' || complain 'a form does not work, see above'
import json
import sys

devices = json.loads(open(sys.argv[1], encoding="utf-8").read().splitlines()[-1])["devices"]
wrong = [f"{one['device']}: {form} {outcome}" for one in devices for form, outcome in one["forms"].items() if outcome != "ok"]
print("\n".join(wrong))
sys.exit(wrong != [] or [one["device"] for one in devices] != ["rxe00", "rxe01"] or not all(one["usable"] for one in devices))
PYTHON
}

draw_pictures() {
  local words
  expect_info 0 --topology "$work/info.dot" --topology-xml "$work/info.xml" || return
  python3 -c 'import sys, xml.dom.minidom as d; d.parse(sys.argv[1])' "$work/info.xml" ||
    complain 'is no XML' || return
  for words in 'rxe00 port 1' 'rxe01 port 1' 'network 10.0.0.0/24: 1 rail' 'GPU memory: none' '::ffff:10.0.1.1'; do
    grep -qF "$words" "$work/info.dot" || complain "not in the picture: $words" || return
  done
  [ "$(grep -c '<net name="verbena_rxe0[01]"' "$work/info.xml")" = 2 ] || complain 'the topology file lacks a device'
}

# One pulled cable is an answer with a remedy, and no failure while the other rail works.
show_pulled_cable() {
  ip -n sw link set h0r1 down
  expect_info 0 && expect_shown '- rxe01 port 1 NOT USED: the port is down' 'link down, Ethernet' \
    "* rxe01 port 1 is down. -> check cable and switch, and set the port's interface up: ip link set h0r1 up" || return
  expect_info 0 --check && expect_shown '# 3 ok, 0 failed, 2 skipped' 'skipped rxe01 port 1 not used: the port is down' \
    '-> check cable and switch' || return
  ip link set h0r0 down # the NIC, not the cable
  expect_info 4 && expect_shown 'There is no RDMA device that the plugin can use' \
    "* rxe00 port 1 is down. -> check cable and switch, and set the port's interface up: ip link set h0r0 up" || return
  heal
  expect_info 0 && expect_shown '[0] verbena_rxe00' '[1] verbena_rxe01'
}

show_missing_address() {
  ip addr flush dev h0r0
  expect_info 0 && expect_shown 'link-local' '* rxe00 port 1 has a link-local address only, which other hosts may not reach.' \
    'ip address add ADDRESS/LENGTH dev h0r0'
}

restore_addresses() {
  local address status=0
  "$@" || status=$?
  ip addr replace 10.0.0.1/24 dev h0r0
  for address in fd00:0::1 fe80::ff:fe00:0; do ip -6 addr replace $address/64 dev h0r0 nodad; done
  heal
  return $status
}

run_info_cases() {
  run_case 'info: devices, GIDs, GPU memory and why' show_devices
  run_case 'info: the document against sysfs' match_sysfs
  run_case 'info: self-tests of both rails, staged and joined' test_rails
  run_case 'info: what the devices do, form by form' test_devices
  run_case 'info: picture and topology file' draw_pictures
  run_case 'info: a pulled cable and a NIC that is down' show_pulled_cable
  run_case 'info: a NIC without an address' restore_addresses show_missing_address
}
