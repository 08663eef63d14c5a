"""Builders make contexts over communicators of the application, without a second communicator. All have the same interface."""
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
    """Makes one context for all buffers of a communicator, when it is first needed."""

    name: str

    def __init__(self, comm: Any, heap_bytes: int = HEAP_BYTES) -> None:
        """`heap_bytes` limits all windows together, if the heap belongs to another library."""
        self._communicator: Communicator = adapt(comm)
        self._context: SymmetricContext | None = None
        self.heap_bytes = heap_bytes

    @property
    def context(self) -> SymmetricContext:
        """The context. The first use creates it, collectively. close() closes it, and so does its own close()."""
        if self._context is None:
            self._context = self._make_context()
        return self._context

    def allocate(self, length_bytes: int) -> SymmetricWindow:
        """Allocates a window for buffers, such as torch.as_tensor(window, device="cuda").view(dtype). Collective."""
        return self.context.allocate(length_bytes)

    def build(self, buffer: Any, signal_pad_size: int = MAX_SIGNALS * SIGNAL_BYTES) -> int:
        """Returns the device context for kernels that use `buffer`: a tensor in a window of the context, or other memory if
        the backend accepts it. Collective the first time, and always for other memory."""
        check_signal_pad(signal_pad_size)
        address, length_bytes = _measure(buffer)
        if self._context is None:
            self._context = self._make_context_with(address, length_bytes)
        if self._find(address, length_bytes) is None:
            self._admit(address, length_bytes)
        return self.context.world.device_context

    def find_window(self, buffer: Any) -> SymmetricWindow:
        """Returns the window that contains the buffer. If the buffer is the application's own memory, kernels must use the
        window's address."""
        window = None if self._context is None else self._find(*_measure(buffer))
        if window is None:
            raise KeyError("the buffer is outside every window of this builder")
        return window

    def close(self) -> None:
        """Closes the context. Collective."""
        context, self._context = self._context, None
        if context is not None and not context.is_closed:
            context.close()

    @abc.abstractmethod
    def _make_context(self) -> SymmetricContext: ...

    def _make_context_with(self, address: int, length_bytes: int) -> SymmetricContext:
        """Creates the context when the first call is `build`: a backend may make that buffer part of its heap."""
        return self._make_context()

    def _find(self, address: int, length_bytes: int) -> SymmetricWindow | None:
        """The window that contains all of it at the same address."""
        window = self.context.find_window(address)
        if window is None or not 0 <= address - window.address <= window.length_bytes - length_bytes:
            return None
        return window

    def _admit(self, address: int, length_bytes: int) -> None:
        raise ValueError(f"the backend {self.name} has its own symmetric memory, and the buffer ({length_bytes} bytes at "
                         f"{address:#x}) is not in a window of it: make the buffer by torch.as_tensor(builder.allocate(bytes), "
                         'device="cuda")')


class VerbenaSymmContextBuilder(SymmContextBuilder):
    """Builds contexts of Verbena's own symmetric memory; ranks find each other by the communicator's all-gather. A buffer
    may also be memory of the application: then every `build` is collective, because an allocator may have put other
    memory at the address on any rank."""

    name = "verbena"

    def __init__(self, comm: Any, heap_bytes: int = HEAP_BYTES) -> None:
        super().__init__(comm, heap_bytes)
        self._registered: dict[int, SymmetricWindow] = {}

    def find_window(self, buffer: Any) -> SymmetricWindow:
        address, length_bytes = _measure(buffer)
        window = None if self._context is None else self._context.find_window(address)
        if window is None or window.length_bytes < length_bytes:
            raise KeyError("the buffer is outside every window of this builder")
        return window

    def release(self, buffer: Any) -> None:
        """Frees the window of the application's memory. Collective. Call it before freeing the memory."""
        window = self._registered.pop(self.find_window(buffer).handle, None)
        if window is None:
            raise KeyError("the buffer is in a window from allocate(): free that window")
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
            window.free()  # registrations are counted, and one is enough
        else:
            self._registered[window.handle] = window


def check_signal_pad(length_bytes: int) -> None:
    """Checks a number of signals against what a team has: teams have their own signals, so a pad needs no memory."""
    if length_bytes > MAX_SIGNALS * SIGNAL_BYTES:
        raise ValueError(f"a signal pad of {length_bytes} bytes: a team has {MAX_SIGNALS} signals of {SIGNAL_BYTES} bytes")


def make_builder(backend: Backend | int | str, comm: Any, heap_bytes: int = HEAP_BYTES) -> SymmContextBuilder:
    """Returns the builder of a backend: "nccl", Backend.NCCL or BACKEND_NCCL, for example."""
    value = getattr(backend, "value", backend)
    for one, row in BACKENDS.items():
        if value in (one, one.name.lower()):
            builder: SymmContextBuilder = getattr(importlib.import_module(row.module), row.builder)(comm, heap_bytes)
            return builder
    names = ", ".join(one.name.lower() for one in BACKENDS)
    raise ValueError(f"{backend!r} is not a backend of contexts; the backends are {names}")


def make_context(backend: Backend | int | str, comm: Any, heap_bytes: int = HEAP_BYTES) -> SymmetricContext:
    """Creates a context of the backend over the communicator. Collective."""
    return make_builder(backend, comm, heap_bytes).context


def _measure(buffer: Any) -> tuple[int, int]:
    """Returns a tensor's address and length in bytes."""
    if not buffer.is_contiguous():
        raise ValueError("a symmetric buffer must be contiguous")
    return int(buffer.data_ptr()), int(buffer.numel() * buffer.element_size())
