#!/usr/bin/env python3
"""The script behind `verbena-bench coll --against torch,flashinfer,sglang,vllm`, with a PyTorch and a FlashInfer of the test's own in place
of the real ones: which lines reach the tool, that wrong data has no figure, and that no graph is left when the group ends, for which
NCCL would wait for good.

usage: torch_rank_test.py SCRIPT
"""
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

SCRIPT = os.path.abspath(sys.argv.pop(1))
# Each operation takes 2 us of a clock that only they move on. Of the two ranks, rank 1 has one more in each number than rank 0.
TORCH = '''
import contextlib, json, os, sys, types
__version__ = "1.2.3"
KEPT = 4096  # of a tensor's numbers
now_us, recorded, graphs, ended = 0, None, set(), []
rank = int(os.environ["RANK"])

def module(name, **members):
    made = types.ModuleType(name)
    made.__dict__.update(members)
    sys.modules[name] = made
    return made

def work(do):
    global now_us
    if recorded is None:
        now_us += 2
        do()
    else:
        recorded.work.append(do)

def fail(*_):
    raise RuntimeError("no such kernel")

class CUDAGraph:
    def __init__(self):
        self.work = []
        graphs.add(id(self))
    def __del__(self):
        graphs.discard(id(self))
    def replay(self):
        for do in self.work:
            work(do)

class Event:
    def __init__(self, enable_timing):
        assert enable_timing
    def record(self, stream):
        self.at_us = now_us
    def elapsed_time(self, end):
        return (end.at_us - self.at_us) / 1000

@contextlib.contextmanager
def graph(made, stream):
    global recorded
    recorded = made
    yield
    recorded = None

class Stream:
    def synchronize(self):
        pass

class Type:
    def __init__(self, itemsize):
        self.itemsize = itemsize

class Tensor:
    def __init__(self, numbers, count=None, dtype=None, width=1):
        self.numbers, self.count, self.dtype, self.width = numbers, count or len(numbers), dtype, width
    def numel(self):
        return self.count
    def fill_(self, value):
        self.numbers[:] = [value] * len(self.numbers)
        return self
    def copy_(self, other):
        self.numbers[:] = other.numbers
    def view(self, rows, width):
        assert rows * width == self.count
        return Tensor(self.numbers, self.count, self.dtype, width)
    def flatten(self):
        return self
    float = flatten
    def __getitem__(self, part):
        return Tensor(self.numbers[part][:KEPT], len(range(self.count)[part]), self.dtype)
    def with_each(self, other, do):
        if not isinstance(other, Tensor):
            return Tensor([do(number, other) for number in self.numbers], self.count, self.dtype, self.width)
        each = len(self.numbers) // len(other.numbers)
        return Tensor([do(number, other.numbers[i // each]) for i, number in enumerate(self.numbers)], self.count, self.dtype, self.width)
    __add__ = lambda self, other: self.with_each(other, lambda a, b: a + b)
    __mul__ = lambda self, other: self.with_each(other, lambda a, b: a * b)
    __mod__ = lambda self, other: self.with_each(other, lambda a, b: a % b)
    def mean(self, _, keepdim):
        rows = [self.numbers[i:i + self.width] for i in range(0, len(self.numbers), self.width)]
        return Tensor([sum(row) / len(row) for row in rows])

def make(value):
    return lambda count, dtype=None, device=None: Tensor([value] * min(count, KEPT), count, dtype)

zeros, empty, ones = make(0), make(0), make(1)
arange = lambda count, device: Tensor(list(range(min(count, KEPT))), count)
equal = lambda a, b: a.numbers == b.numbers
allclose = lambda a, b, rtol, atol: all(abs(x - y) <= atol + rtol * abs(y) for x, y in zip(a.numbers, b.numbers))
rsqrt = lambda of: Tensor([number ** -0.5 for number in of.numbers])

def add_peers(tensor):
    return tensor * 2 + (1 - 2 * rank)

def all_reduce(source, target=None, wrong=False):
    work(lambda: (source if target is None else target).copy_(add_peers(source) + (1 if wrong else 0)))

class Handle:
    buffer_ptrs = [1000, 2000]
    def barrier(self, channel):
        if channel == 0:
            work(lambda: None)

class Store:
    def set(self, key, value):
        self.value = value
    def get(self, key):
        """Of rank 1 what rank 0 has, a little slower if that was asked for."""
        if key.endswith("/1") and "SLOWER_US" in os.environ and "." in self.value:
            return json.dumps([[us + float(os.environ["SLOWER_US"]) for us in times] for times in json.loads(self.value)])
        return self.value

bfloat16, float16, float32, float8_e4m3fn, uint8 = Type(2), Type(2), Type(4), Type(1), Type(1)
device = lambda *place: place
cuda = module("torch.cuda", CUDAGraph=CUDAGraph, Event=Event, Stream=Stream, graph=graph, stream=lambda _: contextlib.nullcontext(),
              set_device=lambda index: None, current_device=lambda: 0, synchronize=lambda: None, _sleep=lambda cycles: None,
              is_current_stream_capturing=lambda: recorded is not None)
ops = types.SimpleNamespace(symm_mem=types.SimpleNamespace(
    one_shot_all_reduce_out=lambda source, how, group, target: all_reduce(source, target), two_shot_all_reduce_=fail))

def destroy_process_group():
    assert not graphs, "NCCL waits for graphs that hold its operations"
    ended.append(True)

_symmetric_memory = module("torch.distributed._symmetric_memory", empty=empty, rendezvous=lambda *_: Handle())
distributed = module("torch.distributed", __path__=[], _symmetric_memory=_symmetric_memory,
                     group=types.SimpleNamespace(WORLD=types.SimpleNamespace(group_name="0")), new_group=lambda backend: backend,
                     rendezvous=lambda _: iter([(Store(), rank, 2)]), init_process_group=lambda *_, **__: None, all_reduce=all_reduce,
                     barrier=lambda: None, destroy_process_group=destroy_process_group)
import atexit
atexit.register(lambda: ended or print("the group was not destroyed", file=sys.stderr))
'''
FLASHINFER = '''
import os, sys, types
import torch
__version__ = "4.5.6"
registered = []
patterns = types.SimpleNamespace(kAllReduce=0, kARResidualRMSNorm=1, kARResidualRMSNormOutFP8Quant=4,
                                 kARResidualRMSNormOutDynamicFP8Quant=11)

def fuse(allreduce_in, pattern_code, allreduce_out, residual_in, residual_out, norm_out, quant_out, scale_out, use_oneshot,
         workspace_ptrs, token_num, hidden_dim, rms_eps, **_):
    assert workspace_ptrs == "workspace" and token_num * hidden_dim == allreduce_in.numel()
    if pattern_code == 0:
        return torch.all_reduce(allreduce_in, allreduce_out, wrong=use_oneshot and "WRONG" in os.environ)
    def do():
        total = torch.add_peers(allreduce_in) + residual_in
        rows = total.view(token_num, hidden_dim)
        residual_out.copy_(total)
        norm_out.copy_(rows * torch.rsqrt((rows * rows).mean(-1, keepdim=True) + rms_eps))
        if pattern_code == 11:
            scale_out.fill_(0.5)
        if quant_out is not None:
            quant_out.copy_(norm_out * (2 if pattern_code == 11 else 1))
    torch.work(do)

def reduce_vllm(handle, source, target, staging, staging_bytes, blocks):
    assert handle == "vllm"
    if torch.recorded is None:
        assert staging == 1000 + 1000 * torch.rank and staging_bytes >= source.numel() * 2
    else:
        assert staging == 0
        registered.append(source)
    torch.all_reduce(source, target)

def register(handle, handles, offsets):
    assert len(handles) == len(offsets) == 2 and len(offsets[0]) == len(registered)
    registered.clear()

torch.module("flashinfer.comm", AllReduceFusionPattern=patterns, trtllm_allreduce_fusion=fuse,
    trtllm_create_ipc_workspace_for_all_reduce_fusion=lambda rank, ranks, rows, hidden, group: (None, "workspace"),
    vllm_meta_size=lambda: 256, vllm_init_custom_ar=lambda pointers, table, rank, full_nvlink: "vllm",
    vllm_register_buffer=lambda handle, pointers: None, vllm_all_reduce=reduce_vllm, vllm_register_graph_buffers=register,
    vllm_get_graph_buffer_ipc_meta=lambda _: ([7] * 64 * len(registered), [0] * len(registered)))
'''
SGLANG = '''
import contextlib, types
import torch
__version__, __path__ = "7.8.9", []

class CustomAllReduceV2:
    disabled = False
    def __init__(self, group, device, max_size):
        assert group == "gloo"
        self.max_size = max_size
    def should_custom_ar(self, tensor):
        return tensor.numel() * 2 <= 4096
    def custom_all_reduce(self, tensor):
        made = torch.empty(tensor.numel())
        torch.all_reduce(tensor, made)
        return made
    @contextlib.contextmanager
    def capture(self):
        yield

for name in ("sglang.srt", "sglang.srt.distributed", "sglang.srt.distributed.device_communicators"):
    torch.module(name, __path__=[])
torch.module("sglang.srt.distributed.device_communicators.custom_all_reduce_v2", CustomAllReduceV2=CustomAllReduceV2)
'''


