#!/usr/bin/env python3
"""That ten times as many measurements make verbena_ops_choose() cost a quarter more instructions at most.

usage: choose_cost_test.py CHOOSE_LOOP     the program
"""
import re
import shutil
import subprocess
import sys

CALLS = 1000
FEW, MANY = 9, 96


def count(program, measurements):
    """Instructions of a call. Ranks are processes that the program forks; one of them calls."""
    run = subprocess.run(["valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null", "--toggle-collect=bench_choose", program,
                          str(measurements), str(CALLS)], capture_output=True, text=True, timeout=120, check=True)
    return max(map(int, re.findall(r"Collected : (\d+)", run.stderr))) / CALLS


def main():
    if shutil.which("valgrind") is None:
        print("choose_cost_test: valgrind is not installed (tools/setup test installs it)")
        return 77
    few, many = (count(sys.argv[1], measurements) for measurements in (FEW, MANY))
    print(f"{FEW} measurements: {few:.0f} instructions per call; {MANY}: {many:.0f}")
    return 0 if 0 < many <= 1.25 * few else 1


if __name__ == "__main__":
    sys.exit(main())
