"""Ten runs of queue_figures' rows in turn: the median of their figures, and the spread. No test: for docs/measurements.

usage: queue_spread.py BUILD_FOLDER [--runs N] [--exact MESSAGES]
"""
import argparse
import os
import pathlib
import re
import statistics
import subprocess

LIMIT_S = 600
# What, the arguments of queue_figures (mode, readers, bytes, spin_us, messages, gap_us), and the figures that its output has.
LATENCY = {"median us": r"median ([\d.]+)", "p99 us": r"p99 ([\d.]+)"}
IDLE = {"processor ms of the worst reader": r"reader \d+: ([\d.]+) ms", "of the writer": r"writer: ([\d.]+) ms"}
ROWS = [
    ("64 B to 1 spinning reader", "latency 1 64 -1 1000 20", LATENCY),
    ("64 B to 1 sleeping reader", "latency 1 64 0 500 1000", LATENCY),
    ("64 B to 7 spinning readers", "latency 7 64 -1 50 20", LATENCY),
    ("64 B to 7 sleeping readers", "latency 7 64 0 300 1000", LATENCY),
    ("64 B to 7 adaptive readers", "latency 7 64 -2 300 1000", LATENCY),
    ("64 B to 7 adaptive readers, a message every 10 ms", "latency 7 64 -2 100 10000", LATENCY),
    ("the kernel's own wake-up of 1 process", "wake 1 0 0 500 1000", LATENCY),
    ("the kernel's own wake-up of 7 processes", "wake 7 0 0 300 1000", LATENCY),
    ("1 MiB to 1 reader, which copies it", "bandwidth 1 1048576 20 3000 0", {"GB/s": r"([\d.]+) GB/s"}),
    ("1 MiB to 7 readers, which copy it", "bandwidth 7 1048576 20 1000 0", {"GB/s a reader": r"([\d.]+) GB/s"}),
    ("idle for 5 s, 7 sleeping readers", "idle 7 64 20 2 2500000", IDLE),
    ("5 s, 7 adaptive readers, a message every 10 ms", "idle 7 64 -2 500 10000", IDLE),
    ("death of 1 of 7 readers until it is named", "death 7 64 20 100000 0", {"ms": r"named after ([\d.]+) ms", "ms until it had ended": r"had ended after ([\d.]+) ms"}),
]


def run(program, arguments):
    ended = subprocess.run([program, *arguments.split()], capture_output=True, text=True, timeout=LIMIT_S, check=True)
    return ended.stdout


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--exact", type=int, default=0, help="messages of 1 byte to 20 MiB, to 7 readers, every byte compared")
    options = parser.parse_args()
    program = options.build / "bin" / "queue_figures"
    if not program.exists():
        program = options.build / "tests" / "bench" / "queue_figures"
    found = {what: {name: [] for name in figures} for what, _, figures in ROWS}
    print(f"{len(os.sched_getaffinity(0))} cores, load average {os.getloadavg()[0]:.2f} at the start", flush=True)
    for _ in range(options.runs):
        for what, arguments, figures in ROWS:
            said = run(program, arguments)
            for name, pattern in figures.items():
                found[what][name].append(max(float(figure) for figure in re.findall(pattern, said)))
    for what, figures in found.items():
        for name, values in figures.items():
            print(f"{what}: {name}: {statistics.median(values):.2f} ({min(values):.2f} to {max(values):.2f}, {len(values)} runs)")
    print(f"load average {os.getloadavg()[0]:.2f} at the end", flush=True)
    if options.exact:
        print(run(program, f"exact 7 0 20 {options.exact} 0").strip())


if __name__ == "__main__":
    main()
