#!/usr/bin/env python3
"""Measures PyTorch's symmetric memory as verbena-symm does: barrier and all-reduce of float32, in graphs of 50 launches,
the fastest rank's time, medians. Run it on the same GPUs:

    torchrun --nproc-per-node 2 torch_figures.py
"""
import os
import statistics

import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory as symmetric_memory

LAUNCHES = 50
ROUNDS = 21
LARGEST_BYTES = 16 << 20


def measure(launch):
    """Microseconds of one launch in a replayed graph."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(3):
            launch()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        for _ in range(LAUNCHES):
            launch()
    samples = []
    for _ in range(ROUNDS + 2):
        dist.barrier()
        torch.cuda.synchronize()
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        with torch.cuda.stream(stream):
            begin.record(stream)
            graph.replay()
            end.record(stream)
        torch.cuda.synchronize()
        # Ranks that start early wait for the last one.
        fastest = torch.tensor([begin.elapsed_time(end) * 1000 / LAUNCHES], device="cuda")
        dist.all_reduce(fastest, op=dist.ReduceOp.MIN)
        samples.append(fastest.item())
    return statistics.median(samples[2:])


def make_tensor(bytes_, group):
    tensor = symmetric_memory.empty(bytes_ // 4, dtype=torch.float32, device="cuda").fill_(0)
    return tensor, symmetric_memory.rendezvous(tensor, group)


def main():
    rank = int(os.environ["RANK"])
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl", device_id=torch.device("cuda", torch.cuda.current_device()))
    group = dist.group.WORLD.group_name

    def tell(line):
        if rank == 0:
            print(line, flush=True)

    _, handle = make_tensor(4096, group)
    tell(f"torch {torch.__version__}, NCCL {torch.cuda.nccl.version()}, {dist.get_world_size()} ranks")
    tell(f"barrier {measure(lambda: handle.barrier(channel=0)):.2f} us")
    tell(f"{'bytes':>12} {'one shot':>10} {'two shot':>10} {'nccl':>10}   (us)")
    bytes_ = 1024
    while bytes_ <= LARGEST_BYTES:
        tensor, _ = make_tensor(bytes_, group)
        plain = torch.zeros(bytes_ // 4, dtype=torch.float32, device="cuda")
        times = [measure(launch) for launch in (
            lambda: torch.ops.symm_mem.one_shot_all_reduce(tensor, "sum", group),
            lambda: torch.ops.symm_mem.two_shot_all_reduce_(tensor, "sum", group),
            lambda: dist.all_reduce(plain))]
        tell(f"{bytes_:>12} " + " ".join(f"{us:10.2f}" for us in times))
        bytes_ *= 4
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
