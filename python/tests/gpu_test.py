"""Windows in GPU memory, over a stand-in for CUDA's driver with two GPUs whose memory faults when the CPU touches it; a
rank is a process with one of them."""
import pytest

import driver
import stand_ins
import verbena
from ranks import run_ranks
from verbena.torchcomms import TorchCommsSymmContextFactory as Factory

LENGTH_BYTES = 3 << 20


class _GpuTensor(stand_ins.Tensor):
    def __init__(self, address):
        super().__init__(bytes(LENGTH_BYTES))
        self._address = address

    def data_ptr(self):
        return self._address


def _use_windows(rank):
    driver.use_gpu(rank)
    with verbena.SymmetricContext.from_environment() as context, context.allocate(LENGTH_BYTES) as window:
        assert window.is_on_gpu
        assert window.__cuda_array_interface__ == {"shape": (LENGTH_BYTES,), "typestr": "|u1",
                                                   "data": (window.address, False), "version": 3}
        with pytest.raises(ValueError, match="in GPU memory"):
            window.host_view()
        driver.write(window.peer_address(1 - rank) + 5, b"from %d" % rank)
        context.barrier()
        assert driver.read(window.address + 5, 6) == b"from %d" % (1 - rank)


def test_windows_in_gpu_memory():
    run_ranks(2, _use_windows)


def _register_a_tensor(rank, folder):
    stand_ins.install_torch()
    driver.use_gpu(rank)
    comm = stand_ins.TorchComm(folder, rank, 2)
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


def _follow_the_allocation(rank, folder):
    stand_ins.install_torch()
    driver.use_gpu(rank)
    comm = stand_ins.TorchComm(folder, rank, 2)
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


def test_a_window_follows_the_allocation(tmp_path):
    run_ranks(2, _follow_the_allocation, tmp_path)


def test_a_tensor_becomes_a_window(tmp_path):
    run_ranks(2, _register_a_tensor, tmp_path)
