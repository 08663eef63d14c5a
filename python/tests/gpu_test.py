"""Tests windows in GPU memory. A stand-in for CUDA's driver has two GPUs, and accesses of the CPU to their memory fault. Each rank is a
process with one of the two GPUs."""
import ctypes
import pathlib
import sys
import types

import pytest

import driver
import stand_ins
import verbena
from ranks import on_ranks, run_ranks
from verbena.mesh import create_mesh_teams
from verbena.torchcomms import TorchCommsSymmContextFactory as Factory

LENGTH_BYTES = 3 << 20
KINDS = ("barrier", "signal", "wait", "put", "get", "quiet")


class _GpuTensor(stand_ins.Tensor):
    def __init__(self, address):
        super().__init__(bytes(LENGTH_BYTES))
        self._address = address

    def data_ptr(self):
        return self._address


@on_ranks(2)
def test_windows_in_gpu_memory(rank):
    with driver.open_context(rank) as context, context.allocate(LENGTH_BYTES) as window:
        assert window.is_on_gpu
        assert window.__cuda_array_interface__ == {"shape": (LENGTH_BYTES,), "typestr": "|u1",
                                                   "data": (window.address, False), "version": 3}
        with pytest.raises(ValueError, match="in GPU memory"):
            window.host_view()
        driver.write(window.peer_address(1 - rank) + 5, b"from %d" % rank)
        context.barrier()
        assert driver.read(window.address + 5, 6) == b"from %d" % (1 - rank)


@on_ranks(2)
def test_a_tensor_becomes_a_window(rank, tmp_path):
    stand_ins.install_torch()
    driver.use_gpu(rank)
    comm = stand_ins.TorchComm(tmp_path, rank, 2)
    buffer = _GpuTensor(driver.allocate(rank, LENGTH_BYTES))
    driver.write(buffer.data_ptr() + 9, b"rank %d" % rank)
    pointer = Factory.create_verbena_context(comm, buffer)
    window = Factory.find_window(comm, buffer)
    assert pointer == Factory.create_context(comm, buffer, backend=4)
    assert window.handle == Factory.find_window(comm, buffer).handle
    window = Factory.find_window(comm, buffer)
    assert window.address != buffer.data_ptr() and window.length_bytes == LENGTH_BYTES
    assert driver.read(window.address + 9, 6) == b"rank %d" % rank
    assert driver.read(window.peer_address(1 - rank) + 9, 6) == b"rank %d" % (1 - rank)
    Factory.destroy_contexts(comm)
    Factory.destroy_contexts(comm)
    with pytest.raises(ValueError, match="closed"):
        window.address
    assert driver.read(buffer.data_ptr() + 9, 6) == b"rank %d" % rank


@on_ranks(2)
def test_a_window_follows_the_allocation(rank, tmp_path):
    stand_ins.install_torch()
    driver.use_gpu(rank)
    comm = stand_ins.TorchComm(tmp_path, rank, 2)
    buffer = _GpuTensor(driver.allocate(rank, LENGTH_BYTES))
    Factory.create_verbena_context(comm, buffer)
    first = Factory.find_window(comm, buffer).address
    # As an expandable segment that is unmapped and mapped again, on one rank alone.
    if rank == 0:
        driver.map_anew(rank, buffer.data_ptr(), LENGTH_BYTES)
    driver.write(buffer.data_ptr() + 9, b"late %d" % rank)
    Factory.create_verbena_context(comm, buffer)
    second = Factory.find_window(comm, buffer)
    assert second.address != first, "what is there now has a window of its own, on both ranks"
    assert driver.read(second.address + 9, 6) == b"late %d" % rank
    assert driver.read(second.peer_address(1 - rank) + 9, 6) == b"late %d" % (1 - rank)
    Factory.release(comm, buffer)
    with pytest.raises(KeyError):
        Factory.find_window(comm, buffer)
    Factory.create_verbena_context(comm, buffer)
    assert driver.read(Factory.find_window(comm, buffer).address + 9, 6) == b"late %d" % rank
    Factory.destroy_contexts(comm)


# ---- Calls on streams: what their kernel is launched with (device/symm/stream_call.h) ----

class _Call(ctypes.Structure):
    _fields_ = [("kind", ctypes.c_uint32), ("number", ctypes.c_uint32), ("peer", ctypes.c_int32),
                ("operation", ctypes.c_uint32), ("value", ctypes.c_uint64), ("destination", ctypes.c_uint64),
                ("source", ctypes.c_uint64), ("length_bytes", ctypes.c_uint64)]

    def describe(self):
        return {name: getattr(self, name) for name, _ in self._fields_[1:] if getattr(self, name)}


_Capture = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_char_p, ctypes.c_uint, ctypes.c_uint, ctypes.POINTER(ctypes.c_void_p))
_Run = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class _Launcher(ctypes.Structure):
    """Notes (context, call, blocks) of each launch."""
    _fields_ = [("capture", _Capture), ("run", _Run)]

    def __init__(self):
        super().__init__(_Capture(self._capture), _Run(lambda captured: None))
        self.launches = []

    def _capture(self, name, blocks, threads, parameters):
        call = ctypes.cast(parameters[1], ctypes.POINTER(_Call))[0]
        context = ctypes.cast(parameters[0], ctypes.POINTER(ctypes.c_uint64))[0]
        self.launches.append((context, KINDS[call.kind], call.describe(), blocks))
        return 1


