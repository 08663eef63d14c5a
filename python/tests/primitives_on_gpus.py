"""Runs every primitive from Triton between GPUs, for each available backend, with the backend chosen at compile time and at run time, and
compares the values.

    torchrun --nproc-per-node 2 primitives_on_gpus.py [--backend verbena] [--warps 1 8]

Rank 0 writes a line for each: `backend primitive dispatch ok | failed: why | skipped: why`; any failure makes the exit code 1.
A kernel's wait lasts at most VERBENA_SYMM_TIMEOUT_MS (5000 unless set), the whole run LIMIT_S.
"""
import argparse
import faulthandler
import itertools
import os
import pathlib
import subprocess
import sys
import traceback

FOLDER = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(FOLDER), str(FOLDER.parent)]
os.environ.setdefault("VERBENA_SYMM_TIMEOUT_MS", "5000")
os.environ.setdefault("VERBENA_BOOTSTRAP_TIMEOUT_MS", "60000")
# On one host no network is needed.
if os.environ.get("LOCAL_WORLD_SIZE") == os.environ.get("WORLD_SIZE"):
    os.environ.setdefault("NVSHMEM_REMOTE_TRANSPORT", "none")
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
# Kernels that wait for peers hinder the loading of others.
os.environ.setdefault("CUDA_MODULE_LOADING", "EAGER")

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402

import gpu_kernels  # noqa: E402
import verbena  # noqa: E402
from primitive_checks import CHECKS  # noqa: E402
from verbena.builders import make_context  # noqa: E402
from verbena.nccl import BackendUnavailable  # noqa: E402
from verbena.triton import requires_symm  # noqa: E402

LIMIT_S = 540
HEAP_BYTES = 64 << 20
WINDOW_BYTES = 8 << 20
BACKENDS = ("verbena", "nccl", "ncclx", "nvshmem")
DISPATCHES = ("static", "run-time")
hosts = None  # the ranks as a group of their own, whatever happens on the GPUs


class Failure(RuntimeError):
    """The same on all ranks."""


class Bench:
    """The context of one backend with one way to choose the backend, and programs with a number of warps. The ranks stay in step: if one
    rank finds a wrong value, the value is recorded; if one rank stops, all ranks stop."""

    def __init__(self, context, window, dispatch, signals):
        self.context, self.window, self.team = context, window, context.world
        self.rank, self.size = context.rank, context.size
        self.peer, self.before = (self.rank + 1) % self.size, (self.rank - 1) % self.size
        self.backend = self.team.backend if dispatch == "static" else verbena.Backend.DEFAULT
        self.words = torch.as_tensor(window, device="cuda").view(torch.int64)
        self.warps, self.complaints = 1, []
        self._signals, self._kernels = signals, {}

    def find_kernel(self, name):
        if name not in self._kernels:
            self._kernels[name] = requires_symm(getattr(gpu_kernels, name), backend=self.backend)
        return self._kernels[name]

    def is_in_reach(self, rank):
        return self.window.peer_address(rank) is not None

    def take_signal(self):
        """A signal that no rank has used yet."""
        return next(self._signals)

    def gather(self, mine):
        """What each rank has, on all of them."""
        return agree(mine)

    def expect(self, got, wanted, what):
        if got != wanted:
            self.complaints.append(f"{self.warps} warps: {what}: {got} where {wanted} was expected")

    def launch(self, name, *arguments, programs=1):
        """Launches a kernel on all ranks at the same time, so that no rank waits for a peer that still compiles."""
        options = {"BACKEND": int(self.backend), "num_warps": self.warps}
        do_together(lambda: self.find_kernel(name).warmup(self.team, *arguments, grid=(programs,), **options))
        do_together(lambda: self._launch(self.find_kernel(name)[(programs,)], arguments, options))

    def _launch(self, kernel, arguments, options):
        torch.cuda.synchronize()
        agree(None)
        kernel(self.team, *arguments, **options)
        torch.cuda.synchronize()
        self.context.check_error()


def agree(mine):
    """What each rank says, on all of them."""
    everyones = [None] * dist.get_world_size()
    dist.all_gather_object(everyones, mine, group=hosts)
    return everyones


def tell_first(mine):
    """What a rank has to say, or None if none has."""
    told = [f"rank {rank}: {text}" for rank, text in enumerate(agree(mine)) if text is not None]
    return told[0] if told else None


def do_together(action):
    mine = None
    try:
        action()
    except Exception as error:
        mine = describe(error)
    why = tell_first(mine)
    if why is not None:
        raise Failure(why)


