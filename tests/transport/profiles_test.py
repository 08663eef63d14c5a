#!/usr/bin/env python3
"""Runs suites of all layers over softverbs' profiles (docs/softverbs.md): each profile with some of the programs, which a seed chooses.

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
# The self-test of a device warns of `minimal`, and these count warnings.
WITHOUT_WARNINGS = PROFILES[:-1]
# Datagrams need a shared receive queue.
WITH_SHARED_RECEIVES = ("mlx5", "mlx5-ar", "cx8", "bnxt", "mlx5 mtu=1024")
WITH_FEW_ADDRESS_HANDLES = "mlx5 max_ah=8"
# Without what a process can do once (RailSwitch), memory of GPUs, and what depends on the length of a datagram.
DATAGRAMS = ("DatagramNewestTest.*:*OneMessageArrives:"
             "-*Rail*:*AllPorts*:*Unheard*:*KernelsThat*:*PagesLent*:*TooLongIsNotCopied*:*TrafficClass*")
SUITES = (
    (PROFILES, "transport_order_test"),
    (PROFILES, "transport_transfer_test"),
    # Without a test that takes grants for sent that writes in any order hold back.
    (PROFILES, "transport_close_test", "--gtest_filter=-Close.AReceiverThatOnlyWaitsLearnsItToo"),
    (PROFILES, "transport_credit_note_test"),
    # A third of its rounds are of datagrams.
    (WITH_SHARED_RECEIVES[:-1], "verbena-chaos", "--faults", "none", "--rounds", "5", "--seed", "{seed}"),
    (WITHOUT_WARNINGS, "nccl_abi_test", "--gtest_filter=GroupedTest/v12.*:LeavingTest.*:CloseOrderTest*"),
    (PROFILES, "nccl_rma_test", "--gtest_filter=Tables/RmaOperationTest.*"),
    (PROFILES, "one_sided_order_test"),
    (PROFILES, "one_sided_operation_test"),
    (PROFILES, "symm_test"),
    (PROFILES, "symm_cpu_ranks", "4", "rdma"),
    (PROFILES, "symm_cpu_ranks", "4", "mixed"),
    (WITH_SHARED_RECEIVES, "transport_datagram_engine_test"),
    ((*WITH_SHARED_RECEIVES, WITH_FEW_ADDRESS_HANDLES), "nccl_datagram_test", f"--gtest_filter={DATAGRAMS}"),
    (WITH_SHARED_RECEIVES, "nccl_datagram_test", "--gtest_filter=Plans/*/LostAndReordered"),
)
SAMPLE = 6
LIMIT_S = 120


def list_runs():
    return [(profile, *command) for profiles, *command in SUITES for profile in profiles]


def main():
    folder = pathlib.Path(sys.argv[1])
    seed = int(os.environ.get("PROFILES_SEED", datetime.date.today().toordinal()))
    runs = list_runs()
    if os.environ.get("PROFILES_ALL") != "1":
        print(f"PROFILES_SEED={seed}: {SAMPLE} of {len(runs)} runs", flush=True)
        runs = random.Random(seed).sample(runs, SAMPLE)
    failures = 0
    for profile, program, *arguments in runs:
        arguments = [argument.format(seed=seed) for argument in arguments]
        environment = {**os.environ, "SOFTVERBS_PROFILE": profile, "GTEST_BRIEF": "1"}
        try:
            done = subprocess.run([folder / program, *arguments], env=environment, timeout=LIMIT_S, text=True,
                                  stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
            output, status = done.stdout, done.returncode
        except subprocess.TimeoutExpired as late:
            output, status = (late.stdout or b"").decode(errors="replace"), f"no end within {LIMIT_S} s"
        print(f"{profile}: {' '.join([program, *arguments[:2]])}: {'passed' if status == 0 else status}", flush=True)
        if status != 0:
            failures += 1
            print(output[-8000:], flush=True)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
