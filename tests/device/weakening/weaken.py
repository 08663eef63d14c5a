#!/usr/bin/env python3
"""Weakens each memory order, scope and barrier of the device library in turn, in a copy, and demands that a test goes red.

usage: weaken.py --root DIR --compiler CXX --emulator LIBRARY --work DIR [--jobs N] [--only HEADER] [--list]

Needs ThreadSanitizer's build of the emulator. What may survive stands in survivors.txt with its reason; a survivor that
does not stand there, and a line there that no longer survives, are failures.
"""
import argparse
import concurrent.futures
import os
import pathlib
import re
import shutil
import subprocess
import sys

HEADERS = pathlib.PurePosixPath("include/verbena/device")
# Which programs shall see a weakened header. One source each; the first red one is enough.
PROGRAMS = {
    "memory_order.cuh": ["order/wait_test.cc", "order/barrier_test.cc"],
    "wait.cuh": ["order/wait_test.cc", "receive_test.cc", "symm/failure_test.cc"],
    "group.cuh": ["order/group_test.cc", "receive_test.cc"],
    "barrier.cuh": ["order/barrier_test.cc"],
    "piece_walk.cuh": ["receive_test.cc"],
    "unpack.cuh": ["visibility_test.cc", "receive_test.cc"],
    "bulk_unpack.cuh": ["receive_test.cc"],
    "kernel_state.cuh": ["visibility_test.cc", "receive_test.cc", "nccl_unpack_test.cc"],
    "nccl_unpack.cuh": ["receive_test.cc", "nccl_unpack_test.cc"],
    "trace.cuh": ["nccl_unpack_test.cc"],
    "rms_norm.cuh": ["rms_norm_test.cc", "collectives/all_reduce_norm_test.cc"],
    "symm_queue.cuh": ["symm/queue_test.cc"],
    "symm_team.cuh": ["symm/queue_test.cc"],
    "symm_failure.cuh": ["symm/failure_test.cc"],
    "symm_network.cuh": ["symm/backend_test.cc"],
    "symm_verbena.cuh": ["symm/order_test.cc", "symm/queue_test.cc"],
    "symm_backends.cuh": ["symm/backend_test.cc"],
    "symm_signal.cuh": ["symm/order_test.cc", "symm/signal_test.cc", "symm/queue_test.cc"],
    "symm_barrier.cuh": ["symm/barrier_test.cc", "symm/backend_test.cc"],
    "symm_put.cuh": ["symm/order_test.cc", "symm/put_test.cc", "symm/queue_test.cc"],
    "symm_word.cuh": ["symm/word_test.cc"],
    "symm_reduce.cuh": ["symm/reduce_test.cc"],
    "symm_c.cuh": ["symm/order_test.cc"],
    "packet.cuh": ["symm/low_latency_test.cc"],
    "low_latency.cuh": ["symm/low_latency_test.cc"],
    "collectives/bulk.cuh": ["collectives/bulk_test.cc", "collectives/across_hosts_test.cc"],
    "collectives/across_hosts.cuh": ["collectives/across_hosts_test.cc"],
    "collectives/coded_packets.cuh": ["collectives/coded_reduce_test.cc"],
    "collectives/all_reduce_norm.cuh": ["collectives/all_reduce_norm_test.cc"],
    "symm_collect.cuh": ["symm/names_test.cc"],
    "symm_probe.cuh": ["symm/probe_test.cc"],
    "nvshmem_names.cuh": ["symm/names_test.cc"],
    "tilescale.cuh": ["order/tilescale_test.cc", "symm/names_test.cc"],
    "tilescale_ranks.cuh": ["symm/names_test.cc"],
}
# Headers with orders or barriers that nothing weakens, and why.
LEFT_OUT = {
    "atomic.cuh": "it takes its orders from its callers; device.assembly shows that each becomes the instruction",
    "async_copy.cuh": "its orders are instructions of GPUs alone, which device.assembly shows",
    "machine.cuh": "the barriers themselves: one instruction each, which device.assembly shows",
    "multimem.cuh": "its orders are those of what stands for its instructions on an emulated GPU; device.assembly shows these",
    "warpgroup.cuh": "one instruction each; the emulated GPU has none of them and only lets the warp meet",
    "backends/nccl.cuh": "needs NCCL's device code, which no emulated GPU runs",
    "backends/nvshmem.cuh": "needs NVSHMEM's device code, which no emulated GPU runs",
}
# (name, pattern, replacement)
WEAKENINGS = [
    ("acquire to relaxed", re.compile(r"\bload_acquire<"), "load_relaxed<"),
    ("acquire to relaxed", re.compile(r"(?<=load<)((?:\w+::)*Order::)kAcquire\b"), r"\1kRelaxed"),
    ("acquire to relaxed", re.compile(r"(?<=\? )((?:\w+::)*Order::)kAcquire\b"), r"\1kRelaxed"),
    ("release to relaxed", re.compile(r"\bstore_release<"), "store_relaxed<"),
    ("release to relaxed", re.compile(r"(?<=<)((?:\w+::)*Order::)kRelease\b"), r"\1kRelaxed"),
    ("release to relaxed", re.compile(r"(?<=\? )((?:\w+::)*Order::)kRelease\b"), r"\1kRelaxed"),
    ("acquire-release to relaxed", re.compile(r"(?<!fence<)(?<=<)((?:\w+::)*Order::)kAcquireRelease\b"), r"\1kRelaxed"),
    ("fence left out", re.compile(r"(?:\w+::)*\bfence<[^;{}]*\(\);"), ";"),
    ("system to gpu scope", re.compile(r"\bScope::kSystem\b"), "Scope::kGpu"),
    ("gpu to block scope", re.compile(r"\bScope::kGpu\b"), "Scope::kBlock"),
    ("slots not in turn", re.compile(r"% kSymmTurns\b"), "% 1"),
    ("barrier left out", re.compile(r"(?:\w+::)*\b(?:group\.sync|Group\{\}\.sync|block\.sync|sync_warp|sync_block|await_cluster|sync_named)\([^;{}]*\);"), ";"),
]
SKIPPED_LINES = re.compile(r"^\s*(//|#|static_assert|asm|VERBENA_BY|next\()|\bemulation::|if constexpr|^VERBENA_DEVICE|template <|operator")
TSAN = "exitcode=66 halt_on_error=1 symbolize=0 print_full_thread_history=0"
FLAGS = ["-std=c++20", "-O1", "-fsanitize=thread", "-DVERBENA_EMULATOR_TSAN=1", "-DVERBENA_EMULATOR_ASAN=0"]
RUN_LIMIT_S = 300


