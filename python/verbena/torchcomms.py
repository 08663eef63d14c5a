"""Contexts from TorchComms communicators."""
import functools
from collections.abc import Callable
from typing import Any

from verbena.builders import SymmContextBuilder, VerbenaSymmContextBuilder, make_builder
from verbena.communicators import TorchCommsCommunicator
from verbena.constants import Backend
from verbena.window import SymmetricWindow

SIGNAL_PAD_BYTES = 1024
_NAMES = [one.name.lower() for one in Backend if one != Backend.DEFAULT]


class TorchCommsSymmContextFactory:
    """Creates contexts from TorchComms communicators. A context is returned as the address that kernels take as ctx_ptr. The
    address is valid until destroy_contexts(comm) or comm.finalize(), which calls destroy_contexts()."""

    # Maps id(communicator) to the communicator and its builders by backend name. The reference to the communicator ensures that no other
    # object gets the same id.
    _builders: dict[int, tuple[Any, dict[str, SymmContextBuilder]]] = {}

    @staticmethod
    def create_context(comm: Any, buffer: Any, signal_pad_size: int = SIGNAL_PAD_BYTES,
                       backend: Backend | int = Backend.DEFAULT) -> int:
        """Creates a context of the named backend, by default of the communicator's own backend. Collective.

        Args:
            comm: a TorchComms communicator.
            buffer: a tensor in memory that allocate() returned. The `verbena` backend also accepts other memory from cuMemCreate.
            signal_pad_size: size in bytes of the signals that kernels use; at most 2,048, the size of a team's signals.
            backend: DEFAULT for the communicator's own backend.
        """
        return _find_builder(comm, _choose(comm, backend)).build(buffer, signal_pad_size)

    @staticmethod
    def allocate(comm: Any, length_bytes: int, backend: Backend | int = Backend.DEFAULT) -> SymmetricWindow:
        """Allocates a window of `length_bytes` for buffers of a backend. torch.as_tensor(window, device="cuda").view(dtype)
        returns a tensor in the window. Collective."""
        return _find_builder(comm, _choose(comm, backend)).allocate(length_bytes)

    @staticmethod
    def create_verbena_context(comm: Any, buffer: Any, signal_pad_size: int = SIGNAL_PAD_BYTES) -> int:
        """Creates a context of Verbena's symmetric memory over a communicator of any backend. Collective."""
        return TorchCommsSymmContextFactory.create_context(comm, buffer, signal_pad_size, Backend.VERBENA)

    @staticmethod
    def create_nccl_context(comm: Any, buffer: Any, signal_pad_size: int = SIGNAL_PAD_BYTES) -> int:
        """Creates a context over NCCL. Collective."""
        return TorchCommsSymmContextFactory.create_context(comm, buffer, signal_pad_size, Backend.NCCL)

    @staticmethod
    def create_nvshmem_context(comm: Any, buffer: Any, signal_pad_size: int = SIGNAL_PAD_BYTES) -> int:
        """Creates a context over NVSHMEM. Initialises NVSHMEM if needed. Collective."""
        return TorchCommsSymmContextFactory.create_context(comm, buffer, signal_pad_size, Backend.NVSHMEM)

    @staticmethod
    def find_window(comm: Any, buffer: Any) -> SymmetricWindow:
        """Returns the window that contains the buffer. Kernels run fastest with the window's address."""
        _, builders = TorchCommsSymmContextFactory._builders[id(comm)]
        for builder in builders.values():
            try:
                return builder.find_window(buffer)
            except KeyError:
                pass
        raise KeyError("the buffer is outside every window of this communicator. Allocate the buffer by allocate(), or create a context "
                       "with it first")

    @staticmethod
    def release(comm: Any, buffer: Any) -> None:
        """Frees the window that create_context() made for memory of the application (backend verbena). Call release() before freeing the
        memory. Collective."""
        _, builders = TorchCommsSymmContextFactory._builders[id(comm)]
        builder = builders.get(Backend.VERBENA.name.lower())
        if not isinstance(builder, VerbenaSymmContextBuilder):
            raise KeyError("the buffer is outside every window of this communicator. Allocate the buffer by allocate(), or create a "
                           "context with it first")
        builder.release(buffer)

    @staticmethod
    def destroy_contexts(comm: Any) -> None:
        """Destroys all contexts of the communicator. Collective."""
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
    builder = TorchCommsSymmContextFactory._builders.get(id(comm), (None, {}))[1].get(name)
    if builder is None:
        builder = make_builder(name, comm)
        TorchCommsSymmContextFactory._builders.setdefault(id(comm), (comm, {}))[1][name] = builder
        _destroy_contexts_in_finalize(type(comm))
    return builder


def _destroy_contexts_in_finalize(kind: type) -> None:
    """Makes finalize() of all communicators of a class destroy their contexts first. Patches the class, because the objects are
    written in C++ and may not accept attributes."""
    if not hasattr(kind, "finalize") or hasattr(kind.finalize, "destroys_contexts"):
        return
    finalize: Callable[..., Any] = kind.finalize

    @functools.wraps(finalize)
    def destroy_contexts_and_finalize(comm: Any, *arguments: Any, **named: Any) -> Any:
        TorchCommsSymmContextFactory.destroy_contexts(comm)
        return finalize(comm, *arguments, **named)

    destroy_contexts_and_finalize.destroys_contexts = True  # type: ignore[attr-defined]
    kind.finalize = destroy_contexts_and_finalize
