#!/usr/bin/env python3
"""Runs suites over softverbs' profiles (docs/softverbs.md): each profile with some of the programs, which a seed chooses.

usage: profiles_test.py FOLDER

The seed is the day, so that a run takes no longer as programs are added and all meet within days; it is printed.
PROFILES_SEED=N repeats the choice of a day, PROFILES_ALL=1 runs all.
"""
import datetime
import os
import pathlib
import random
import subprocess
import sys

PROFILES = ("mlx5", "mlx5-ar", "cx8", "bnxt", "irdma", "ionic", "minimal")
# A test that needs what a profile does not have is not in the list of that profile.
WITHOUT_ATOMICS = ("bnxt", "irdma", "minimal")
CONNECTED = ("transport_order_test", "transport_transfer_test", "transport_close_test", "transport_credit_note_test")
ONE_SIDED = ("one_sided_order_test", "one_sided_operation_test")
SAMPLE = 6
LIMIT_S = 120


def list_runs():
    return [(profile, program) for profile in PROFILES for program in CONNECTED + ONE_SIDED
            if not (program in ONE_SIDED and profile in WITHOUT_ATOMICS)]


def main():
    folder = pathlib.Path(sys.argv[1])
    seed = int(os.environ.get("PROFILES_SEED", datetime.date.today().toordinal()))
    runs = list_runs()
    if os.environ.get("PROFILES_ALL") != "1":
        print(f"PROFILES_SEED={seed}: {SAMPLE} of {len(runs)} runs", flush=True)
        runs = random.Random(seed).sample(runs, SAMPLE)
    failures = 0
    for profile, program in runs:
        environment = {**os.environ, "SOFTVERBS_PROFILE": profile}
        try:
            done = subprocess.run([folder / program, "--gtest_brief=1"], env=environment, timeout=LIMIT_S, text=True,
                                  stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
            output, status = done.stdout, done.returncode
        except subprocess.TimeoutExpired as late:
            output, status = (late.stdout or b"").decode(errors="replace"), f"no end within {LIMIT_S} s"
        print(f"{profile}: {program}: {'passed' if status == 0 else status}", flush=True)
        if status != 0:
            failures += 1
            print(output[-8000:], flush=True)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