class Mutant:
    def __init__(self, header, line_number, line, name, start, end, replacement, ordinal):
        self.header, self.line_number, self.line, self.name = header, line_number, line, name
        self.ordinal = ordinal  # among the same lines of the header
        self.mutated_line = line[:start] + replacement + line[end:]

    def key(self):
        suffix = f" ({self.ordinal})" if self.ordinal > 1 else ""
        return f"{self.header} | {self.name} | {self.line.strip()}{suffix}"


def find_forgotten(root):
    """Headers that have something to weaken and stand in neither table."""
    folder = root / HEADERS
    for path in sorted(folder.rglob("*.cuh")):
        header = str(path.relative_to(folder))
        if header not in PROGRAMS and header not in LEFT_OUT and any(find_mutants_of(root, header)):
            yield header


def find_mutants(root):
    for header in PROGRAMS:
        yield from find_mutants_of(root, header)


def find_mutants_of(root, header):
    lines = (root / HEADERS / header).read_text(encoding="utf-8").splitlines()
    for number, line in enumerate(lines):
        code = line.split("//")[0]
        if SKIPPED_LINES.search(code) and not re.search(r"\bsync\(\) const", code):
            continue
        for name, pattern, replacement in WEAKENINGS:
            for match in pattern.finditer(code):
                ordinal = sum(earlier.strip() == line.strip() for earlier in lines[:number + 1])
                yield Mutant(header, number, line, name, match.start(), match.end(), match.expand(replacement), ordinal)