def run(rank, contender, operations, sizes, types, hidden, repeats, chain, **more):
    """(exit status, lines of the channel, standard error)"""
    with tempfile.TemporaryDirectory() as folder:
        for name, text in (("torch", TORCH), ("flashinfer", FLASHINFER), ("sglang", SGLANG)):
            (pathlib.Path(folder) / f"{name}.py").write_text(text, encoding="utf-8")
        channel, theirs = os.pipe()
        environment = {**os.environ, "PYTHONPATH": folder, "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2", **more}
        arguments = [contender, operations, sizes, types, str(hidden), str(repeats), str(chain)]
        # The shell puts the pipe where verbena-bench coll has its channel.
        command = ["bash", "-c", f'exec 3>&{theirs} {theirs}>&-; exec "$@"', "bash", sys.executable, "-B", SCRIPT, *arguments]
        process = subprocess.Popen(command, env=environment, pass_fds=[theirs], stderr=subprocess.PIPE, text=True)
        os.close(theirs)
        try:
            error = process.communicate(timeout=60)[1]
        finally:
            process.kill()
        with os.fdopen(channel) as lines:
            return process.returncode, lines.read().splitlines(), error


def list_keys(lines):
    """What the figures are of, each once."""
    return list(dict.fromkeys(line.split()[1].split("/", 1)[1] for line in lines if line.startswith("figure ")))


