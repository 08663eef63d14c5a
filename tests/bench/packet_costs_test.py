#!/usr/bin/env python3
"""That deciding about a packet of datagrams costs no more instructions than its bounds, at its sender and at its receiver.

usage: packet_costs_test.py PACKET_LOOP SENDER RECEIVER     the program; most instructions a packet at each end
"""
import re
import shutil
import subprocess
import sys
import tempfile

MESSAGES, BYTES = 1000, 65536  # 17 packets each
ENDS = {"sender": ("bench_packets_leave", "bench_answers_arrive"), "receiver": ("bench_packets_arrive", "bench_answers_leave")}


def count(program, function):
    """Instructions of the function and what it calls, and how many packets there were."""
    with tempfile.NamedTemporaryFile() as out:
        run = subprocess.run(["valgrind", "--tool=callgrind", f"--callgrind-out-file={out.name}", f"--toggle-collect={function}",
                              program, str(MESSAGES), str(BYTES)], capture_output=True, text=True, timeout=120, check=True)
    return int(re.search(r"Collected : (\d+)", run.stderr)[1]), int(re.search(r"packets (\d+), again 0,", run.stdout)[1])


def main():
    program, bounds = sys.argv[1], dict(zip(ENDS, map(int, sys.argv[2:4])))
    if shutil.which("valgrind") is None:
        print("packet_costs_test: valgrind is not installed (tools/setup test installs it)")
        return 77
    is_past = False
    for end, functions in ENDS.items():
        total = 0.0
        for function in functions:
            instructions, packets = count(program, function)
            if instructions == 0:
                sys.exit(f"packet_costs_test: nothing was counted in {function}")
            total += instructions / packets
            print(f"{function:24}{instructions / packets:8.1f}")
        is_past = is_past or total > bounds[end]
        print(f"{end:24}{total:8.1f} instructions a packet{f', past {bounds[end]}' if total > bounds[end] else ''}")
    return 1 if is_past else 0


if __name__ == "__main__":
    sys.exit(main())
