"""Compiles the kernels that primitives_on_gpus.py launches into Triton's cache, in several processes, because a kernel that is linked with
NVSHMEM takes 10 s or more. If the compilation of a kernel fails here, the kernel is compiled, and the error reported, at its launch.

usage: precompile.py CAPABILITY WORKERS PART PARTS BACKENDS WARPS   (the last two are lists: 4,0 1,8)
"""
import concurrent.futures
import itertools
import multiprocessing
import sys

import gpu_kernels


def list_jobs(backends, warps):
    """The longest first: NVSHMEM's and those of all backends."""
    order = sorted(backends, key=lambda backend: backend in (0, 2), reverse=True)
    return list(itertools.product(order, range(len(gpu_kernels.KERNELS)), warps))


def compile_one(capability, backend, number, warps):
    from verbena.triton import requires_symm
    function = gpu_kernels.KERNELS[number]
    kernel = requires_symm(function, backend=backend)
    kernel.compile(gpu_kernels.make_signature(function), {"BACKEND": backend}, capability, num_warps=warps)


def main():
    capability, workers, part, parts = map(int, sys.argv[1:5])
    backends, warps = ([int(number) for number in text.split(",")] for text in sys.argv[5:7])
    spawn = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(workers, mp_context=spawn) as pool:
        jobs = [pool.submit(compile_one, capability, *job) for job in list_jobs(backends, warps)[part::parts]]
    return sum(job.exception() is not None for job in jobs)


if __name__ == "__main__":
    sys.exit(main())
