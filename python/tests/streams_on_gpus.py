"""Tests the features that need PyTorch and GPUs but no kernels of the caller: calls on streams and in graphs, pools, registered tensors
used by their own addresses, a buffer of NCCL, and meshes.

    torchrun --nproc-per-node 2 streams_on_gpus.py

Rank 0 writes a line for each check: `name ok | failed: why | skipped: why`; any failure makes the exit code 1.
"""
import os
import pathlib
import sys
import traceback

FOLDER = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(FOLDER), str(FOLDER.parent), str(FOLDER.parent / "examples")]
os.environ.setdefault("VERBENA_SYMM_TIMEOUT_MS", "5000")
os.environ.setdefault("VERBENA_BOOTSTRAP_TIMEOUT_MS", "60000")
os.environ.setdefault("CUDA_MODULE_LOADING", "EAGER")
os.environ.setdefault("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402

import device_mesh  # noqa: E402
import verbena  # noqa: E402
from verbena.builders import VerbenaSymmContextBuilder  # noqa: E402
from verbena.native import BackendUnavailable  # noqa: E402
from verbena.nccl import NCCLSymmContextBuilder  # noqa: E402

COUNT = 1 << 20
SKIPPED = "skipped"


def fill(value):
    return torch.full((COUNT,), value, dtype=torch.int32, device="cuda")


def expect(tensor, value):
    assert int(tensor.min()) == int(tensor.max()) == value, f"{int(tensor.min())} to {int(tensor.max())}, not {value}"


def pass_around(team, outgoing, incoming, rounds=1, signal=1):
    """Sends each rank's tensor to the next rank, in the order of the current stream. Signals count up."""
    following = (team.rank + 1) % team.size
    for _ in range(rounds):
        team.put(incoming, outgoing, following)
        team.signal(signal, following)
    team.wait(signal, rounds)
    team.barrier(signal)


def check_streams(context):
    with context.allocate(8 * COUNT) as window:
        numbers = torch.as_tensor(window, device="cuda").view(torch.int32)
        outgoing, incoming = numbers[:COUNT], numbers[COUNT:]
        before = (context.rank - 1) % context.size
        outgoing.copy_(fill(context.rank))
        with torch.cuda.stream(torch.cuda.Stream()) as _:
            torch.cuda.current_stream().wait_stream(torch.cuda.default_stream())
            context.world.barrier()
            pass_around(context.world, outgoing, incoming, rounds=3)
            torch.cuda.current_stream().synchronize()
        expect(incoming, before)
        back = fill(-1)
        context.world.get(back, numbers, before)
        context.world.quiet()
        expect(back, before)
        context.world.barrier()


def check_graphs(context):
    """Captures a graph once and replays it. The ranks pass the number of the round around."""
    with context.allocate(8 * COUNT) as window, context.create_workspace(context.world, 0, 1) as workspace:
        numbers = torch.as_tensor(window, device="cuda").view(torch.int32)
        team, following = workspace.team, (context.rank + 1) % context.size
        numbers.zero_()
        team.barrier()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            numbers[:COUNT] += 1
            team.put(numbers[COUNT:], numbers[:COUNT], following)
            team.barrier()
        for _ in range(20):
            graph.replay()
        torch.cuda.synchronize()
        expect(numbers[COUNT:], 20)
        workspace.check_error()


def check_pools(context):
    with context.create_pool(128 << 20) as pool:
        with torch.cuda.use_mem_pool(pool.mem_pool):
            outgoing, incoming = fill(context.rank), fill(-1)
        assert context.find_window(outgoing.data_ptr()).handle == pool.window.handle
        pool.check()
        context.world.barrier()
        pass_around(context.world, outgoing, incoming, signal=2)
        expect(incoming, (context.rank - 1) % context.size)
        del outgoing, incoming


def check_own_addresses(context):
    """Registers a tensor of PyTorch. Calls use the tensor's own address."""
    builder = VerbenaSymmContextBuilder(dist.group.WORLD)
    try:
        outgoing, incoming = fill(context.rank), fill(-1)
        for tensor in (outgoing, incoming):
            builder.build(tensor)
        assert builder.find_window(incoming).address != incoming.data_ptr()
        world = builder.context.world
        world.barrier()
        pass_around(world, outgoing, incoming)
        expect(incoming, (context.rank - 1) % context.size)
        builder.context.check_error()
    finally:
        builder.close()


def check_nccl_buffer(context):
    """Memory that NCCL has allocated before the context was made."""
    dist.all_reduce(torch.ones(1, device="cuda"))
    backend = dist.group.WORLD._get_backend(torch.device("cuda"))
    if not hasattr(backend, "mem_allocator"):
        return f"{SKIPPED}: this PyTorch has no allocator of NCCL's"
    pool = torch.cuda.MemPool(backend.mem_allocator)
    with torch.cuda.use_mem_pool(pool):
        both = torch.full((2 * COUNT,), context.rank, dtype=torch.int32, device="cuda")
    builder = NCCLSymmContextBuilder(dist.group.WORLD, 64 << 20)
    try:
        builder.build(both)
        world = builder.context.world
        world.barrier()
        pass_around(world, both[:COUNT], both[COUNT:])
        expect(both[COUNT:], (context.rank - 1) % context.size)
        builder.context.check_error()
    finally:
        builder.close()
    return None


def check_meshes(context):
    from torch.distributed.device_mesh import init_device_mesh
    mesh = init_device_mesh("cuda", (1, context.size), mesh_dim_names=("column", "row"))
    came = device_mesh.pass_along_all_dimensions(torch, mesh, context)
    assert came == {"column": context.rank, "row": (context.rank - 1) % context.size}, came


CHECKS = (check_streams, check_graphs, check_pools, check_own_addresses, check_nccl_buffer, check_meshes)


def run(check, context):
    try:
        return check(context) or "ok"
    except BackendUnavailable as error:
        return f"{SKIPPED}: {error}"
    except Exception:
        traceback.print_exc()
        return f"failed: {traceback.format_exc(limit=-1).strip().splitlines()[-1]}"


def main():
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
    dist.init_process_group("cpu:gloo,cuda:nccl")
    context = verbena.make_context("verbena", dist.new_group(backend="gloo"))
    is_right = True
    for check in CHECKS:
        # What has stopped one rank stops the others by their deadlines.
        told = [None] * context.size
        dist.all_gather_object(told, run(check, context), group=dist.new_group(backend="gloo"))
        wrong = [f"rank {rank}: {line}" for rank, line in enumerate(told) if line != told[0]]
        is_right = is_right and not any(line.startswith("failed") for line in told)
        if context.rank == 0:
            print(check.__name__.removeprefix("check_"), told[0], *wrong, flush=True)
        if not is_right:
            break
    if is_right:
        context.check_error()
        context.close()
        dist.destroy_process_group()
    sys.stdout.flush()
    os._exit(0 if is_right else 1)


if __name__ == "__main__":
    main()