def tell(text):
    if dist.get_rank() == 0:
        print(text, flush=True)


def describe(error):
    place = traceback.extract_tb(error.__traceback__)[-1]
    cause = "" if error.__cause__ is None else f": {error.__cause__}"
    return " ".join(f"{pathlib.Path(place.filename).name}:{place.lineno}: {type(error).__name__}: {error}{cause}".split())[:400]


def try_check(bench, check, warps):
    """Why it failed, or None."""
    bench.complaints.clear()
    try:
        for bench.warps in warps:
            check(bench)
    except Failure as failure:
        return f"{bench.warps} warps: {failure}"
    return tell_first(bench.complaints[0] if bench.complaints else None)


def find_obstacle(bench):
    """Why kernels of this dispatch cannot be launched."""
    try:
        kernel = bench.find_kernel("ask")
    except RuntimeError as error:
        return describe(error)
    return None if bench.team.backend in kernel.served else f"kernels are linked for {sorted(kernel.served)} only"


def check_backend(name, warps, chosen):
    """How many lines say that a primitive failed."""
    count_failed = 0
    context, window, obstacle = open_context(name)
    if obstacle is not None:
        for dispatch, primitive in itertools.product(DISPATCHES, chosen):
            tell(f"{name} {primitive} {dispatch} {obstacle}")
        return 0 if obstacle.startswith("skipped") else len(chosen) * len(DISPATCHES)
    compile_ahead(context.world.backend, warps)
    signals = itertools.count()
    for dispatch in DISPATCHES:
        bench = Bench(context, window, dispatch, signals)
        obstacle = tell_first(find_obstacle(bench))
        for primitive in chosen:
            if obstacle is not None:
                tell(f"{name} {primitive} {dispatch} skipped: {obstacle}")
                continue
            why = try_check(bench, CHECKS[primitive], warps)
            count_failed += why is not None
            tell(f"{name} {primitive} {dispatch} {'ok' if why is None else f'failed: {why}'}")
    return count_failed + close_context(name, context)


def compile_ahead(backend, warps):
    major, minor = torch.cuda.get_device_capability()
    part, parts = dist.get_rank(), dist.get_world_size()
    backends = {int(backend), int(verbena.Backend.DEFAULT)}
    lists = [",".join(map(str, numbers)) for numbers in (backends, warps)]
    numbers = [10 * major + minor, max(1, (os.cpu_count() or 1) // parts), part, parts]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path[:2])}
    subprocess.run([sys.executable, FOLDER / "precompile.py", *map(str, numbers), *lists], env=environment, check=False,
                   timeout=LIMIT_S)
    agree(None)


def open_context(name):
    """A context and a window of it, or why there are none."""
    context, window, mine, is_failed = None, None, None, False
    try:
        context = make_context(name, dist.group.WORLD, HEAP_BYTES)
        window = context.allocate(WINDOW_BYTES)
    except (BackendUnavailable, verbena.LibraryNotFound) as error:
        mine = describe(error)
    except Exception as error:
        mine, is_failed = describe(error), True
    why = tell_first(mine)
    if why is None:
        return context, window, None
    if context is not None:
        context.abort()
        context.close()
    return None, None, f"{'failed' if any(agree(is_failed)) else 'skipped'}: {why}"


def close_context(name, context):
    """1 if it could not be closed, on any rank."""
    mine = None
    try:
        context.close()
    except Exception as error:
        mine = describe(error)
    why = tell_first(mine)
    if why is not None:
        tell(f"{name} close - failed: {why}")
    return int(why is not None)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--backend", nargs="+", choices=BACKENDS, default=["verbena", "nccl", "nvshmem"])
    parser.add_argument("--primitive", nargs="+", choices=sorted(CHECKS), default=list(CHECKS))
    parser.add_argument("--warps", nargs="+", type=int, default=[1, 8], help="of a program")
    arguments = parser.parse_args()
    faulthandler.dump_traceback_later(LIMIT_S, exit=True)
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
    torch.cuda.set_device(device)
    # NCCL's communicator is there once it has done something.
    dist.init_process_group("nccl", device_id=device)
    dist.all_reduce(torch.ones(1, device=device))
    global hosts
    hosts = dist.new_group(backend="gloo")
    count_failed = sum(check_backend(name, arguments.warps, arguments.primitive) for name in arguments.backend)
    tell(f"{count_failed} failed")
    dist.destroy_process_group()
    return 1 if count_failed else 0


if __name__ == "__main__":
    sys.exit(main())
