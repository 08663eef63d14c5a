#!/usr/bin/env python3
"""Runs one rank of a contender of verbena-bench coll that works on PyTorch tensors: PyTorch's symmetric memory, FlashInfer's kernels, or the
custom all-reduce of SGLang or vLLM. verbena-bench coll starts it, and reads its figures from descriptor 3.

usage: verbena-bench-torch.py CONTENDER OPERATIONS SIZES TYPES HIDDEN REPEATS CHAIN
       (with RANK, LOCAL_RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT)
"""
import contextlib
import ctypes
import importlib
import json
import math
import os
import signal
import statistics
import sys

import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory as symmetric_memory

TYPES = {"bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32}
TINY = 2.0 ** -60
EPSILON = 1e-6
PAUSE_CYCLES = 100_000  # the host puts a sample's work into the stream meanwhile
CHANNEL = 3
PR_SET_PDEATHSIG = 1
NUMBERS, RESIDUES = 7, 5  # of the checks: small ones, whose sums are exact in every type
QUANTISED = ("all_reduce_norm_fp8", "all_reduce_norm_fp8_tensor")


def tell(line):
    os.write(CHANNEL, f"{line}\n".encode())


class Ranks:
    def __init__(self):
        self.store, self.rank, self.count = next(dist.rendezvous("env://"))
        self.round = 0

    def exchange(self, what):
        """Gathers an object of each rank, in rank order, through host memory. Avoids NumPy, which PyTorch's own function needs."""
        self.round += 1
        self.store.set(f"verbena/{self.round}/{self.rank}", json.dumps(what))
        return [json.loads(self.store.get(f"verbena/{self.round}/{peer}")) for peer in range(self.count)]


class Places:
    """The tensors of an operation: input, output, and further tensors of a norm."""

    def __init__(self, operation, first, second, hidden):
        self.operation, self.first, self.second = operation, first, second
        count = first.numel()
        self.hidden = hidden if operation != "all_reduce" else count if count <= hidden else math.gcd(count, hidden)
        self.rows = count // self.hidden
        if operation == "all_reduce":
            return
        self.residual_in, self.residual_out = (torch.zeros(count, dtype=first.dtype, device="cuda") for _ in range(2))
        self.weight = torch.ones(hidden, dtype=first.dtype, device="cuda")
        self.scales = torch.ones(self.rows, dtype=torch.float32, device="cuda")
        self.quantised = torch.zeros(count, dtype=torch.float8_e4m3fn, device="cuda") if operation in QUANTISED else None

    def source_and_target(self, index):
        return (self.first, self.second) if index % 2 == 0 else (self.second, self.first)

    def fill_for_check(self, rank):
        places = torch.arange(self.first.numel(), device="cuda")
        self.first.copy_(places % NUMBERS + rank)
        if self.operation != "all_reduce":
            self.residual_in.copy_(places % RESIDUES)

    def fill_for_clock(self):
        self.first.fill_(TINY)
        self.second.fill_(TINY)
        if self.operation != "all_reduce":
            self.residual_in.fill_(0)

    def is_right(self, result, ranks):
        """Checks the `result` of an operation whose inputs fill_for_check() filled."""
        places = torch.arange(self.first.numel(), device="cuda")
        total = (places % NUMBERS * ranks + ranks * (ranks - 1) // 2).float()
        if self.operation == "all_reduce":
            return torch.equal(result.flatten().float(), total)
        total = (total + places % RESIDUES).view(self.rows, self.hidden)
        if not torch.equal(self.residual_out.float(), total.flatten()):
            return False
        normed = total * torch.rsqrt((total * total).mean(-1, keepdim=True) + EPSILON)
        if not torch.allclose(result.view(self.rows, self.hidden).float(), normed, rtol=2.0 ** -6, atol=2.0 ** -6):
            return False
        if self.operation not in QUANTISED:
            return True
        quantised = self.quantised.float().view(self.rows, self.hidden) * self.scales.view(self.rows, 1)
        return torch.allclose(quantised, normed, rtol=2.0 ** -3, atol=2.0 ** -3)


class Contender:
    """Base class. list_ways() returns functions by name. Each function enqueues one operation of a chain and returns its result,
    which is the next operation's input."""
    operations, has_barrier = ("all_reduce",), False

    def __init__(self, ranks, max_bytes):
        self.ranks, self.max_bytes, self.pairs = ranks, max_bytes, {}

    def allocate_pair(self, count, dtype):
        # One pair for all sizes: where other ranks open our memory, it must outlive what they do there.
        if dtype not in self.pairs:
            most = self.max_bytes // dtype.itemsize
            self.pairs[dtype] = [torch.empty(most, dtype=dtype, device="cuda") for _ in range(2)]
        return [tensor[:count] for tensor in self.pairs[dtype]]

    def capturing(self):
        return contextlib.nullcontext()


def share(bytes_):
    """Zero-filled memory, and its address on each rank."""
    memory = symmetric_memory.empty(bytes_, dtype=torch.uint8, device="cuda").fill_(0)
    handle = symmetric_memory.rendezvous(memory, dist.group.WORLD.group_name)
    torch.cuda.synchronize()
    dist.barrier()
    return memory, list(handle.buffer_ptrs)


class Torch(Contender):
    has_barrier = True

    def __init__(self, ranks, max_bytes):
        super().__init__(ranks, max_bytes)
        self.title = f"PyTorch {torch.__version__}"

    def allocate_pair(self, count, dtype):
        pair = [symmetric_memory.empty(count, dtype=dtype, device="cuda") for _ in range(2)]
        for tensor in pair:
            symmetric_memory.rendezvous(tensor, dist.group.WORLD.group_name)
        return pair

    def list_ways(self, places):
        group, first, bytes_ = dist.group.WORLD.group_name, places.first, places.first.numel() * places.first.dtype.itemsize

        # Out of place; its input is symmetric memory, so the output is copied back there, which is left out of the chain.
        def one_shot(index):
            source, target = places.source_and_target(index)
            torch.ops.symm_mem.one_shot_all_reduce_out(source, "sum", group, target)
            return target

        def two_shot(_):
            torch.ops.symm_mem.two_shot_all_reduce_(first, "sum", group)
            return first

        def nccl(_):
            dist.all_reduce(first)
            return first

        ways = {}
        if bytes_ <= 4 << 20:
            ways["torch/one-shot"] = one_shot
        if bytes_ % (16 * self.ranks.count) == 0:
            ways["torch/two-shot"] = two_shot
        ways["torch/nccl"] = nccl
        return ways


class FlashInfer(Contender):
    """FlashInfer's copies of TensorRT-LLM's fused kernels and of vLLM's all-reduce."""
    operations = ("all_reduce", "all_reduce_norm", *QUANTISED)
    VLLM_BLOCKS, VLLM_TABLE_BYTES = 36, 8 << 20

    def __init__(self, ranks, max_bytes):
        super().__init__(ranks, max_bytes)
        self.comm = importlib.import_module("flashinfer.comm")
        self.title = f"FlashInfer {importlib.import_module('flashinfer').__version__}"
        self.workspace = self.vllm = None

    def make_workspace(self):
        # For any shape with this number of 16-bit elements.
        row = 1024
        self.workspace = self.comm.trtllm_create_ipc_workspace_for_all_reduce_fusion(
            self.ranks.rank, self.ranks.count, -(-self.max_bytes // (2 * row)), row, group=dist.group.WORLD)
        # What it fills on its own stream must be there before a peer writes there.
        torch.cuda.synchronize()
        dist.barrier()

    def make_vllm(self):
        self.signals, signals = share(self.comm.vllm_meta_size() + self.max_bytes)
        self.staging, self.stagings = share(self.max_bytes)
        self.table = torch.empty(self.VLLM_TABLE_BYTES, dtype=torch.uint8, device="cuda")
        self.vllm = self.comm.vllm_init_custom_ar(signals, self.table, self.ranks.rank, True)
        self.comm.vllm_register_buffer(self.vllm, self.stagings)

    @contextlib.contextmanager
    def capturing(self):
        yield
        if self.vllm is None:
            return
        handles, offsets = self.comm.vllm_get_graph_buffer_ipc_meta(self.vllm)
        if not len(offsets):
            return
        ours = [[int(byte) for byte in handles], [int(offset) for offset in offsets]]
        everyone = self.ranks.exchange(ours)
        self.comm.vllm_register_graph_buffers(self.vllm, *([one[part] for one in everyone] for part in range(2)))

    def run_fusion(self, places, index, shots, is_early):
        if self.workspace is None:
            self.make_workspace()
        source, target = (tensor.view(places.rows, places.hidden) for tensor in places.source_and_target(index))
        patterns = self.comm.AllReduceFusionPattern
        arguments = dict.fromkeys(("allreduce_out", "residual_in", "residual_out", "norm_out", "quant_out", "scale_out", "rms_gamma",
                                   "rms_eps", "scale_factor", "layout_code"))
        if places.operation == "all_reduce":
            arguments.update(pattern_code=patterns.kAllReduce, allreduce_out=target)
        else:
            arguments.update(pattern_code=patterns.kARResidualRMSNorm, residual_in=places.residual_in, norm_out=target,
                             residual_out=places.residual_out, rms_gamma=places.weight, rms_eps=EPSILON)
        if places.operation == "all_reduce_norm_fp8":
            arguments.update(pattern_code=patterns.kARResidualRMSNormOutDynamicFP8Quant, quant_out=places.quantised,
                             scale_out=places.scales)
        if places.operation == "all_reduce_norm_fp8_tensor":
            arguments.update(pattern_code=patterns.kARResidualRMSNormOutFP8Quant, quant_out=places.quantised,
                             scale_factor=places.scales[:1])
        self.comm.trtllm_allreduce_fusion(
            allreduce_in=source, world_size=self.ranks.count, world_rank=self.ranks.rank, token_num=places.rows,
            hidden_dim=places.hidden, workspace_ptrs=self.workspace[1], launch_with_pdl=is_early,
            trigger_completion_at_end=not is_early, fp32_acc=True, use_oneshot=shots == 1, **arguments)
        return target

    def run_vllm(self, places, index):
        if self.vllm is None:
            self.make_vllm()
        source, target = places.source_and_target(index)
        # In a graph it reads the tensor where it lies; otherwise where others have opened our memory.
        is_captured = torch.cuda.is_current_stream_capturing()
        staging = 0 if is_captured else self.stagings[self.ranks.rank]
        self.comm.vllm_all_reduce(self.vllm, source, target, staging, 0 if is_captured else self.max_bytes, self.VLLM_BLOCKS)
        return target

    def list_ways(self, places):
        ways, bytes_ = {}, places.first.numel() * places.first.dtype.itemsize
        for shots, name in ((1, "one-shot"), (2, "two-shot")):
            has_room = bytes_ * self.ranks.count <= 1 << 30 if shots == 1 else places.rows > self.ranks.count
            if not has_room or places.first.dtype.itemsize != 2:
                continue
            for is_early, ending in ((False, ""), (True, "-early")):
                ways[f"flashinfer/{name}{ending}"] = lambda index, shots=shots, is_early=is_early: self.run_fusion(
                    places, index, shots, is_early)
        if places.operation == "all_reduce":
            ways["flashinfer/vllm"] = lambda index: self.run_vllm(places, index)
        return ways


class Engine(Contender):
    """An inference engine's class for its all-reduces, as the engine uses it."""

    def __init__(self, ranks, max_bytes, engine, module, name):
        super().__init__(ranks, max_bytes)
        self.name, made_by = engine, getattr(importlib.import_module(module), name)
        self.title = f"{engine} {getattr(importlib.import_module(engine), '__version__', 'of an unknown version')}"
        device = torch.device("cuda", torch.cuda.current_device())
        self.custom = made_by(dist.new_group(backend="gloo"), device, max_size=max_bytes + 1)
        if self.custom.disabled:
            raise RuntimeError(f"{name} cannot be used on this host")

    def capturing(self):
        return self.custom.capture()

    def list_ways(self, places):
        last = places.first

        def custom(index):
            nonlocal last
            last = self.custom.custom_all_reduce(places.first if index == 0 else last)
            return last

        return {f"{self.name}/custom": custom} if self.custom.should_custom_ar(places.first) else {}


CONTENDERS = {
    "torch": Torch,
    "flashinfer": FlashInfer,
    "sglang": lambda *arguments: Engine(*arguments, "sglang", "sglang.srt.distributed.device_communicators.custom_all_reduce_v2",
                                        "CustomAllReduceV2"),
    "vllm": lambda *arguments: Engine(*arguments, "vllm", "vllm.distributed.device_communicators.custom_all_reduce",
                                      "CustomAllreduce"),
}


class Clock:
    """Times a sample. All ranks begin together, after a barrier; by then all work is in the stream."""

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


def make_graph(chain, enqueue, stream):
    graph, result = torch.cuda.CUDAGraph(), None
    with torch.cuda.graph(graph, stream=stream):
        for index in range(chain):
            result = enqueue(index)
    return graph, result


def time_graphs(ranks, graphs, clock, repeats):
    """The times of each graph on the slowest rank in us."""
    samples = [[clock.time_us(graph.replay) for graph, _ in graphs] for _ in range(repeats + 1)]
    everyone = ranks.exchange(list(zip(*samples[1:])))  # the first warms up
    return [[max(peers) for peers in zip(*times)] for times in zip(*everyone)]


def measure_barrier(ranks, stream, clock, repeats, chain):
    """The time of a barrier of PyTorch's symmetric memory in us."""
    graphs = [make_graph(length, lambda _: clock.handle.barrier(channel=0), stream) for length in (chain, 2 * chain)]
    shorter, longer = (statistics.median(times) for times in time_graphs(ranks, graphs, clock, repeats))
    return (longer - shorter) / chain


def measure(contender, places, enqueue, stream, clock, repeats, chain):
    """Returns the times of the shorter and the longer graph on the slowest rank in us, and an error or None. Destroys the graphs, because
    NCCL destroys a communicator only after the last graph that contains one of its operations."""
    with torch.cuda.stream(stream):
        places.fill_for_clock()
        enqueue(0)
    stream.synchronize()
    with contender.capturing():
        (alone, result), *graphs = (make_graph(length, enqueue, stream) for length in (1, chain, 2 * chain))
    with torch.cuda.stream(stream):
        places.fill_for_check(contender.ranks.rank)
        clock.handle.barrier(channel=1)
        alone.replay()
        is_right = places.is_right(result, contender.ranks.count)
        places.fill_for_clock()
    stream.synchronize()
    if not all(contender.ranks.exchange(bool(is_right))):
        return [], "wrong data"
    return time_graphs(contender.ranks, graphs, clock, repeats), ""


def measure_all(contender, operations, sizes, types, hidden, repeats, chain):
    stream = torch.cuda.Stream()
    signals = symmetric_memory.empty(1024, dtype=torch.float32, device="cuda")
    clock = Clock(symmetric_memory.rendezvous(signals, dist.group.WORLD.group_name), stream)
    for operation in operations:
        for name in types:
            for bytes_ in sizes[operation, name]:
                first, second = contender.allocate_pair(bytes_ // TYPES[name].itemsize, TYPES[name])
                places = Places(operation, first, second, hidden)
                for way, enqueue in contender.list_ways(places).items():
                    times, problem = [], ""
                    try:
                        times, problem = measure(contender, places, enqueue, stream, clock, repeats, chain)
                    except (AssertionError, RuntimeError, TypeError, ValueError) as error:
                        problem = str(error)
                    if problem:
                        print(f"verbena-bench coll: {way}, {bytes_} bytes of {name}: {problem}", file=sys.stderr, flush=True)
                    key = f"{operation}/{name}/{bytes_}/{way}"
                    for kind, samples in zip(("shorter", "longer"), times if contender.ranks.rank == 0 else ()):
                        tell(f"figure {kind}/{key} {' '.join(f'{sample:.4f}' for sample in samples)}")
    if contender.has_barrier:
        barrier_us = measure_barrier(contender.ranks, stream, clock, repeats, chain)
        if contender.ranks.rank == 0:
            tell(f"a barrier of its symmetric memory takes {barrier_us:.2f} us")
    torch.cuda.synchronize()


def cut_rows(operation, bytes_, row_bytes):
    """Rounds a size down to whole rows, if the operation has rows."""
    return bytes_ if operation == "all_reduce" else max(row_bytes, bytes_ // row_bytes * row_bytes)


def main():
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)  # it ends with the tool
    os.set_inheritable(CHANNEL, False)
    os.environ.setdefault("TORCH_SYMM_MEM_DISABLE_MULTICAST", "1")  # ours has none either
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # all ranks are on this host
    name, operations, sizes, types = sys.argv[1], *(text.split(",") for text in sys.argv[2:5])
    hidden, repeats, chain = (int(text) for text in sys.argv[5:])
    types = [one for one in types if one in TYPES]
    cut = {(operation, one): list(dict.fromkeys(cut_rows(operation, int(size), hidden * TYPES[one].itemsize) for size in sizes))
           for operation in operations for one in types}
    ranks = Ranks()
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl", store=ranks.store, rank=ranks.rank, world_size=ranks.count,
                            device_id=torch.device("cuda", torch.cuda.current_device()))
    contender = None
    try:
        contender = CONTENDERS[name](ranks, max((size for all_ in cut.values() for size in all_), default=0))
        if ranks.rank == 0:
            tell(contender.title)
        operations = [operation for operation in operations if operation in contender.operations]
        measure_all(contender, operations, cut, types, hidden, repeats, chain)
    except (ImportError, RuntimeError) as error:
        if ranks.rank == 0:
            tell(f"{name} is left out: {error}")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
