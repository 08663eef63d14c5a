"""Contexts over communicators of the application: no second communicator is made. All builders have the same interface."""
import abc
import importlib
from typing import Any

from verbena.backends import BACKENDS
from verbena.communicators import Communicator, adapt
from verbena.constants import Backend
from verbena.context import SymmetricContext
from verbena.window import SymmetricWindow

SIGNAL_BYTES = 8
MOST_SIGNALS = 256
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
        """Collective the first time. close() closes it; it may also be closed like any other context."""
        if self._context is None:
            self._context = self._make_context()
        return self._context

    def allocate(self, length_bytes: int) -> SymmetricWindow:
        """Collective: memory for buffers, such as torch.as_tensor(window, device="cuda").view(dtype)."""
        return self.context.allocate(length_bytes)

    def build(self, buffer: Any, signal_pad_size: int = MOST_SIGNALS * SIGNAL_BYTES) -> int:
        """Returns the device context for kernels that use the buffer: a tensor in a window of the context, or other memory if
        the backend accepts it. Collective the first time, and for other memory."""
        if signal_pad_size > MOST_SIGNALS * SIGNAL_BYTES:
            raise ValueError(f"a signal pad of {signal_pad_size} bytes: a team has {MOST_SIGNALS} signals of "
                             f"{SIGNAL_BYTES} bytes")
        address, length_bytes = _measure(buffer)
        if self._find(address, length_bytes) is None:
            self._admit(address, length_bytes)
        return self.context.world.device_context

    def find_window(self, buffer: Any) -> SymmetricWindow:
        """The window that contains the buffer. Kernels use its address if the memory belongs to the application."""
        window = None if self._context is None else self._find(*_measure(buffer))
        if window is None:
            raise KeyError("the buffer is in no window of this builder")
        return window

    def close(self) -> None:
        """Collective."""
        context, self._context = self._context, None
        if context is not None and not context.is_closed:
            context.close()

    @abc.abstractmethod
    def _make_context(self) -> SymmetricContext: ...

    def _find(self, address: int, length_bytes: int) -> SymmetricWindow | None:
        """The window that contains all of it at the same address."""
        window = self.context.find_window(address)
        if window is None or not 0 <= address - window.address <= window.length_bytes - length_bytes:
            return None
        return window

    def _admit(self, address: int, length_bytes: int) -> None:
        raise ValueError(f"the backend {self.name} has symmetric memory of its own, and the buffer ({length_bytes} bytes at "
                         f"{address:#x}) is not in a window of it: make the buffer by torch.as_tensor(builder.allocate(bytes), "
                         'device="cuda")')


class VerbenaSymmContextBuilder(SymmContextBuilder):
    """Ranks find each other by the communicator's all-gather. A buffer may also be memory of the application. Then every
    `build` is collective, because on any rank an allocator may have put other memory at the address since."""

    name = "verbena"

    def __init__(self, comm: Any, heap_bytes: int = HEAP_BYTES) -> None:
        super().__init__(comm, heap_bytes)
        self._registered: dict[int, SymmetricWindow] = {}

    def find_window(self, buffer: Any) -> SymmetricWindow:
        address, length_bytes = _measure(buffer)
        window = None if self._context is None else self._context.find_window(address)
        if window is None or window.length_bytes < length_bytes:
            raise KeyError("the buffer is in no window of this builder")
        return window

    def release(self, buffer: Any) -> None:
        """Collective: frees the window of the application's memory. To be called before the memory is freed."""
        window = self._registered.pop(self.find_window(buffer).handle, None)
        if window is None:
            raise KeyError("the buffer is in a window from allocate(): free that window")
        window.free()

    def close(self) -> None:
        """Collective."""
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


def make_builder(backend: Backend | int | str, comm: Any, heap_bytes: int = HEAP_BYTES) -> SymmContextBuilder:
    """`backend` is "nccl", Backend.NCCL or BACKEND_NCCL, for example."""
    value = getattr(backend, "value", backend)
    for one, row in BACKENDS.items():
        if value in (one, one.name.lower()):
            builder: SymmContextBuilder = getattr(importlib.import_module(row.module), row.builder)(comm, heap_bytes)
            return builder
    names = ", ".join(one.name.lower() for one in BACKENDS)
    raise ValueError(f"{backend!r} is not a backend of contexts: it is one of {names}")


def make_context(backend: Backend | int | str, comm: Any, heap_bytes: int = HEAP_BYTES) -> SymmetricContext:
    """Collective: makes a context of the backend over the communicator."""
    return make_builder(backend, comm, heap_bytes).context


def _measure(buffer: Any) -> tuple[int, int]:
    """A tensor's address and length in bytes."""
    if not buffer.is_contiguous():
        raise ValueError("a symmetric buffer must be contiguous")
    return int(buffer.data_ptr()), int(buffer.numel() * buffer.element_size())
