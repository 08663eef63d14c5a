#!/usr/bin/env python3
"""Plants a fault in a copy of the protocol's cores, one at a time, and demands that the simulation goes red.

usage: plant_faults.py --root DIR --compiler CXX --work DIR [--suite NAME] [--seeds N] [--jobs N] [--only NAME]

The faults are in datagram/planted_faults.py; those of the other cores are planted by tests/mutation.

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

from datagram import planted_faults as datagram

SUITES = {"datagram": datagram}
RUN_LIMIT_S = 900
MEMORY_LIMIT_BYTES = 3 << 30  # a fault may make the simulation go on for ever


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=pathlib.Path, required=True)
    parser.add_argument("--compiler", required=True)
    parser.add_argument("--work", type=pathlib.Path, required=True)
    parser.add_argument("--suite", choices=SUITES, default="datagram")
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
