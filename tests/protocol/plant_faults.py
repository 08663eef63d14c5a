#!/usr/bin/env python3
"""Plants a fault in a copy of the protocol's cores, one at a time, and demands that the simulation goes red.

usage: plant_faults.py --root DIR --compiler CXX --work DIR [--seeds N] [--jobs N] [--only NAME]

Prints for each fault the first seed that shows it. Exit status: 0; 1 if one survives or the cores without a fault fail.
"""
import argparse
import concurrent.futures
import os
import pathlib
import re
import shutil
import subprocess
import sys

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
}
SIMULATION = ["fault.cc", "injector.cc", "network.cc", "shape.cc", "sim_port.cc", "simulation.cc"]
SOURCES = [f"tests/protocol/simulation/{name}" for name in SIMULATION] + [
    "tests/protocol/failover_test.cc", "tools/common/cpu_unpack.cc", "tools/common/pattern.cc"]
RUN_LIMIT_S = 900


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=pathlib.Path, required=True)
    parser.add_argument("--compiler", required=True)
    parser.add_argument("--work", type=pathlib.Path, required=True)
    parser.add_argument("--seeds", type=int, default=3000)
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--only")
    return parser.parse_args()


def run(options, name, fault):
    """The first seed that fails; None if none of them does. Raises what is no verdict."""
    folder = options.work / re.sub(r"\W+", "_", name)
    shutil.rmtree(folder, ignore_errors=True)
    copy = folder / "protocol"
    shutil.copytree(options.root / "plugin/protocol", copy)
    if fault is not None:
        header, old, new = fault
        text = (copy / header).read_text(encoding="utf-8")
        if text.count(old) != 1:
            raise RuntimeError(f"{header} has {text.count(old)} times what is to be changed: {old}")
        (copy / header).write_text(text.replace(old, new), encoding="utf-8")
    unit = folder / "unit.cc"
    unit.write_text("".join(f'#include "{options.root / source}"\n' for source in SOURCES), encoding="utf-8")
    program = folder / "failover"
    includes = [folder, options.root / "plugin", options.root / "include", options.root / "tests", options.root / "tools"]
    command = [options.compiler, "-std=c++20", "-O1", "-w", "-DVERBENA_IS_SANITIZED=0", *(f"-I{path}" for path in includes),
               str(unit), "-o", str(program), "-lgtest", "-lgtest_main", "-lpthread"]
    built = subprocess.run(command, capture_output=True, text=True, timeout=RUN_LIMIT_S)
    if built.returncode != 0:
        raise RuntimeError(f"it does not compile:\n{built.stderr[-3000:]}")
    environment = dict(os.environ, FAILOVER_SEEDS=str(options.seeds))
    ran = subprocess.run([program, "--gtest_filter=Seeds/Failover.*/0"], env=environment, capture_output=True, text=True,
                         timeout=RUN_LIMIT_S)
    shutil.rmtree(folder)
    if ran.returncode == 0:
        return None
    seed = re.search(r"^seed (\d+): (.*)", ran.stdout, re.M)
    if seed is None:  # the process died, or the totals are not what they have to be
        return f"ended with {ran.returncode}"
    return f"seed {seed[1]}: {seed[2][:90]}"


def main():
    options = parse_arguments()
    options.work.mkdir(parents=True, exist_ok=True)
    faults = {name: fault for name, fault in FAULTS.items() if options.only in (None, name)}
    failed = False
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        sound = pool.submit(run, options, "no fault", None)
        results = {name: pool.submit(run, options, name, fault) for name, fault in faults.items()}
        if sound.result() is not None:
            print(f"FAILED: without a fault: {sound.result()}")
            failed = True
        for name, result in results.items():
            shown = result.result()
            failed |= shown is None
            print(f"{'SURVIVED' if shown is None else 'red':9} {name}: {shown or f'{options.seeds} seeds show nothing'}", flush=True)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
