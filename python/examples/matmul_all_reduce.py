"""A matrix product fused with an all-reduce: the inner dimension is split over the ranks, and one kernel multiplies and sums.

    torchrun --nproc-per-node 4 matmul_all_reduce.py [--backend nccl]   # GPUs of one host: compares with torch's result
    python matmul_all_reduce.py --offline                               # no GPU: compiles for sm_80 and sm_90

Each program (block) computes its tiles of the product in the rank's own window, then waits at a barrier for the programs with the same
index on the other ranks. The program sums its share of these tiles (one of `size` tiles) over all ranks, and stores each sum on all ranks.
After a second barrier all sums have arrived and no rank reads a window any more, so the next launch may write the windows.
"""
import argparse
import os

import triton
import triton.language as tl

import verbena
from verbena.triton import requires_symm, symm_lsa_barrier, symm_lsa_ptr, symm_team_rank, symm_team_size

# Each program waits at its own barrier for the programs with the same index on other ranks, so all programs must run at the same time. A
# team has 128 barriers.
MAX_PROGRAMS = 128
TILE = {"BLOCK_M": 128, "BLOCK_N": 128, "BLOCK_K": 64}


@triton.jit
def find_places(tile, M, N, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    """Returns the rows and columns of a tile, the offsets of its elements in an M x N matrix, and the mask of the elements inside the
    matrix."""
    columns = tl.cdiv(N, BLOCK_N)
    rows = (tile // columns) * BLOCK_M + tl.arange(0, BLOCK_M)
    cols = (tile % columns) * BLOCK_N + tl.arange(0, BLOCK_N)
    return rows, cols, rows[:, None].to(tl.int64) * N + cols[None, :], (rows[:, None] < M) & (cols[None, :] < N)


@triton.jit
def multiply_tile(tile, a_ptr, b_ptr, partial_ptr, M, N, K, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
                  BLOCK_K: tl.constexpr):
    rows, cols, places, is_inside = find_places(tile, M, N, BLOCK_M, BLOCK_N)
    inner = tl.arange(0, BLOCK_K)
    product = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for start in range(0, K, BLOCK_K):
        k = start + inner
        a = tl.load(a_ptr + rows[:, None].to(tl.int64) * K + k[None, :], (rows[:, None] < M) & (k[None, :] < K), 0.0)
        b = tl.load(b_ptr + k[:, None].to(tl.int64) * N + cols[None, :], (k[:, None] < K) & (cols[None, :] < N), 0.0)
        product = tl.dot(a, b, product)
    tl.store(partial_ptr + places, product, is_inside)


@triton.jit
def sum_tile(tile, ctx_ptr, partial_ptr, sum_ptr, rank, size, M, N, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
             BACKEND: tl.constexpr):
    _, _, places, is_inside = find_places(tile, M, N, BLOCK_M, BLOCK_N)
    total = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    # Each rank starts with its own memory, so that the ranks do not all read from the same rank at once.
    for step in range(size):
        theirs = symm_lsa_ptr(ctx_ptr, partial_ptr, (rank + step) % size, BACKEND)
        total += tl.load(theirs + places, is_inside, 0.0)
    for step in range(size):
        theirs = symm_lsa_ptr(ctx_ptr, sum_ptr, (rank + step) % size, BACKEND)
        tl.store(theirs + places, total, is_inside)


@triton.jit
def matmul_all_reduce(ctx_ptr, a_ptr, b_ptr, partial_ptr, sum_ptr, status_ptr, M, N, K, BLOCK_M: tl.constexpr,
                      BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, BACKEND: tl.constexpr):
    program = tl.program_id(0)
    programs = tl.num_programs(0)
    rank = symm_team_rank(ctx_ptr, BACKEND)
    size = symm_team_size(ctx_ptr, BACKEND)
    tiles = tl.cdiv(M, BLOCK_M) * tl.cdiv(N, BLOCK_N)
    for tile in range(program, tiles, programs):
        multiply_tile(tile, a_ptr, b_ptr, partial_ptr, M, N, K, BLOCK_M, BLOCK_N, BLOCK_K)
    status = symm_lsa_barrier(ctx_ptr, program, BACKEND)
    if status == 0:
        # Ranks sum this program's tiles in turn: rank 0 the first, rank 1 the second, and so on.
        for tile in range(program + rank * programs, tiles, size * programs):
            sum_tile(tile, ctx_ptr, partial_ptr, sum_ptr, rank, size, M, N, BLOCK_M, BLOCK_N, BACKEND)
        status = symm_lsa_barrier(ctx_ptr, program, BACKEND)
    tl.store(status_ptr + program, status)


SIGNATURE = {"ctx_ptr": "i64", "a_ptr": "*fp16", "b_ptr": "*fp16", "partial_ptr": "*fp32", "sum_ptr": "*fp32",
             "status_ptr": "*i32", "M": "i32", "N": "i32", "K": "i32", **dict.fromkeys([*TILE, "BACKEND"], "constexpr")}


def link(backend):
    """Links the kernel at run time, because the backend is an option. Other programs use @requires_symm(backend=...)."""
    return requires_symm(backend=backend)(matmul_all_reduce)


def compile_offline(capability, backend=verbena.Backend.VERBENA):
    return link(backend).compile(SIGNATURE, {**TILE, "BACKEND": int(backend)}, capability, num_warps=8, num_stages=3)


def run(M, N, K, backend):
    import torch
    import torch.distributed as dist
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", device_id=device)
    # PyTorch creates NCCL's communicator in the first collective call.
    dist.barrier()
    with verbena.make_context(backend, dist.group.WORLD, heap_bytes=2 * M * N * 4 + (8 << 20)) as context:
        # One window contains the rank's partial product, and the other window contains the sums.
        with context.allocate(M * N * 4) as partial_window, context.allocate(M * N * 4) as sum_window:
            if context.lsa.size != context.size:
                raise RuntimeError(f"this example reads the memory of all ranks, but the memory of only {context.lsa.size} of "
                                   f"{context.size} ranks is mapped. Run the example on one host")
            partial, sums = (torch.as_tensor(window, device="cuda").view(torch.float32).view(M, N)
                             for window in (partial_window, sum_window))
            multiply_and_compare(context, partial, sums, K // context.size, backend)
    dist.destroy_process_group()


def multiply_and_compare(context, partial, sums, K, backend):
    import torch
    kernel = link(backend)
    M, N = partial.shape
    parts = []
    for rank in range(context.size):
        random = torch.Generator("cuda").manual_seed(rank)
        parts.append([torch.randn(shape, generator=random, device="cuda", dtype=torch.float16)
                      for shape in ((M, K), (K, N))])
    expected = sum(a.float() @ b.float() for a, b in parts)
    tiles = triton.cdiv(M, TILE["BLOCK_M"]) * triton.cdiv(N, TILE["BLOCK_N"])
    programs = min(MAX_PROGRAMS, tiles, torch.cuda.get_device_properties("cuda").multi_processor_count)
    statuses = torch.full((programs,), 1, device="cuda", dtype=torch.int32)
    a, b = parts[context.rank]
    for _ in range(3):
        sums.zero_()
        torch.cuda.synchronize()
        context.barrier()
        kernel[(programs,)](context.world, a, b, partial, sums, statuses, M, N, K, **TILE, BACKEND=int(backend),
                            num_warps=8, num_stages=3)
        torch.cuda.synchronize()
        context.check_error()
        if statuses.any():
            raise RuntimeError(f"a program failed with {verbena.Status(int(statuses.min()))!r}")
        torch.testing.assert_close(sums, expected, rtol=1e-2, atol=1e-1)
    print(f"rank {context.rank} of {context.size}: {backend.name.lower()}: {M} x {K * context.size} x {N}: equals torch's "
          "result", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--offline", action="store_true", help="compile for sm_80 and sm_90 without a GPU, and exit")
    parser.add_argument("--shape", type=int, nargs=3, default=(2048, 3000, 4096), metavar=("M", "N", "K"))
    parser.add_argument("--backend", choices=("verbena", "nccl", "nvshmem"), default="verbena")
    arguments = parser.parse_args()
    backend = verbena.Backend[arguments.backend.upper()]
    if not arguments.offline:
        return run(*arguments.shape, backend)
    for capability in (80, 90):
        kernel = compile_offline(capability, backend)
        print(f"sm_{capability}: {len(kernel.asm['cubin'])} bytes, {kernel.metadata.shared} of shared memory")


if __name__ == "__main__":
    main()
