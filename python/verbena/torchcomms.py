"""Contexts from TorchComms communicators."""
from typing import Any

from verbena.builders import SymmContextBuilder, VerbenaSymmContextBuilder, make_builder
from verbena.communicators import TorchCommsCommunicator
from verbena.constants import Backend
from verbena.window import SymmetricWindow

SIGNAL_PAD_BYTES = 1024
_NAMES = [one.name.lower() for one in Backend if one != Backend.DEFAULT]


class TorchCommsSymmContextFactory:
    """Each context is the address that kernels take as ctx_ptr. It lives until destroy_contexts(comm), which all ranks must
    call before comm.finalize(), because that does not do it."""

    # By id of the communicator, which is kept so that no other object gets its id; builders by names of backends.
    _builders: dict[int, tuple[Any, dict[str, SymmContextBuilder]]] = {}

    @staticmethod
    def create_context(comm: Any, buffer: Any, signal_pad_size: int = SIGNAL_PAD_BYTES,
                       backend: Backend | int = Backend.DEFAULT) -> int:
        """Collective. Uses the named backend, or the communicator's own. `buffer` is memory from `allocate`; the backend
        verbena also accepts other memory from cuMemCreate."""
        return _find_builder(comm, _choose(comm, backend)).build(buffer, signal_pad_size)

    @staticmethod
    def allocate(comm: Any, length_bytes: int, backend: Backend | int = Backend.DEFAULT) -> SymmetricWindow:
        """Collective: memory for buffers of that backend, for torch.as_tensor(window, device="cuda").view(dtype)."""
        return _find_builder(comm, _choose(comm, backend)).allocate(length_bytes)

    @staticmethod
    def create_verbena_context(comm: Any, buffer: Any, signal_pad_size: int = SIGNAL_PAD_BYTES) -> int:
        """Collective; over a communicator of any backend."""
        return TorchCommsSymmContextFactory.create_context(comm, buffer, signal_pad_size, Backend.VERBENA)

    @staticmethod
    def create_nccl_context(comm: Any, buffer: Any, signal_pad_size: int = SIGNAL_PAD_BYTES) -> int:
        """Collective."""
        return TorchCommsSymmContextFactory.create_context(comm, buffer, signal_pad_size, Backend.NCCL)

    @staticmethod
    def create_nvshmem_context(comm: Any, buffer: Any, signal_pad_size: int = SIGNAL_PAD_BYTES) -> int:
        """Collective; NVSHMEM is initialized."""
        return TorchCommsSymmContextFactory.create_context(comm, buffer, signal_pad_size, Backend.NVSHMEM)

    @staticmethod
    def find_window(comm: Any, buffer: Any) -> SymmetricWindow:
        """The window of a buffer; kernels use its address."""
        _, builders = TorchCommsSymmContextFactory._builders[id(comm)]
        for builder in builders.values():
            try:
                return builder.find_window(buffer)
            except KeyError:
                pass
        raise KeyError("the buffer is in no window of this communicator")

    @staticmethod
    def release(comm: Any, buffer: Any) -> None:
        """Collective: frees the window of the application's memory (backend verbena). To be called before the memory is
        freed."""
        _, builders = TorchCommsSymmContextFactory._builders[id(comm)]
        builder = builders.get(Backend.VERBENA.name.lower())
        if not isinstance(builder, VerbenaSymmContextBuilder):
            raise KeyError("the buffer is in no window of this communicator")
        builder.release(buffer)

    @staticmethod
    def destroy_contexts(comm: Any) -> None:
        """Collective."""
        _, builders = TorchCommsSymmContextFactory._builders.pop(id(comm), (None, {}))
        for builder in builders.values():
            builder.close()


def _choose(comm: Any, backend: Backend | int) -> str:
    chosen = Backend(getattr(backend, "value", backend))
    own = TorchCommsCommunicator(comm).backend
    if chosen in (Backend.NCCL, Backend.NCCLX):
        if own not in ("nccl", "ncclx"):
            raise RuntimeError(f"NCCL SymmContext requires NCCL/NCCLx backend, got: {own}")
        return own
    name = own if chosen == Backend.DEFAULT else chosen.name.lower()
    if name not in _NAMES:
        raise RuntimeError(f"Unsupported backend for SymmContext: {name}")
    return name


def _find_builder(comm: Any, name: str) -> SymmContextBuilder:
    _, builders = TorchCommsSymmContextFactory._builders.setdefault(id(comm), (comm, {}))
    if name not in builders:
        builders[name] = make_builder(name, comm)
    return builders[name]
