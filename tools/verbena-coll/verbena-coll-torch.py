#!/usr/bin/env python3
"""A rank of verbena-coll's contender torch: PyTorch's symmetric memory under the tool's clock. verbena-coll starts it, with
descriptor 3, through which the lines with its figures go to the tool.

usage: verbena-coll-torch.py SIZES TYPES REPEATS CHAIN   (with RANK, LOCAL_RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT)
"""
import ctypes
import os
import signal
import sys

import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory as symmetric_memory

TYPES = {"bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32}
TINY = 2.0 ** -60
PAUSE_CYCLES = 100_000  # the host puts a sample's work into the stream meanwhile
CHANNEL = 3
PR_SET_PDEATHSIG = 1


def tell(line):
    os.write(CHANNEL, f"{line}\n".encode())


def make_graph(chain, enqueue, stream):
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        for index in range(chain):
            enqueue(index)
    return graph


class Clock:
    """All ranks begin together: behind a barrier, with everything in the stream by then."""

    def __init__(self, handle, stream):
        self.handle, self.stream = handle, stream

    def time_us(self, launch):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        with torch.cuda.stream(self.stream):
            torch.cuda._sleep(PAUSE_CYCLES)
            self.handle.barrier(channel=1)
            begin.record(self.stream)
            launch()
            end.record(self.stream)
        self.stream.synchronize()
        return begin.elapsed_time(end) * 1000


def list_ways(first, second, group, bytes_, ranks):
    """What each operation of a chain does: its result is the next one's input."""
    ways = {}
    if bytes_ <= 4 << 20:
        # Out of place; its input is symmetric memory, so the output is copied back there, which is left out of the chain.
        def one_shot(index):
            source, target = (first, second) if index % 2 == 0 else (second, first)
            torch.ops.symm_mem.one_shot_all_reduce_out(source, "sum", group, target)
        ways["torch/one-shot"] = one_shot
    if bytes_ % (16 * ranks) == 0:
        ways["torch/two-shot"] = lambda index: torch.ops.symm_mem.two_shot_all_reduce_(first, "sum", group)
    ways["torch/nccl"] = lambda index: dist.all_reduce(first)
    return ways


def measure(enqueue, stream, clock, repeats, chain):
    """Times of the shorter and of the longer graph, in us. The graphs end here: NCCL ends a communicator only behind the last
    graph that holds one of its operations, and would wait for one of ours for good."""
    with torch.cuda.stream(stream):
        enqueue(0)
    stream.synchronize()
    graphs = [make_graph(length, enqueue, stream) for length in (chain, 2 * chain)]
    samples = [[clock.time_us(graph.replay) for graph in graphs] for _ in range(repeats + 1)]
    return zip(*samples[1:])  # the first warms up


def measure_all(sizes, types, repeats, chain):
    group, ranks = dist.group.WORLD.group_name, dist.get_world_size()
    stream = torch.cuda.Stream()
    signals = symmetric_memory.empty(1024, dtype=torch.float32, device="cuda")
    clock = Clock(symmetric_memory.rendezvous(signals, group), stream)
    for name in (name for name in types if name in TYPES):
        for bytes_ in sizes:
            tensors = []
            for _ in range(2):
                tensor = symmetric_memory.empty(bytes_ // TYPES[name].itemsize, dtype=TYPES[name], device="cuda").fill_(TINY)
                symmetric_memory.rendezvous(tensor, group)
                tensors.append(tensor)
            for way, enqueue in list_ways(*tensors, group, bytes_, ranks).items():
                try:
                    times = measure(enqueue, stream, clock, repeats, chain)
                except RuntimeError as error:
                    print(f"verbena-coll: {way}, {bytes_} bytes of {name}: {error}", file=sys.stderr, flush=True)
                    continue
                for kind, samples in zip(("shorter", "longer"), times):
                    tell(f"figure {kind} all_reduce/{name}/{bytes_}/{way} {' '.join(f'{sample:.4f}' for sample in samples)}")
    torch.cuda.synchronize()


def main():
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)  # it ends with the tool
    os.set_inheritable(CHANNEL, False)
    sizes, types, repeats, chain = sys.argv[1].split(","), sys.argv[2].split(","), int(sys.argv[3]), int(sys.argv[4])
    if os.environ["RANK"] == "0":
        tell(f"PyTorch {torch.__version__}")
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl", device_id=torch.device("cuda", torch.cuda.current_device()))
    measure_all([int(size) for size in sizes], types, repeats, chain)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
