"""Tests contexts over NCCL and NVSHMEM: which libraries are accepted, which are rejected, and which contexts a builder creates from them.
The libraries are stand-ins. Each test runs in a separate process, because a process loads each library only once."""
import ctypes

import pytest

import fake_libraries
import stand_ins
import verbena
from ranks import on_ranks, run_ranks
from verbena import builders, nccl, nvshmem
from verbena.native import load_backend_library
from verbena.torchcomms import TorchCommsSymmContextFactory as Factory

NCCL_VERSION = 22809


class _Buffer(stand_ins.Tensor):
    def __init__(self, address, length_bytes):
        super().__init__(bytes(length_bytes))
        self._address = address

    def data_ptr(self):
        return self._address


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """All libraries that there are to be."""
    folder = tmp_path_factory.mktemp("all") / "lib"
    fake_libraries.build_beside_verbena(folder, nccl=fake_libraries.NCCL_CONTEXTS, nvshmem=fake_libraries.NVSHMEM_CONTEXTS)
    fake_libraries.build(folder / "libnvshmem_host.so.3", fake_libraries.NVSHMEM_HOST % 1)
    fake_libraries.build(folder / "libnccl.so.2",
                         fake_libraries.make_nccl_source(NCCL_VERSION, *nccl.DEVICE_API, "ncclCommDump"))
    return folder


def _load_nccl(folder):
    """As PyTorch has."""
    return ctypes.CDLL(str(folder / "libnccl.so.2"))


@pytest.mark.parametrize("name", ["nccl", "ncclx", "nvshmem"])
@on_ranks(1)
def test_a_builder_makes_one_context_and_knows_its_memory(rank, folder, name, tmp_path):
    fake_libraries.look_in(folder)
    _load_nccl(folder)
    stand_ins.install_torch()
    builder = builders.make_builder(name, stand_ins.TorchCommWithHandle(tmp_path), 12345)
    context = builder.context
    fake = ctypes.CDLL(str(folder / f"libverbena_{name.removesuffix('x')}.so"))
    assert ctypes.c_size_t.in_dll(fake, "last_heap_bytes").value == 12345
    if name != "nvshmem":
        assert ctypes.c_void_p.in_dll(fake, "last_comm").value == 4242
    window = builder.allocate(4096)
    for buffer in (_Buffer(window.address, 4096), _Buffer(window.address + 4092, 4)):
        assert builder.build(buffer) == context.world.device_context
        assert builder.find_window(buffer).address == window.address
    for buffer in (_Buffer(window.address + 4, 4096), _Buffer(window.address + 4092, 8), _Buffer(1 << 40, 4)):
        with pytest.raises(ValueError, match=f"the backend {name} accepts .*as_tensor.builder.allocate"):
            builder.build(buffer)
        with pytest.raises(KeyError):
            builder.find_window(buffer)
    assert builder.context is context and ctypes.c_int.in_dll(fake, "count_contexts").value == 1
    builder.close()
    builder.close()
    assert context.is_closed
    with pytest.raises(KeyError):
        builder.find_window(buffer)
    assert ctypes.c_int.in_dll(fake, "count_contexts").value == 1


@on_ranks(1)
def test_nccl_takes_the_applications_buffer(rank, folder, tmp_path):
    fake_libraries.look_in(folder)
    _load_nccl(folder)
    builder = builders.make_builder("nccl", stand_ins.TorchCommWithHandle(tmp_path), 12345)
    own = _Buffer(1 << 40, 4096)
    with pytest.raises(ValueError, match="256 signals"):
        builder.build(own, signal_pad_size=1 << 20)
    address = builder.build(own)
    context = builder.context
    fake = ctypes.CDLL(str(folder / "libverbena_nccl.so"))
    assert [ctypes.c_size_t.in_dll(fake, name).value for name in
            ("last_comm", "last_buffer", "last_buffer_bytes", "last_heap_bytes")] == [4242, 1 << 40, 4096, 12345]
    assert address == context.world.device_context == builder.build(own) == builder.build(_Buffer((1 << 40) + 4092, 4))
    assert builder.build(_Buffer(builder.allocate(4096).address, 4096)) == address
    for other in (_Buffer(1 << 40, 4100), _Buffer((1 << 40) - 4, 8), _Buffer(1 << 41, 4)):
        with pytest.raises(ValueError, match="the backend nccl accepts"):
            builder.build(other)
    with pytest.raises(KeyError):
        builder.find_window(own)  # kernels use its own address
    assert ctypes.c_int.in_dll(fake, "count_contexts").value == 1
    builder.close()
    # Without one: another context.
    assert builder.allocate(4096) is not None
    with pytest.raises(ValueError, match="the backend nccl accepts"):
        builder.build(own)
    builder.close()


