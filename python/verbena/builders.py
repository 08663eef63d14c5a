"""Builders, which create contexts over a communicator of the application. All builders have the same interface."""
import abc
import importlib
from typing import Any

from verbena.backends import BACKENDS
from verbena.communicators import Communicator, adapt
from verbena.constants import Backend
from verbena.context import SymmetricContext
from verbena.window import SymmetricWindow

SIGNAL_BYTES = 8
MAX_SIGNALS = 256
HEAP_BYTES = 256 << 20


class SymmContextBuilder(abc.ABC):
    """Base class of the builders. A builder creates one context, at first use, for all buffers of a communicator."""

    name: str

    def __init__(self, comm: Any, heap_bytes: int = HEAP_BYTES) -> None:
        """Creates a builder. Not collective.

        Args:
            comm: a process group of torch.distributed or a TorchComms communicator, which must outlive the builder.
            heap_bytes: maximum size of all windows together, in bytes. Only the backends nccl, ncclx and nvshmem use this limit.
        """
        self._communicator: Communicator = adapt(comm)
        self._context: SymmetricContext | None = None
        self.heap_bytes = heap_bytes

    @property
    def context(self) -> SymmetricContext:
        """The context. The first access creates the context, and is collective. To close the context, call its close() or the builder's
        close()."""
        if self._context is None:
            self._context = self._make_context()
        return self._context

    def allocate(self, length_bytes: int) -> SymmetricWindow:
        """Allocates a window of `length_bytes` for buffers. torch.as_tensor(window, device="cuda").view(dtype) returns a tensor in the
        window. Collective."""
        return self.context.allocate(length_bytes)

    def build(self, buffer: Any, signal_pad_size: int = MAX_SIGNALS * SIGNAL_BYTES) -> int:
        """Returns the address of the device context, a SymmContext in GPU memory. Kernels that use `buffer` take this address as ctx_ptr.
        The buffer is a tensor in a window of the context, or in memory of the application if the backend supports such buffers. The first
        call of build() is collective. Later calls are collective only if the buffer is in memory of the application."""
        check_signal_pad(signal_pad_size)
        address, length_bytes = _measure(buffer)
        if self._context is None:
            self._context = self._make_context_with(address, length_bytes)
        if self._find(address, length_bytes) is None:
            self._admit(address, length_bytes)
        return self.context.world.device_context

    def find_window(self, buffer: Any) -> SymmetricWindow:
        """Returns the window that contains the buffer. If the buffer is in memory of the application, kernels accept the buffer's address
        and the window's address. The window's address is faster."""
        window = None if self._context is None else self._find(*_measure(buffer))
        if window is None:
            raise KeyError("the buffer is outside every window of this builder. Allocate the buffer by allocate(), or pass it to build() "
                           "first")
        return window

    def close(self) -> None:
        """Closes the context. Collective."""
        context, self._context = self._context, None
        if context is not None and not context.is_closed:
            context.close()

    @abc.abstractmethod
    def _make_context(self) -> SymmetricContext: ...

    def _make_context_with(self, address: int, length_bytes: int) -> SymmetricContext:
        """Creates the context in the first call of build(). A backend may include the buffer of this call in its heap."""
        return self._make_context()

    def _find(self, address: int, length_bytes: int) -> SymmetricWindow | None:
        """Returns the window that contains the whole buffer, or None. Ignores the addresses at which the application registered memory."""
        window = self.context.find_window(address)
        if window is None or not 0 <= address - window.address <= window.length_bytes - length_bytes:
            return None
        return window

    def _admit(self, address: int, length_bytes: int) -> None:
        raise ValueError(f"the backend {self.name} accepts only buffers in its own windows, but the buffer ({length_bytes} bytes "
                         f"at {address:#x}) is outside these windows. Create the buffer with torch.as_tensor(builder.allocate(bytes), "
                         'device="cuda")')


class VerbenaSymmContextBuilder(SymmContextBuilder):
    """Creates contexts of Verbena's own symmetric memory. Ranks find each other through the communicator's all-gather.

    A buffer may also be in memory of the application. In this case, every call of build() is collective, because the allocator of any rank
    may have replaced the memory at this address since the last call."""

    name = "verbena"

    def __init__(self, comm: Any, heap_bytes: int = HEAP_BYTES) -> None:
        super().__init__(comm, heap_bytes)
        self._registered: dict[int, SymmetricWindow] = {}

    def find_window(self, buffer: Any) -> SymmetricWindow:
        address, length_bytes = _measure(buffer)
        window = None if self._context is None else self._context.find_window(address)
        if window is None or window.length_bytes < length_bytes:
            raise KeyError("the buffer is outside every window of this builder. Allocate the buffer by allocate(), or pass it to build() "
                           "first")
        return window

    def release(self, buffer: Any) -> None:
        """Frees the window that build() created for memory of the application. Call release() before freeing the memory. Collective."""
        window = self._registered.pop(self.find_window(buffer).handle, None)
        if window is None:
            raise KeyError("release() cannot free the buffer, because the buffer is in a window from allocate(). Free that window instead")
        window.free()

    def close(self) -> None:
        """Closes the context. Collective."""
        self._registered.clear()
        super().close()

    def _make_context(self) -> SymmetricContext:
        ranks = self._communicator
        return SymmetricContext.from_all_gather(ranks.all_gather, ranks.rank, ranks.size)

    def _admit(self, address: int, length_bytes: int) -> None:
        window = self.context.register_memory(address, length_bytes)
        if window.handle in self._registered:
            window.free()  # the library counts registrations of the same memory; one per buffer is enough
        else:
            self._registered[window.handle] = window


def check_signal_pad(length_bytes: int) -> None:
    """Raises ValueError if a signal pad of `length_bytes` has more signals than a team. Kernels use the signals of the team, so the pad
    itself needs no memory."""
    if length_bytes > MAX_SIGNALS * SIGNAL_BYTES:
        raise ValueError(f"a signal pad of {length_bytes} bytes is too large, because a team has {MAX_SIGNALS} signals of {SIGNAL_BYTES} "
                         "bytes")


def make_builder(backend: Backend | int | str, comm: Any, heap_bytes: int = HEAP_BYTES) -> SymmContextBuilder:
    """Returns a builder for a backend, such as "nccl", Backend.NCCL or BACKEND_NCCL."""
    value = getattr(backend, "value", backend)
    for one, row in BACKENDS.items():
        if value in (one, one.name.lower()):
            builder: SymmContextBuilder = getattr(importlib.import_module(row.module), row.builder)(comm, heap_bytes)
            return builder
    names = ", ".join(one.name.lower() for one in BACKENDS)
    raise ValueError(f"{backend!r} is not a backend of contexts; the backends are {names}")


def make_context(backend: Backend | int | str, comm: Any, heap_bytes: int = HEAP_BYTES) -> SymmetricContext:
    """Creates a context of the backend over the communicator. The caller must close the context. Collective."""
    return make_builder(backend, comm, heap_bytes).context


def _measure(buffer: Any) -> tuple[int, int]:
    """Returns a tensor's address and length in bytes."""
    if not buffer.is_contiguous():
        raise ValueError("a symmetric buffer must be a contiguous tensor. Call contiguous() first")
    return int(buffer.data_ptr()), int(buffer.numel() * buffer.element_size())