class TorchRankTest(unittest.TestCase):
    def test_figures_reach_the_tool_and_the_group_ends(self):
        status, lines, error = run(0, "torch", "all_reduce,all_gather", "1024,8388608", "bf16,i32", 8192, 3, 10)
        self.assertEqual(status, 0, error)
        self.assertNotIn("was not destroyed", error)
        self.assertEqual(lines, ["PyTorch 1.2.3"] + [
            f"figure {kind}/all_reduce/bf16/{bytes_}/torch/{way} {time} {time} {time}"
            for bytes_, ways in ((1024, ("one-shot", "nccl")), (8388608, ("nccl",))) for way in ways
            for kind, time in (("shorter", "20.0000"), ("longer", "40.0000"))] +
            ["a barrier of its symmetric memory takes 2.00 us"])

    def test_what_pytorch_refuses_is_named_and_left_out(self):
        status, lines, error = run(0, "torch", "all_reduce", "1024", "f32", 8192, 1, 4)
        self.assertEqual(status, 0, error)
        self.assertIn("torch/two-shot, 1024 bytes of f32: no such kernel", error)
        self.assertEqual(list_keys(lines), [f"all_reduce/f32/1024/torch/{way}" for way in ("one-shot", "nccl")])

    def test_flashinfer_reduces_and_norms_whole_rows(self):
        operations = ("all_reduce_norm", "all_reduce_norm_fp8", "all_reduce_norm_fp8_tensor")
        status, lines, error = run(0, "flashinfer", ",".join(("all_reduce", *operations)), "1000,1100", "bf16", 128, 1, 4)
        self.assertEqual((status, error), (0, ""))
        self.assertEqual(lines[0], "FlashInfer 4.5.6")
        ways = [f"flashinfer/{shots}-shot{ending}" for shots in ("one", "two") for ending in ("", "-early")]
        # 500 numbers are 125 rows of 4, 550 are 275 of 2; with a norm rows have the 128 numbers that were asked for.
        self.assertEqual(list_keys(lines),
                         [f"all_reduce/bf16/{bytes_}/{way}" for bytes_ in (1000, 1100) for way in (*ways, "flashinfer/vllm")] +
                         [f"{operation}/bf16/{bytes_}/{way}" for operation in operations for bytes_ in (768, 1024) for way in ways])

    def test_rank_0_speaks_for_all(self):
        self.assertEqual(run(1, "flashinfer", "all_reduce,all_reduce_norm_fp8", "1024", "bf16", 128, 1, 4), (0, [], ""))

    def test_the_slowest_rank_counts(self):
        lines = run(0, "torch", "all_reduce", "1024", "bf16", 8192, 1, 10, SLOWER_US="0.5")[1]
        self.assertEqual([line.split()[2:] for line in lines if "/torch/nccl" in line], [["20.5000"], ["40.5000"]])

    def test_wrong_data_has_no_figure(self):
        status, lines, error = run(0, "flashinfer", "all_reduce", "1024", "bf16", 128, 1, 4, WRONG="1")
        self.assertEqual(status, 0, error)
        self.assertIn("flashinfer/one-shot-early, 1024 bytes of bf16: wrong data", error)
        self.assertEqual(list_keys(lines),
                         [f"all_reduce/bf16/1024/flashinfer/{way}" for way in ("two-shot", "two-shot-early", "vllm")])

    def test_an_engine_does_what_it_thinks_is_worth_it(self):
        status, lines, error = run(0, "sglang", "all_reduce,all_reduce_norm", "1024,8192", "bf16", 128, 1, 4)
        self.assertEqual((status, error), (0, ""))
        self.assertEqual(lines[0], "sglang 7.8.9")
        self.assertEqual(list_keys(lines), ["all_reduce/bf16/1024/sglang/custom"])

    def test_what_cannot_be_imported_is_left_out_in_one_line(self):
        status, lines, error = run(0, "vllm", "all_reduce", "1024", "bf16", 128, 1, 4)
        self.assertEqual((status, error), (0, ""))
        self.assertEqual(lines, ["vllm is left out: No module named 'vllm'"])


if __name__ == "__main__":
    unittest.main()