class _Stream:
    """As torch.cuda.Stream is to us."""

    def __init__(self):
        stream = ctypes.c_void_p()
        driver.call("cuStreamCreateWithPriority", ctypes.byref(stream), 0, 0)
        self.cuda_stream = stream.value


@on_ranks(2)
def test_calls_on_streams(rank):
    driver.use_gpu(rank)
    launcher, stream = _Launcher(), _Stream()
    driver.call("fake_set_launcher", ctypes.byref(launcher))
    with verbena.SymmetricContext.from_environment() as context, context.allocate(LENGTH_BYTES) as window:
        world, peer, begin = context.world, 1 - rank, window.address
        world.barrier(7, stream)
        world.signal(9, peer, -1, stream=stream)
        world.wait(9, -1, verbena.SignalCompare.NE, stream.cuda_stream)
        world.put(begin, _GpuTensor(begin), peer, stream)
        world.get((begin + 64, 100), begin, peer, stream)
        # PyTorch's current stream, where PyTorch is loaded.
        sys.modules["torch"] = stand_ins.make_torch_with_stream(stream)
        world.quiet()
        with context.create_workspace(world, 0, 1) as workspace:
            workspace.team.barrier(1, stream)
            own = workspace.device_context
        copied = {"peer": peer} if peer else {}
        assert [launch[1:] for launch in launcher.launches] == [
            ("barrier", {"number": 7}, 1),
            ("signal", {"number": 9, "operation": int(verbena.SignalOperation.ADD), "value": 2**64 - 1, **copied}, 1),
            ("wait", {"number": 9, "operation": int(verbena.SignalCompare.NE), "value": 2**64 - 1}, 1),
            ("put", {"destination": begin, "source": begin, "length_bytes": LENGTH_BYTES, **copied}, 32),
            ("get", {"destination": begin + 64, "source": begin, "length_bytes": 100, **copied}, 1),
            ("quiet", {}, 1),
            ("barrier", {"number": 1}, 1)]
        assert {launch[0] for launch in launcher.launches[:-1]} == {world.device_context}
        assert launcher.launches[-1][0] == own
        for call, what in ((lambda: world.barrier(512, stream), "barrier 512 does not exist"),
                           (lambda: world.signal(256, 0, stream=stream), "signal 256 does not exist"),
                           (lambda: world.signal(0, 2, stream=stream), "rank 2 does not exist"),
                           (lambda: world.put(4096, (begin, 8), 0, stream), "is not inside a window"),
                           (lambda: world.put(begin, (begin, 1 << 50), 0, stream), "is not inside a window")):
            with pytest.raises(verbena.VerbenaError, match=what):
                call()
        with pytest.raises(ValueError, match="contiguous"):
            world.put(begin, stand_ins.Tensor(bytes(8), is_contiguous=False), 0, stream)
        assert len(launcher.launches) == 7
        # The context waits for its kernels: the notes' functions have to be there until then.
        driver.call("cuStreamSynchronize", ctypes.c_void_p(stream.cuda_stream))


@on_ranks(2)
def test_the_mesh_example_puts_signals_and_waits(rank):
    path = pathlib.Path(__file__).parents[1] / "examples/device_mesh.py"
    module = types.ModuleType("device_mesh")
    exec(compile(path.read_text(), str(path), "exec"), module.__dict__)
    driver.use_gpu(rank)
    launcher, stream = _Launcher(), _Stream()
    driver.call("fake_set_launcher", ctypes.byref(launcher))
    torch = stand_ins.make_torch_with_stream(stream)
    with verbena.SymmetricContext.from_environment() as context, context.allocate(2 * LENGTH_BYTES) as window:
        team = create_mesh_teams(context, stand_ins.DeviceMesh(rank, (1, 2), ("column", "row")))["row"]
        module.pass_on(torch, team, _GpuTensor(window.address), window.address + LENGTH_BYTES)
        driver.call("cuStreamSynchronize", ctypes.c_void_p(stream.cuda_stream))
    peers = [call.get("peer", 0) for _, _, call, _ in launcher.launches]
    assert [kind for _, kind, _, _ in launcher.launches] == ["put", "signal", "wait"]
    assert peers[:2] == [1 - rank] * 2


# ---- Pools ----

def _allocate_from_a_pool(rank):
    stand_ins.install_torch_pools()
    with driver.open_context(rank) as context, context.create_pool(1 << 20) as pool:
        first = pool.mem_pool.take(1000, rank)
        second = pool.mem_pool.take(4096, rank)
        assert pool.mem_pool is pool.mem_pool
        window = pool.window
        assert context.find_window(first).handle == context.find_window(second + 4095).handle == window.handle
        offsets = first - window.address, second - window.address
        pool.check()
        assert pool.mem_pool.take(2 << 20, rank) is None and pool.max_used_bytes >= 5096
        pool.mem_pool.give_back(first)
        assert pool.mem_pool.take(512, rank) == first
        pool.check()
        # Not what the other ranks do.
        if rank == 0:
            pool.mem_pool.give_back(second)
        with pytest.raises(verbena.VerbenaError, match="alike|differ"):
            pool.check()
        freed = pool
        return_ = offsets
    with pytest.raises(ValueError, match="freed"):
        freed.index
    return return_


def test_a_pool_gives_symmetric_memory():
    first, second = run_ranks(2, _allocate_from_a_pool)
    assert first == second and first[0] != first[1]
