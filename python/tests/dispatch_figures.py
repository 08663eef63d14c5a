"""Measures how long it takes to choose the backend at run time: calls a primitive on the rank itself, once with the backend chosen at
compile time and once at run time.

    python dispatch_figures.py          # one GPU; with NVSHMEM's and NCCL's bitcode where they are found

Prints nanoseconds a call, medians, one line each. The difference is the dispatch's.
"""
import os
import pathlib
import statistics
import sys

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parent.parent)]
os.environ.setdefault("CUDA_MODULE_LOADING", "EAGER")

import torch  # noqa: E402
import triton  # noqa: E402
import triton.language as tl  # noqa: E402

import verbena  # noqa: E402
from verbena.triton import *  # noqa: E402,F403

CALLS = (2_000, 12_000)
ROUNDS = 31


def make_kernel(backend):
    @requires_symm(backend=backend)
    @triton.jit
    def repeat(ctx_ptr, data_ptr, out, count, is_put, BACKEND: tl.constexpr):
        rank = symm_team_rank(ctx_ptr, BACKEND)
        status = 0
        if is_put != 0:
            for _ in range(count):
                status += symm_put_async(ctx_ptr, data_ptr + 8, data_ptr, 1, None, rank, BACKEND)
        else:
            for _ in range(count):
                status += symm_signal(ctx_ptr, 5, rank, 1, SIGNAL_OP_ADD, BACKEND)
        tl.store(out, status)

    return lambda *arguments: repeat[(1,)](*arguments, BACKEND=int(backend), num_warps=1)


def measure(launch, team, data, out, is_put):
    """Returns the nanoseconds per call: the difference of the times of a longer and a shorter loop, divided by the difference of the
    numbers of calls."""
    def time_ns(count):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        launch(team, data, out, count, is_put)
        end.record()
        torch.cuda.synchronize()
        if out.item() != 0:
            raise RuntimeError(f"a call ended with {out.item()}")
        return begin.elapsed_time(end) * 1e6

    time_ns(CALLS[0])
    return statistics.median((time_ns(CALLS[1]) - time_ns(CALLS[0])) / (CALLS[1] - CALLS[0]) for _ in range(ROUNDS))


def main():
    torch.cuda.set_device(0)
    with verbena.SymmetricContext(verbena.make_unique_id(), 0, 1) as context, context.allocate(4096) as window:
        data = torch.as_tensor(window, device="cuda").view(torch.int64)
        out = torch.zeros(1, dtype=torch.int32, device="cuda")
        kernels = {"static": make_kernel(BACKEND_VERBENA), "run-time": make_kernel(BACKEND_DEFAULT)}
        for name, is_put in (("symm_signal", 0), ("symm_put_async", 1)):
            # There and back, so that a clock that rises or falls meanwhile is seen.
            times = {}
            for dispatch in ("static", "run-time", "run-time", "static"):
                times.setdefault(dispatch, []).append(measure(kernels[dispatch], context.world, data, out, is_put))
            for dispatch, both in times.items():
                print(f"{name:>16} {dispatch:>9} " + " ".join(f"{ns:8.2f}" for ns in both) + " ns", flush=True)
            difference = statistics.mean(times["run-time"]) - statistics.mean(times["static"])
            print(f"{name:>16} {'dispatch':>9} {difference:8.2f} ns", flush=True)


if __name__ == "__main__":
    main()
