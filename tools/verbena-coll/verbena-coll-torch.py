#!/usr/bin/env python3
"""A rank of verbena-coll's contenders that live in Python, under the tool's clock: torch (PyTorch's symmetric memory and its NCCL),
flashinfer (its all-reduce, alone and fused with RMSNorm), vllm (its custom all-reduce, as FlashInfer carries it). verbena-coll starts it,
with descriptor 3, through which the lines with its figures go to the tool.

usage: verbena-coll-torch.py CONTENDERS OPERATIONS SIZES TYPES HIDDEN REPEATS CHAIN
       (with RANK, LOCAL_RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT)
"""
import contextlib
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
MOST_ONE_SHOT_BYTES = 4 << 20
# vLLM's kernels: as their users set them.
VLLM_BUFFER_BYTES, VLLM_RANK_DATA_BYTES, VLLM_BLOCKS = 64 << 20, 8 << 20, 36


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


class TorchWays:
    """What each operation of a chain does: its result is the next one's input."""

    def __init__(self, group):
        self.group = group

    def list_ways(self, operation, first, second, hidden):
        if operation != "all_reduce":
            return {}
        bytes_ = first.numel() * first.element_size()
        ways = {}
        if bytes_ <= MOST_ONE_SHOT_BYTES:
            # Out of place; its input is symmetric memory, so the output is copied back there, which is left out of the chain.
            def one_shot(index):
                source, target = (first, second) if index % 2 == 0 else (second, first)
                torch.ops.symm_mem.one_shot_all_reduce_out(source, "sum", self.group, target)
            ways["torch/one-shot"] = one_shot
        if bytes_ % (16 * dist.get_world_size()) == 0:
            ways["torch/two-shot"] = lambda index: torch.ops.symm_mem.two_shot_all_reduce_(first, "sum", self.group)
        ways["torch/nccl"] = lambda index: dist.all_reduce(first)
        return ways


class FlashInferWays:
    """FlashInfer's kernels from TensorRT-LLM, through memory of their own: tensors lie anywhere."""

    def __init__(self, types, sizes, hidden):
        import flashinfer.comm as comm
        self.comm, self.hidden = comm, hidden
        self.rank, self.ranks = dist.get_rank(), dist.get_world_size()
        most_tokens = max(sizes) // (2 * hidden) + 1
        with open(os.devnull, "w", encoding="utf-8") as nowhere, contextlib.redirect_stdout(nowhere):
            _, self.workspace = comm.trtllm_create_ipc_workspace_for_all_reduce_fusion(
                self.rank, self.ranks, most_tokens, hidden, group=dist.group.WORLD)

    def list_ways(self, operation, first, second, hidden):
        patterns = {"all_reduce": "kAllReduce", "all_reduce_norm": "kARResidualRMSNorm",
                    "all_reduce_norm_fp8_tensor": "kARResidualRMSNormFP8Quant"}
        tokens = first.numel() // hidden
        if operation not in patterns or first.element_size() != 2 or tokens == 0 or first.numel() % hidden != 0:
            return {}
        pattern = getattr(self.comm.AllReduceFusionPattern, patterns[operation])
        has_norm, is_quantised = operation != "all_reduce", operation == "all_reduce_norm_fp8_tensor"
        empty = lambda **options: torch.empty_like(first, memory_format=torch.contiguous_format, **options)
        residual_in, residual_out = (torch.zeros_like(first) for _ in range(2)) if has_norm else (None, None)
        gamma = torch.ones(hidden, dtype=first.dtype, device="cuda") if has_norm else None
        quantised = empty(dtype=torch.float8_e4m3fn) if is_quantised else None
        scale = torch.ones(1, dtype=torch.float32, device="cuda") if is_quantised else None
        layout = self.comm.QuantizationSFLayout.LINEAR if is_quantised else None
        ways = {}
        for name, one_shot in (("one-shot", True), ("two-shot", False)):
            if (one_shot and first.numel() * 2 > MOST_ONE_SHOT_BYTES) or (not one_shot and tokens <= self.ranks):
                continue

            def enqueue(index, one_shot=one_shot):
                source, target = (first, second) if index % 2 == 0 else (second, first)
                # With FP8 there is no other output: the sums are what the next operation takes.
                self.comm.trtllm_allreduce_fusion(
                    allreduce_in=source, world_size=self.ranks, world_rank=self.rank, token_num=tokens, hidden_dim=hidden,
                    workspace_ptrs=self.workspace, launch_with_pdl=True, trigger_completion_at_end=True, fp32_acc=True,
                    pattern_code=pattern, use_oneshot=one_shot, allreduce_out=None if has_norm else target,
                    residual_in=residual_in, residual_out=target if is_quantised else residual_out,
                    norm_out=target if has_norm and not is_quantised else None, quant_out=quantised, scale_out=None,
                    rms_gamma=gamma, rms_eps=1e-6 if has_norm else None, scale_factor=scale, layout_code=layout)
            ways[f"flashinfer/{name}"] = enqueue
        return ways


