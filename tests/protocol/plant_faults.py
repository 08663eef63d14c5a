#!/usr/bin/env python3
"""Plants a fault in a copy of the protocol's cores, one at a time, and demands that the simulation goes red.

usage: plant_faults.py --root DIR --compiler CXX --work DIR [--suite NAME] [--seeds N] [--jobs N] [--only NAME]

A suite is `connection` or `lanes`, the lists below, or `datagram`, datagram/planted_faults.py.

Prints for each fault the first seed that shows it. Exit status: 0; 1 if one survives or the cores without a fault fail.
"""
import argparse
import concurrent.futures
import os
import pathlib
import re
import resource
import shutil
import subprocess
import sys
import types

from datagram import planted_faults as datagram

# name: (header of plugin/protocol, what stands there, what is planted instead)
FAULTS = {
    "a credit is not returned": (
        "receive_core.h", "credits_.give_back(queue_pair, static_cast<uint32_t>(pages.size()));",
        "credits_.give_back(queue_pair, static_cast<uint32_t>(pages.size() - (is_recovering_ ? 1 : 0)));"),
    "what has arrived is sent again": (
        "send_core.h", "queue_pair) || arrived.has(ahead, index)) continue;", "queue_pair)) continue;"),
    "an arrival is counted twice": ("arrivals.h", "bytes_ += length_bytes;", "bytes_ += length_bytes, seen_ += tag.index == 1;"),
    "a replay does not wait until the peer has stopped": (
        "recovery.h", "phase(q) != Phase::kStopping || !lives_[q].is_peer_stopped || !host.is_drained(q)",
        "phase(q) != Phase::kStopping || !host.is_drained(q)"),
    "what a stopped queue pair still brings is not waited for": (
        "receive_core.h", "return port.is_drained(q) && port.poll_completions();", "return port.poll_completions();"),
    "a slot is cleared when its message is reported": (
        "receive_core.h", "message.phase = Phase::kReported;",
        "message.phase = Phase::kReported; if (message.slot_taken) queue_->clear(message.slot);"),
    "pages are free before the kernel has read them": (
        "receive_core.h", "queue_->publish(message.slot);\n      return;", "queue_->publish(message.slot);"),
    "grants are not written again": (
        "receive_core.h", "core().next_grant_ = core().consumed_;", "core().next_grant_ = core().next_;"),
    "no entry is kept for what is sent again": ("send_core.h", "kept_entries_(has_choice_ ? 1 : 0)", "kept_entries_(0)"),
    "a message is told as consumed while an older one is open": (
        "receive_core.h", "if (oldest.is_posted && oldest.sequence == consumed_) break;",
        "if (oldest.is_posted && oldest.sequence == consumed_ && &oldest != &ring_[(next_ - 1) % kMessageRing]) break;"),
    "pages are not pushed": ("receive_core.h", "message.rails_to_flush |= rail_bit(info.queue_pair);", "message.rails_to_flush |= 0;"),
    "a rail that wrote is not flushed": (
        "receive_core.h", "written_rails_ |= rail_bit(queue_pair);", "written_rails_ |= 1U << options_.rail_of[primary_];"),
    "a copy is not flushed": ("receive_core.h", "written_rails_ |= 1U << kCopyRail;", ""),
    "a flush does not wait for an earlier one": (
        "receive_core.h", "if (open_flushes_ == 0) return rails;", "return rails;"),
    "a copy is not waited for": (
        "receive_core.h", "message.rails_to_flush == 0 && message.outstanding == 0", "message.rails_to_flush == 0"),
    "a full send queue is not looked at": (
        "send_core.h", "return std::min(credits_.available(queue_pair), port().free_slots(queue_pair) >> slots_shift_);",
        "return credits_.available(queue_pair);"),
    "what the receiver holds is not counted at a revival": (
        "credits.h", "taken_[queue_pair] = returned + held;", "taken_[queue_pair] = returned;"),
    "a send takes the newest receive of its tag": (
        "send_core.h", "std::countr_zero(sorted));", "31 - std::countl_zero(sorted));"),
    "a send takes a receive of another tag": (
        "send_core.h", "message.grant.tag() != tag) [[unlikely]]", "message.grant.tag() < 0) [[unlikely]]"),
    "a receive is taken twice": ("send_core.h", "unclaimed_ &= ~bit_of(sequence);", ""),
    "a group is done when its first buffer is": (
        "receive_core.h", "if (waiting == nullptr && part.phase != Phase::kReady) waiting = &part;",
        "if (&part == &first && part.phase != Phase::kReady) waiting = &part;"),
    "an immediate goes before its bytes": (
        "send_core.h", "{port().make_work(queue_pair, message.memory, bytes),\n                                                   port().make_work(queue_pair, message.memory, rest)};",
        "{port().make_work(queue_pair, message.memory, rest),\n                                                   port().make_work(queue_pair, message.memory, bytes)};"),
    "a credit line overtakes the one before it": (
        "receive_core.h", "if (!may_write_control_ || is_line_under_way_ || ", "if (!may_write_control_ || "),
    "what was written before the immediate is not counted": (
        "receive_core.h", "message.arrivals.record(*tag, tag->written_bytes + chunk.length_bytes)",
        "message.arrivals.record(*tag, chunk.length_bytes)"),
    "a short message does not wait for credits": (
        "send_core.h", "if (credits_.available(primary_) < few_credits_ || has_any_replays()", "if (has_any_replays()"),
}
#The same of the lanes of one - sided endpoints.
LANE_FAULTS = {
    "what was carried out is issued again": (
        "lane_core.h", "if (was_carried_out && finish_unanswered(request)) continue;", ""),
    "one request more counts as carried out": (
        "lane_core.h", "count_packets(pair.retired_packets, request.packets) <= carried_out;",
        "count_packets(pair.retired_packets, request.packets) <= carried_out + 1;"),
    "a get whose answer was lost counts as done": (
        "lane_core.h", "if (operation.kind == LaneOperationKind::kGet || operation.kind == LaneOperationKind::kReadWord)\n      return false;",
        "if (operation.kind == LaneOperationKind::kReadWord)\n      return false;"),
    "a word does not wait for other rails": ("lane_core.h", "if (is_ordered && !is_alone(q)) return false;", ""),
    "a word takes any rail that lives": (
        "lane_core.h", "} else if (!changes_word(operation.kind) && !recovery_.is_live(q)) {", "} else if (!recovery_.is_live(q)) {"),
    "a rail that is not settled counts as empty": (
        "lane_core.h", "if (other != q && pairs_[other].head != pairs_[other].tail) return false;",
        "if (other != q && recovery_.is_live(other) && pairs_[other].head != pairs_[other].tail) return false;"),
    "a part that is not begun stays on its rail": (
        "lane_core.h", "if (part.issued != part.done) return recovery_.is_live(part.queue_pair);",
        "if (part.issued != part.done || (part.queue_pair != kNobody && recovery_.is_live(part.queue_pair))) return recovery_.is_live(part.queue_pair);"),
    "words are repeated where the device does not count": (
        "lane_core.h", "if (record.has_count == 0 && has_words(pair)) return fail(LaneFailure::kUncertain, q), true;", ""),
    "what a failure takes back is not issued again": (
        "lane_core.h", "if (count_between_turns(first, issued_) > 0) issued_ = first;", ""),
    "a fence does not hold": ("lane_core.h", "operation.is_fenced && part.issued == 0;", "false;"),
    "an operation is told of before its last share is here": (
        "lane_core.h", "return shares != 0 && open_shares == 0;", "return shares != 0 && open_shares <= (shares > 1 ? 1 : 0);"),
    "the trial is not counted": (
        "lane_core.h", "pair.packets = add_packets(pair.packets, port().packets_of(q, request.length_bytes));",
        "if (request.operation != nullptr) pair.packets = add_packets(pair.packets, port().packets_of(q, request.length_bytes));"),
    "the old rail of words is not stopped": ("word_rail.h", "      host.stop_rail(rail_);\n", ""),
    "an answer is given without a queue pair": (
        "lane_recovery.h", "if (host.is_usable(q) && host.answer(q, offer, record)) {", "if (record.generation % 2 == 0) {"),
}
SIMULATION = ["fault.cc", "injector.cc", "network.cc", "shape.cc", "sim_port.cc", "simulation.cc"]
SOURCES = [f"tests/protocol/simulation/{name}" for name in SIMULATION] + [
    "tests/protocol/failover_test.cc", "tools/common/cpu_unpack.cc", "tools/common/pattern.cc"]