@on_ranks(1)
def test_a_context_of_a_communicator_by_its_address(rank, folder):
    fake_libraries.look_in(folder)
    address = nccl.create_nccl_symm_context_from_comm(4242, 1 << 40, 4096, 1024, 0, 0, 1)
    other = nccl._create_nccl_symm_context_from_comm(4343, 1 << 41, 4096, 1024, 0, 0, 1)
    assert address and other and address != other
    nccl.destroy_nccl_symm_context(address)
    with pytest.raises(KeyError):
        nccl.destroy_nccl_symm_context(address)
    with pytest.raises(ValueError, match="rank 1 of 2, but this process is rank 0 of 1 in the communicator"):
        nccl.create_nccl_symm_context_from_comm(4242, 1 << 40, 4096, 1024, 0, 1, 2)
    with pytest.raises(ValueError, match="256 signals"):
        nccl.create_nccl_symm_context_from_comm(4242, 1 << 40, 4096, 1 << 20, 0, 0, 1)
    nccl.destroy_nccl_symm_context(other)


@on_ranks(1)
def test_finalize_destroys_contexts_first(rank, folder, tmp_path):
    fake_libraries.look_in(folder)
    stand_ins.install_torch()
    _load_nccl(folder)
    first, second = (stand_ins.TorchCommWithHandle(tmp_path, backend="nccl") for _ in range(2))
    windows = [Factory.allocate(comm, 4096) for comm in (first, second)]
    first.finalize()
    assert first.is_final
    with pytest.raises(ValueError, match="closed"):
        windows[0].address
    assert windows[1].address and not hasattr(second, "is_final")
    Factory.destroy_contexts(second)
    second.finalize()
    assert second.is_final


@on_ranks(1)
def test_the_factory_keeps_a_context_of_each_backend(rank, folder, tmp_path):
    fake_libraries.look_in(folder)
    stand_ins.install_torch()
    _load_nccl(folder)
    comm = stand_ins.TorchCommWithHandle(tmp_path, backend="nccl")
    windows = [Factory.allocate(comm, 4096, backend) for backend in (0, verbena.Backend.NVSHMEM)]
    buffers = [_Buffer(window.address, 4096) for window in windows]
    contexts = [Factory.create_context(comm, buffers[0]), Factory.create_nvshmem_context(comm, buffers[1])]
    assert contexts[0] == Factory.create_nccl_context(comm, buffers[0]) and contexts[0] != contexts[1]
    assert [Factory.find_window(comm, buffer).address for buffer in buffers] == [buffer.data_ptr() for buffer in buffers]
    with pytest.raises(ValueError, match="the backend nccl accepts"):
        Factory.create_nccl_context(comm, buffers[1])
    for name in ("nccl", "nvshmem"):
        fake = ctypes.CDLL(str(folder / f"libverbena_{name}.so"))
        assert ctypes.c_int.in_dll(fake, "count_contexts").value == 1
    Factory.destroy_contexts(comm)
    for window in windows:
        with pytest.raises(ValueError, match="closed"):
            window.address
    with pytest.raises(KeyError):
        Factory.find_window(comm, buffers[0])


@on_ranks(1)
def test_what_the_library_says_is_told(rank, folder, tmp_path):
    fake_libraries.look_in(folder)
    stand_ins.install_torch()
    _load_nccl(folder)
    for name in ("nccl", "nvshmem"):
        with pytest.raises(verbena.VerbenaError, match="bootstrap: the pointer to the all-gather function is NULL") as caught:
            verbena.make_context(name, stand_ins.TorchCommWithHandle(tmp_path), 0)
        assert caught.value.result == verbena.Result.INVALID_ARGUMENT


class _TwoRanks(stand_ins.ProcessGroup):
    def exchange(self, mine):
        return [mine, mine]


@on_ranks(1)
def test_nvshmem_of_other_ranks_is_refused(rank, folder):
    fake_libraries.look_in(folder)
    stand_ins.install_torch()
    # The stand-in's context has one rank only.
    comm = _TwoRanks(None, 1, 2)
    with pytest.raises(ValueError, match="rank 1 of 2 in the communicator is PE 0 of 1"):
        verbena.make_context("nvshmem", comm)
    comm.exchange = lambda mine: [mine]
    with pytest.raises(verbena.VerbenaError) as caught:
        verbena.make_context("nvshmem", comm)
    assert "all_gather() returned parts" in str(caught.value.__cause__)
    assert not nvshmem.modules._has_context


