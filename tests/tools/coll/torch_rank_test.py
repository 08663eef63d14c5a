#!/usr/bin/env python3
"""The script behind `verbena-coll --against torch`, with a PyTorch of the test's own in place of the real one: which lines reach the
tool, and that no graph is left when the group ends, for which NCCL would wait for good.

usage: torch_rank_test.py SCRIPT
"""
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

SCRIPT = os.path.abspath(sys.argv.pop(1))
# Each operation takes 2 us of a clock that only they move on.
TORCH = '''
import contextlib, sys, types
__version__ = "1.2.3"
now_us, recorded, graphs, ended = 0, None, set(), []

def module(name, **members):
    made = types.ModuleType(name)
    made.__dict__.update(members)
    sys.modules[name] = made
    return made

def work():
    global now_us
    if recorded is None:
        now_us += 2
    else:
        recorded.work += 1

def fail(*_):
    raise RuntimeError("no such kernel")

class CUDAGraph:
    def __init__(self):
        self.work = 0
        graphs.add(id(self))
    def __del__(self):
        graphs.discard(id(self))
    def replay(self):
        for _ in range(self.work):
            work()

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

class Tensor:
    def fill_(self, value):
        return self

class Handle:
    def barrier(self, channel):
        pass

class Size:
    def __init__(self, itemsize):
        self.itemsize = itemsize

bfloat16, float16, float32 = Size(2), Size(2), Size(4)
device = lambda *place: place
cuda = module("torch.cuda", CUDAGraph=CUDAGraph, Event=Event, Stream=Stream, graph=graph, stream=lambda _: contextlib.nullcontext(),
              set_device=lambda index: None, current_device=lambda: 0, synchronize=lambda: None, _sleep=lambda cycles: None)
ops = types.SimpleNamespace(symm_mem=types.SimpleNamespace(
    one_shot_all_reduce_out=lambda *_: work(), two_shot_all_reduce_=fail))

def destroy_process_group():
    assert not graphs, "NCCL waits for graphs that hold its operations"
    ended.append(True)

_symmetric_memory = module("torch.distributed._symmetric_memory", empty=lambda *_, **__: Tensor(), rendezvous=lambda *_: Handle())
distributed = module("torch.distributed", __path__=[], _symmetric_memory=_symmetric_memory,
                     group=types.SimpleNamespace(WORLD=types.SimpleNamespace(group_name="0")), get_world_size=lambda: 2,
                     init_process_group=lambda *_, **__: None, all_reduce=lambda _: work(), barrier=lambda: None,
                     destroy_process_group=destroy_process_group)
import atexit
atexit.register(lambda: ended or print("the group was not destroyed", file=sys.stderr))
'''


def run(rank, *arguments):
    """(exit status, lines of the channel, standard error)"""
    with tempfile.TemporaryDirectory() as folder:
        (pathlib.Path(folder) / "torch.py").write_text(TORCH, encoding="utf-8")
        channel, theirs = os.pipe()
        environment = {**os.environ, "PYTHONPATH": folder, "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2"}
        # The shell puts the pipe where verbena-coll has its channel.
        command = ["bash", "-c", f'exec 3>&{theirs} {theirs}>&-; exec "$@"', "bash", sys.executable, "-B", SCRIPT, *arguments]
        process = subprocess.Popen(command, env=environment, pass_fds=[theirs], stderr=subprocess.PIPE, text=True)
        os.close(theirs)
        try:
            error = process.communicate(timeout=60)[1]
        finally:
            process.kill()
        with os.fdopen(channel) as lines:
            return process.returncode, lines.read().splitlines(), error


class TorchRankTest(unittest.TestCase):
    def test_figures_reach_the_tool_and_the_group_ends(self):
        status, lines, error = run(0, "1024,8388608", "bf16,i32", "3", "10")
        self.assertEqual(status, 0, error)
        self.assertNotIn("was not destroyed", error)
        self.assertEqual(lines, ["PyTorch 1.2.3"] + [
            f"figure {kind} all_reduce/bf16/{bytes_}/torch/{way} {time} {time} {time}"
            for bytes_, ways in ((1024, ("one-shot", "nccl")), (8388608, ("nccl",))) for way in ways
            for kind, time in (("shorter", "20.0000"), ("longer", "40.0000"))])

    def test_what_pytorch_refuses_is_named_and_left_out(self):
        status, lines, error = run(1, "1024", "f32", "1", "4")
        self.assertEqual(status, 0, error)
        self.assertIn("torch/two-shot, 1024 bytes of f32: no such kernel", error)
        self.assertEqual([line.split()[2] for line in lines],
                         [f"all_reduce/f32/1024/torch/{way}" for way in ("one-shot", "nccl") for _ in range(2)])


if __name__ == "__main__":
    unittest.main()