class VllmWays:
    """vLLM's custom all-reduce, which FlashInfer carries, as it is outside of registered buffers: its input is copied first."""

    def __init__(self):
        import flashinfer.comm as comm
        self.comm, rank = comm, dist.get_rank()
        self.meta = comm.create_shared_buffer(comm.vllm_meta_size() + VLLM_BUFFER_BYTES, group=dist.group.WORLD)
        self.buffers = comm.create_shared_buffer(VLLM_BUFFER_BYTES, group=dist.group.WORLD)
        self.rank_data = torch.empty(VLLM_RANK_DATA_BYTES, dtype=torch.uint8, device="cuda")
        self.handle = comm.vllm_init_custom_ar(self.meta, self.rank_data, rank, True)
        comm.vllm_register_buffer(self.handle, self.buffers)
        self.buffer = self.buffers[rank]

    def list_ways(self, operation, first, second, hidden):
        bytes_ = first.numel() * first.element_size()
        if operation != "all_reduce" or bytes_ > VLLM_BUFFER_BYTES or bytes_ % 16 != 0:
            return {}

        def enqueue(index):
            source, target = (first, second) if index % 2 == 0 else (second, first)
            self.comm.vllm_all_reduce(self.handle, source, target, self.buffer, VLLM_BUFFER_BYTES, VLLM_BLOCKS)
        return {"vllm/custom": enqueue}


def measure(enqueue, stream, clock, repeats, chain):
    """Times of the shorter and of the longer graph, in us. The graphs end here: NCCL ends a communicator only behind the last
    graph that holds one of its operations, and would wait for one of ours for good."""
    with torch.cuda.stream(stream):
        enqueue(0)
        enqueue(1)
    stream.synchronize()
    graphs = [make_graph(length, enqueue, stream) for length in (chain, 2 * chain)]
    samples = [[clock.time_us(graph.replay) for graph in graphs] for _ in range(repeats + 1)]
    return zip(*samples[1:])  # the first warms up


def make_contenders(names, types, sizes, hidden):
    """Who cannot be had here is named and left out."""
    makers = {"torch": lambda: TorchWays(dist.group.WORLD.group_name), "flashinfer": lambda: FlashInferWays(types, sizes, hidden),
              "vllm": VllmWays}
    contenders = []
    for name in names:
        try:
            contenders.append(makers[name]())
        except (ImportError, RuntimeError) as error:
            print(f"verbena-coll: {name} is left out: {error}", file=sys.stderr, flush=True)
    return contenders


def measure_all(names, operations, sizes, types, hidden, repeats, chain):
    group = dist.group.WORLD.group_name
    stream = torch.cuda.Stream()
    signals = symmetric_memory.empty(1024, dtype=torch.float32, device="cuda")
    clock = Clock(symmetric_memory.rendezvous(signals, group), stream)
    contenders = make_contenders(names, types, sizes, hidden)
    for operation, name in ((operation, name) for operation in operations for name in types if name in TYPES):
        for bytes_ in sizes:
            row_bytes = hidden * TYPES[name].itemsize
            if operation != "all_reduce":
                bytes_ = max(row_bytes, bytes_ // row_bytes * row_bytes)
            tensors = []
            for _ in range(2):
                tensor = symmetric_memory.empty(bytes_ // TYPES[name].itemsize, dtype=TYPES[name], device="cuda").fill_(TINY)
                symmetric_memory.rendezvous(tensor, group)
                tensors.append(tensor)
            # Rows of an all-reduce alone are as long as they divide it.
            length = tensors[0].numel()
            columns = hidden if operation != "all_reduce" or length % hidden == 0 else length
            ways = {}
            for contender in contenders:
                ways.update(contender.list_ways(operation, *tensors, columns))
            for way, enqueue in ways.items():
                try:
                    times = measure(enqueue, stream, clock, repeats, chain)
                except RuntimeError as error:
                    print(f"verbena-coll: {way}, {bytes_} bytes of {name}: {error}", file=sys.stderr, flush=True)
                    continue
                for kind, samples in zip(("shorter", "longer"), times):
                    tell(f"figure {kind} {operation}/{name}/{bytes_}/{way} {' '.join(f'{sample:.4f}' for sample in samples)}")
    torch.cuda.synchronize()


def main():
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)  # it ends with the tool
    os.set_inheritable(CHANNEL, False)
    contenders, operations, sizes, types = (argument.split(",") for argument in sys.argv[1:5])
    hidden, repeats, chain = (int(argument) for argument in sys.argv[5:8])
    if os.environ["RANK"] == "0":
        tell(f"PyTorch {torch.__version__}")
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl", device_id=torch.device("cuda", torch.cuda.current_device()))
    measure_all(contenders, operations, [int(size) for size in sizes], types, hidden, repeats, chain)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