CONNECTION = types.SimpleNamespace(HEADERS="", SOURCES=SOURCES, FILTER="Seeds/Failover.*/0", SEEDS_VARIABLE="FAILOVER_SEEDS", SEEDS=3000,
                                   FAULTS=FAULTS)
LANE_SIMULATION = ["rank.cc", "run.cc", "world.cc"]
LANES = types.SimpleNamespace(
    HEADERS="", SOURCES=[f"tests/protocol/lane_simulation/{name}" for name in LANE_SIMULATION] + ["tests/protocol/lane_test.cc"],
    FILTER="Seeds/LaneFailover.*/0", SEEDS_VARIABLE="LANE_SEEDS", SEEDS=3000, FAULTS=LANE_FAULTS)
SUITES = {"connection": CONNECTION, "lanes": LANES, "datagram": datagram}
RUN_LIMIT_S = 900
MEMORY_LIMIT_BYTES = 3 << 30  # a fault may make the simulation go on for ever


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=pathlib.Path, required=True)
    parser.add_argument("--compiler", required=True)
    parser.add_argument("--work", type=pathlib.Path, required=True)
    parser.add_argument("--suite", choices=SUITES, default="connection")
    parser.add_argument("--seeds", type=int)
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--only")
    return parser.parse_args()


def limit_memory():
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_LIMIT_BYTES, MEMORY_LIMIT_BYTES))