def _take_the_loaded_ones(rank, folder, elsewhere):
    fake_libraries.look_in(elsewhere)
    loaded = ctypes.CDLL(str(folder / "libnvshmem_host.so.3"))
    assert loaded.mark() == 1 and nvshmem.load_host_library().mark() == 1
    with pytest.raises(verbena.BackendUnavailable, match="has not loaded libnccl.so.2"):
        nccl.NcclLibrary()
    _load_nccl(folder)
    assert nccl.NcclLibrary().version == (2, 28, 9)


def test_what_is_loaded_is_taken_and_nothing_second(folder, tmp_path):
    fake_libraries.build(tmp_path / "elsewhere/libnvshmem_host.so.3", fake_libraries.NVSHMEM_HOST % 2)
    run_ranks(1, _take_the_loaded_ones, folder, tmp_path / "elsewhere")


@on_ranks(1)
def test_nvshmem_that_is_not_loaded_is_found(rank, folder):
    fake_libraries.look_in(folder)
    assert nvshmem.load_host_library().mark() == 1


def _miss_libraries(rank, folder):
    fake_libraries.look_in(folder)
    with pytest.raises(verbena.BackendUnavailable, match="the backend nvshmem needs NVSHMEM 3: .*libnvshmem_host.so.3"):
        nvshmem.load_nvshmem()
    for backend, origin in ((verbena.Backend.NCCL, "VERBENA_NCCL_INCLUDE"), (verbena.Backend.NVSHMEM, "beside libverbena.so")):
        with pytest.raises(verbena.BackendUnavailable) as caught:
            load_backend_library(backend)
        name = f"libverbena_{backend.name.lower()}.so"
        assert str(folder / name) in str(caught.value) and origin in str(caught.value)


def test_a_missing_library_is_told_with_its_origin(tmp_path):
    fake_libraries.build_beside_verbena(tmp_path / "lib")
    run_ranks(1, _miss_libraries, tmp_path / "lib")


def _miss_what_it_needs(rank, folder):
    fake_libraries.look_in(folder)
    with pytest.raises(verbena.BackendUnavailable, match="the backend nccl: .*libverbena_nccl.so"):
        load_backend_library(verbena.Backend.NCCL)


def test_a_library_that_cannot_be_loaded_is_told(tmp_path):
    folder = tmp_path / "lib"
    fake_libraries.build_beside_verbena(folder)
    (folder / "libverbena_nccl.so").write_bytes(b"no library")
    run_ranks(1, _miss_what_it_needs, folder)


def test_a_backend_that_there_is_not():
    with pytest.raises(ValueError, match="'gloo' is not a backend of contexts; the backends are verbena, nccl, ncclx, nvshmem"):
        verbena.make_builder("gloo", stand_ins.TorchComm())
    with pytest.raises(ValueError, match="not a backend of contexts"):
        verbena.make_builder(verbena.Backend.DEFAULT, stand_ins.TorchComm())


# ---- Modules that hold NVSHMEM's device library ----

@on_ranks(1)
def test_a_module_is_prepared_once(rank, folder):
    fake_libraries.look_in(folder)
    nvshmem.load_nvshmem()
    fake = ctypes.CDLL(str(folder / "libverbena_nvshmem.so"))
    result, count = ctypes.c_int.in_dll(fake, "prepare_result"), ctypes.c_int.in_dll(fake, "count_prepared")
    keeper = nvshmem.ModuleKeeper()
    # What has to be is prepared once, and on its own GPU.
    keeper.add(11, device=0, is_needed=True)
    keeper.add(12, device=1, is_needed=True)
    assert keeper.has_work(0)
    result.value = 5
    with pytest.raises(verbena.VerbenaError):
        keeper.prepare(0)
    result.value = 0
    assert keeper.has_work(0) and count.value == 0
    keeper.prepare(0)
    keeper.prepare(0)
    assert not keeper.has_work(0) and keeper.has_work(1)
    assert (count.value, ctypes.c_void_p.in_dll(fake, "last_module").value) == (1, 11)
    # What may be waits for a context.
    keeper.add(13, device=0, is_needed=False)
    assert not keeper.has_work(0)
    keeper.note_context()
    assert keeper.has_work(0)
    keeper.prepare(0)
    assert (count.value, ctypes.c_void_p.in_dll(fake, "last_module").value) == (2, 13)
