"""Creates teams along the rows and columns of a DeviceMesh, and passes tensors around each row and each column.

Each rank sends a tensor to its neighbour in its row, and then to its neighbour in its column, by calls on a stream. Each row also creates a
separate context over its process group.

    torchrun --nproc-per-node 4 device_mesh.py [--rows 2]
"""
import argparse
import os
import sys
from typing import Any

import verbena
from verbena.mesh import create_mesh_teams

COUNT = 1 << 20
SIGNAL = 3
POOL_BYTES = 64 << 20  # PyTorch takes memory from the pool in pieces of 20 MiB


def pass_on(torch: Any, team: verbena.SymmetricTeam, outgoing: Any, incoming: Any) -> None:
    """Sends `outgoing` to the next member, and receives `incoming` from the previous member."""
    stream = torch.cuda.current_stream()
    following = (team.rank + 1) % team.size
    team.put(incoming, outgoing, following, stream)
    team.signal(SIGNAL, following, stream=stream)
    team.wait(SIGNAL, 1, stream=stream)


def pass_along_all_dimensions(torch: Any, mesh: Any, context: verbena.SymmetricContext) -> dict[str, int]:
    """Passes a tensor along each dimension. Returns a dictionary from each dimension's name to the rank from which the tensor came."""
    teams = create_mesh_teams(context, mesh)
    came = {}
    with context.create_pool(POOL_BYTES) as pool:
        for name, team in teams.items():
            with torch.cuda.use_mem_pool(pool.mem_pool):
                outgoing = torch.full((COUNT,), context.rank, dtype=torch.int32, device="cuda")
                incoming = torch.full((COUNT,), -1, dtype=torch.int32, device="cuda")
            team.barrier()  # all ranks have filled their tensors
            pass_on(torch, team, outgoing, incoming)
            team.barrier()
            if int(incoming.min()) == int(incoming.max()):
                came[name] = int(incoming[0])
            del outgoing, incoming
        pool.check()
    context.check_error()
    return came


def main() -> int:
    import torch
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--rows", type=int, default=2)
    rows = options.parse_args().rows
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    columns = int(os.environ["WORLD_SIZE"]) // rows
    mesh = init_device_mesh("cuda", (rows, columns), mesh_dim_names=("column", "row"))
    row, column = mesh.get_coordinate()
    with verbena.make_context("verbena", dist.group.WORLD) as context:
        came = pass_along_all_dimensions(torch, mesh, context)
    with verbena.make_context("verbena", mesh.get_group("row")) as one_row:
        is_right = (one_row.rank, one_row.size) == (column, columns)
    expected = {"column": (row - 1) % rows * columns + column, "row": row * columns + (column - 1) % columns}
    is_right = is_right and came == expected
    print(f"rank {dist.get_rank()} at {row, column}: {came}: {'ok' if is_right else f'expected {expected}'}")
    dist.destroy_process_group()
    return 0 if is_right else 1


if __name__ == "__main__":
    sys.exit(main())
