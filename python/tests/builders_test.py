"""Tests contexts over a communicator of the application. TorchComms and PyTorch are stand-ins; the contexts are real."""
import pytest

import fake_libraries
import stand_ins
from ranks import run_ranks
from verbena import communicators, nccl
from verbena.builders import VerbenaSymmContextBuilder
from verbena.nccl import NCCLSymmContextBuilder, NCCLxSymmContextBuilder
from verbena.torchcomms import TorchCommsSymmContextFactory as Factory


def _share_a_process_group(rank, folder):
    stand_ins.install_torch()
    group = stand_ins.ProcessGroup(folder, rank, 2)
    builder = VerbenaSymmContextBuilder(group)
    try:
        assert (builder.context.rank, builder.context.size) == (rank, 2) and builder.context is builder.context
    finally:
        builder.close()
    return group.rounds > 0


def test_a_context_over_a_process_group(tmp_path):
    assert run_ranks(2, _share_a_process_group, tmp_path) == [True, True]


def test_a_native_handle_is_taken_where_it_is_told():
    assert communicators.adapt(stand_ins.TorchCommWithHandle()).find_native_handle() == 4242
    with pytest.raises(AttributeError, match=r"neither get_native_handle\(\) nor get_backend_impl\(\)"):
        communicators.adapt(stand_ins.TorchComm()).find_native_handle()
    with pytest.raises(AttributeError, match=r"does not expose get_backend\(\)"):
        communicators.adapt(object())


def test_a_process_groups_native_handle():
    stand_ins.install_torch()
    group = stand_ins.ProcessGroup(None, 0, 1)
    group.handle = 77
    assert communicators.adapt(group).find_native_handle() == 77
    group.handle = 0
    with pytest.raises(RuntimeError, match="creates the ncclComm_t"):
        communicators.adapt(group).find_native_handle()


def test_a_backend_is_chosen_and_checked():
    buffer = stand_ins.Tensor(bytes(8))
    with pytest.raises(RuntimeError, match="Unsupported backend for SymmContext: gloo"):
        Factory.create_context(stand_ins.TorchComm(backend="gloo"), buffer)
    with pytest.raises(RuntimeError, match="requires NCCL/NCCLx backend, got: gloo"):
        Factory.create_nccl_context(stand_ins.TorchComm(backend="gloo"), buffer)
    with pytest.raises(AttributeError, match="no access to the ncclComm_t"):
        Factory.create_context(stand_ins.TorchComm(backend="nccl"), buffer)
    with pytest.raises(RuntimeError, match="Unsupported backend for SymmContext: gloo"):
        Factory.allocate(stand_ins.TorchComm(backend="gloo"), 8)


def test_buffers_and_pads_are_checked():
    builder = VerbenaSymmContextBuilder(stand_ins.TorchComm())
    with pytest.raises(ValueError, match="256 signals"):
        builder.build(stand_ins.Tensor(bytes(8)), signal_pad_size=4096)
    with pytest.raises(ValueError, match="contiguous"):
        builder.build(stand_ins.Tensor(bytes(8), is_contiguous=False))


@pytest.fixture
def make_nccl(tmp_path):
    """make(version, names...)"""
    def make(version, *names):
        path = tmp_path / f"libnccl-{version}-{len(names)}.so"
        return nccl.NcclLibrary(fake_libraries.build(path, fake_libraries.make_nccl_source(version, *names)))
    return make


def test_what_nccl_lacks_is_named(make_nccl, tmp_path):
    comm = stand_ins.TorchCommWithHandle()
    with pytest.raises(nccl.BackendUnavailable, match="needs NCCL 2.28 or newer: .* has version 2.27.3"):
        NCCLSymmContextBuilder(comm, library=make_nccl(22703))
    with pytest.raises(nccl.BackendUnavailable, match=r"\(2.28.9\) has no ncclDevCommCreate, ncclMemAlloc"):
        NCCLSymmContextBuilder(comm, library=make_nccl(22809, "ncclCommWindowRegister"))
    builder = NCCLSymmContextBuilder(comm, library=make_nccl(22809, *nccl.DEVICE_API))
    assert builder.native_handle == 4242
    with pytest.raises(nccl.BackendUnavailable, match="needs NCCL 2.28 or newer: .*nowhere.so"):
        nccl.NcclLibrary(str(tmp_path / "nowhere.so"))


def test_ncclx_is_known_by_what_it_exports(make_nccl):
    comm = stand_ins.TorchCommWithHandle()
    with pytest.raises(nccl.BackendUnavailable, match="has no ncclAllReduceSparseBlock or ncclCommDump"):
        NCCLxSymmContextBuilder(comm, library=make_nccl(22809, *nccl.DEVICE_API))
    builder = NCCLxSymmContextBuilder(comm, library=make_nccl(22809, *nccl.DEVICE_API, "ncclCommDump"))
    assert builder._detect_ncclx_features() == nccl.NcclxFeature.COMM_DUMP
