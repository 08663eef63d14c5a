"""Runs an unchanged test file of DeepEP over verbena.integrations.deep_ep and emulated GPUs. Run this program by hand; deep_ep_test.py also
runs it.

usage: deep_ep_suite.py FOLDER FILE RANKS[/HOSTS] [the file's arguments]
       such as: deep_ep_suite.py ~/DeepEP tests/test_intranode.py 2 --num-tokens 64 --hidden 512 --num-topk 4 --num-experts 16
       deep_ep_suite.py ~/DeepEP-1.2.1 tests/test_internode.py 16/2 --num-tokens 16 --hidden 256 --num-topk 4 --num-experts 32
RANKS are ranks of all hosts together. test_internode.py wants 8 on each host.
FOLDER is a checkout of DeepEP: v1.2.1 for its `Buffer`, main for its `ElasticBuffer`. The environment is that of ctest's python.ops.

Tensors of CUDA become tensors of the host, NCCL becomes Gloo, and a launch returns when its kernel has run. There is nothing to time:
DeepEP's bench and bench_kineto call the function once.
"""
import os
import pathlib
import runpy
import sys
import types

import torch
import torch.distributed as dist
from torch.overrides import TorchFunctionMode

import driver
from ranks import place_on_host, reserve_port, run_ranks

GEMM = (8192, 8192)  # what DeepEP's tests multiply to pass the time


def _is_cuda(device):
    return str(device).startswith("cuda")


class _OnHost(TorchFunctionMode):
    """Calls that name CUDA as their device, on the host."""

    def __torch_function__(self, function, kinds, arguments=(), named=None):
        named = dict(named or {})
        if _is_cuda(named.get("device")):
            named["device"] = "cpu"
        if function is torch.randn and tuple(arguments[:1]) == (GEMM,):
            arguments = ((8, 8),)
        return function(*arguments, **named)


class _Event:
    def __init__(self, **_):
        pass

    def record(self, *_):
        pass

    def elapsed_time(self, _):
        return 1.0


def _as_bytes(tensor):
    return tensor.view(torch.uint8) if tensor.element_size() < 4 else tensor


def _put_in_place(rank, ranks, hosts, port):
    torch.cuda.set_device = lambda *_: None
    torch.cuda.synchronize = lambda *_: driver.call("cuStreamSynchronize", None)
    torch.cuda.get_device_name = lambda *_: "emulated"
    torch.cuda.Event = _Event
    set_device, start = torch.set_default_device, dist.init_process_group
    torch.set_default_device = lambda device: set_device("cpu" if _is_cuda(device) else device)

    def start_with_gloo(**named):
        named.pop("device_id", None)
        named["backend"] = "gloo"
        start(**named)
    dist.init_process_group = start_with_gloo
    gather, exchange = dist.all_gather_into_tensor, dist.all_to_all_single  # Gloo's compare shapes, and have fewer types
    dist.all_gather_into_tensor = lambda out, given, **named: gather(out.flatten(), given.flatten(), **named)
    dist.all_to_all_single = lambda out, given, *lengths: exchange(_as_bytes(out), _as_bytes(given), *lengths)
    os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = "127.0.0.1", str(port)
    share = ranks // hosts
    os.environ["RANK"], os.environ["WORLD_SIZE"] = str(rank // share), str(hosts)  # to DeepEP: of hosts
    torch.multiprocessing.spawn = lambda body, args, nprocs: body(rank % share, *args)


def _replace_timing(module):
    def call(function, *_, **__):
        function()
        return 1.0, 1.0, 1.0

    def call_kernels(function, kernel_names, num_kernels_per_period=1, **_):
        function()
        return [1.0 if num_kernels_per_period == 1 else [1.0] * num_kernels_per_period for _ in kernel_names]
    module.bench, module.bench_kineto = call, call_kernels


def run_file(rank, folder, file, ranks, hosts, port, arguments):
    """What a rank does. Raises what DeepEP's file raises."""
    place_on_host(rank, ranks, hosts)
    driver.use_gpu(rank)
    driver.wait_for_launches()
    torch.set_num_threads(1)
    from verbena.integrations import deep_ep as ours, rank_rows
    rank_rows.share_multiprocessors = ours.share_multiprocessors = lambda: 1  # a thread of an emulated GPU is a thread
    sys.path[:0] = [str(ours.find_folder()), str(pathlib.Path(folder, file).parent)]
    _put_in_place(rank, ranks, hosts, port)
    with _OnHost():
        if "elastic" in file:
            _lend_utilities(folder)
            import deep_ep.utils.testing as timing
        else:
            import utils as timing  # DeepEP's tests/utils.py
        _replace_timing(timing)
        sys.argv = [file, *arguments]
        runpy.run_path(str(pathlib.Path(folder, file)), run_name="__main__")


def _lend_utilities(folder):
    """Provides the functions that DeepEP's tests of ElasticBuffer import from other files of DeepEP."""
    import deep_ep.utils
    deep_ep.utils.__path__.append(str(pathlib.Path(folder, "deep_ep", "utils")))
    library = types.ModuleType("deep_ep._C")
    library.EventHandle = deep_ep.EventHandle
    sys.modules["deep_ep._C"] = deep_ep._C = library
    torch.compile = lambda *function, **_: function[0] if function else lambda function: function


def run_suite(folder, file, ranks, arguments, hosts=1):
    with reserve_port() as holder:
        run_ranks(ranks, run_file, folder, file, ranks, hosts, holder.getsockname()[1], ["--num-processes", str(ranks // hosts), *arguments])


if __name__ == "__main__":
    places = [int(one) for one in sys.argv[3].split("/")]
    run_suite(sys.argv[1], sys.argv[2], places[0], sys.argv[4:], *places[1:])