def run(options, suite, name, fault):
    """The first seed that fails; None if none of them does. Raises what is no verdict."""
    folder = options.work / re.sub(r"\W+", "_", name)
    shutil.rmtree(folder, ignore_errors=True)
    copy = folder / "protocol"
    shutil.copytree(options.root / "plugin/protocol", copy)
    if fault is not None:
        header, old, new = fault
        header = pathlib.Path(suite.HEADERS) / header
        text = (copy / header).read_text(encoding="utf-8")
        if text.count(old) != 1:
            raise RuntimeError(f"{header} has {text.count(old)} times what is to be changed: {old}")
        (copy / header).write_text(text.replace(old, new), encoding="utf-8")
    unit = folder / "unit.cc"
    unit.write_text("".join(f'#include "{options.root / source}"\n' for source in suite.SOURCES), encoding="utf-8")
    program = folder / "failover"
    includes = [folder, options.root / "plugin", options.root / "include", options.root / "tests", options.root / "tools"]
    command = [options.compiler, "-std=c++20", "-O1", "-w", "-DVERBENA_IS_SANITIZED=0", *(f"-I{path}" for path in includes),
               str(unit), "-o", str(program), "-lgtest", "-lgtest_main", "-lpthread"]
    built = subprocess.run(command, capture_output=True, text=True, timeout=RUN_LIMIT_S)
    if built.returncode != 0:
        raise RuntimeError(f"it does not compile:\n{built.stderr[-3000:]}")
    environment = dict(os.environ, **{suite.SEEDS_VARIABLE: str(options.seeds or suite.SEEDS)})
    try:
        ran = subprocess.run([program, f"--gtest_filter={suite.FILTER}", "--gtest_fail_fast"], env=environment, capture_output=True,
                             text=True, timeout=RUN_LIMIT_S, preexec_fn=limit_memory)
    except subprocess.TimeoutExpired:
        return f"not done after {RUN_LIMIT_S} s"
    finally:
        shutil.rmtree(folder)
    if ran.returncode == 0:
        return None
    seed = re.search(r"\bseed (\d+): (.*)", ran.stdout)
    test = re.search(r"^\[  FAILED  \] (\S+)", ran.stdout, re.M)
    if seed is None and test is not None:
        return test[1]
    if seed is None:  # the process died, or the totals are not what they have to be
        return f"ended with {ran.returncode}"
    return f"seed {seed[1]}: {seed[2][:90]}"


def main():
    options = parse_arguments()
    options.work.mkdir(parents=True, exist_ok=True)
    suite = SUITES[options.suite]
    faults = {name: fault for name, fault in suite.FAULTS.items() if options.only in (None, name)}
    failed = False
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        sound = pool.submit(run, options, suite, "no fault", None)
        results = {name: pool.submit(run, options, suite, name, fault) for name, fault in faults.items()}
        if sound.result() is not None:
            print(f"FAILED: without a fault: {sound.result()}")
            failed = True
        for name, result in results.items():
            shown = result.result()
            failed |= shown is None
            print(f"{'SURVIVED' if shown is None else 'red':9} {name}: {shown or 'nothing shows it'}", flush=True)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