class Runner:
    def __init__(self, arguments):
        self.arguments = arguments

    def build(self, source, include, program):
        root = self.arguments.root
        command = [self.arguments.compiler, *FLAGS, "-I", include, "-I", include / "verbena/tilescale",
                   "-I", root / "plugin", "-I", root / "tests", "-I", root,
                   "-I", (root / "tests/device" / source).parent, root / "tests/device" / source,
                   self.arguments.emulator, "-lgtest_main", "-lgmock", "-lgtest", "-lpthread", "-o", program]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    def run(self, program):
        """Survived, killed or, which says nothing, timed out: the emulator ends hangs by itself."""
        try:
            done = subprocess.run([program, "--gtest_fail_fast", "--gtest_brief=1"], capture_output=True, check=False,
                                  timeout=RUN_LIMIT_S, env={**os.environ, "TSAN_OPTIONS": TSAN})
        except subprocess.TimeoutExpired:
            return "timed out"
        return "survived" if done.returncode == 0 else "killed"

    def judge(self, index, mutant, sources):
        """killed, survived, timed out, or does not compile. Without a mutant: the library as it is."""
        folder = self.arguments.work / str(index)
        include = folder / "include"
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(self.arguments.root / "include", include)
        if mutant is not None:
            path = include / "verbena/device" / mutant.header
            lines = path.read_text(encoding="utf-8").splitlines()
            lines[mutant.line_number] = mutant.mutated_line
            path.write_text("\n".join(lines) + "\n", encoding="utf-8")
        verdict = "survived"
        for source in sources:
            program = folder / "program"
            built = self.build(source, include, program)
            if built.returncode != 0:
                verdict = "does not compile: " + next((x for x in built.stderr.splitlines() if "error" in x), "")
            else:
                verdict = self.run(program)
            if verdict != "survived":
                break
        shutil.rmtree(folder, ignore_errors=True)
        return verdict


def read_survivors(path):
    known = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        if line and not line.startswith("#"):
            key, reason = line.rsplit(" | ", 1)
            known[key] = reason
    return known


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--root", type=pathlib.Path, required=True)
    parser.add_argument("--compiler", default="c++")
    parser.add_argument("--emulator", type=pathlib.Path, required=True)
    parser.add_argument("--work", type=pathlib.Path, required=True)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--only")
    parser.add_argument("--list", action="store_true")
    arguments = parser.parse_args()
    mutants = [m for m in find_mutants(arguments.root) if arguments.only in (None, m.header)]
    if arguments.list:
        print("\n".join(f"{m.key()}  =>  {m.mutated_line.strip()}" for m in mutants))
        return 0
    runner = Runner(arguments)
    failures = 0
    for header in find_forgotten(arguments.root) if arguments.only is None else []:
        failures += 1
        print(f"{header}: no program sees what becomes of it")
    known = read_survivors(pathlib.Path(__file__).with_name("survivors.txt"))
    verdicts = []
    with concurrent.futures.ThreadPoolExecutor(arguments.jobs) as pool:
        sources = sorted({source for m in mutants for source in PROGRAMS[m.header]})
        as_it_is = pool.map(lambda i: runner.judge(f"as-it-is-{i}", None, [sources[i]]), range(len(sources)))
        for source, verdict in zip(sources, as_it_is):
            if verdict != "survived":
                failures += 1
                print(f"the library as it is: {source}: {verdict}; nothing can be said of a weaker one", flush=True)
                mutants = [m for m in mutants if source not in PROGRAMS[m.header]]
        weakened = pool.map(lambda i: runner.judge(i, mutants[i], PROGRAMS[mutants[i].header]), range(len(mutants)))
        for mutant, verdict in zip(mutants, weakened):
            verdicts.append(verdict)
            is_expected = verdict == ("survived" if mutant.key() in known else "killed")
            failures += not is_expected
            print(f"{'' if is_expected else 'UNEXPECTED '}{verdict}: line {mutant.line_number + 1}: {mutant.key()}", flush=True)
    stale = set(known) - {m.key() for m in mutants}
    for key in sorted(stale) if arguments.only is None else []:
        failures += 1
        print(f"survivors.txt names what is not there: {key}")
    killed = verdicts.count("killed")
    print(f"{len(mutants)} weakenings, {killed} red, {verdicts.count('survived')} survived, {failures} unexpected")
    return 1 if failures or killed == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
