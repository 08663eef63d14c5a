"""The backend nvshmem, which creates contexts over NVSHMEM's heap. Finds the process's NVSHMEM library, and initialises NVSHMEM in the CUDA
modules whose kernels call it."""
import ctypes
import dataclasses
import functools
import os
import threading
from ctypes import POINTER, c_int, c_size_t, c_uint32, c_void_p

from verbena.backends import BACKENDS
from verbena.builders import SymmContextBuilder
from verbena.constants import Backend
from verbena.context import Carrier, SymmetricContext, told_with_cause
from verbena.finder import LibraryFinder, LibraryNotFound
from verbena.native import (AllGatherFunction, BackendUnavailable, Handle, NativeLibrary, Prototypes,
                            load_backend_library)

# The functions of libverbena_nvshmem.so, as declared in include/verbena/backends.h.
PROTOTYPES: Prototypes = {
    "nvshmem_init": (c_int, [AllGatherFunction, c_void_p, c_uint32, c_uint32]),
    "nvshmem_context_create": (c_int, [c_size_t, POINTER(Handle)]),
    "nvshmem_prepare_module": (c_int, [c_void_p]),
}


@functools.cache
def load_host_library() -> ctypes.CDLL:
    """Returns the NVSHMEM library that the process has loaded. If the process has loaded none, loads the library from NVSHMEM's wheel.
    Never loads a second copy."""
    try:
        return ctypes.CDLL(BACKENDS[Backend.NVSHMEM].vendor.host, mode=os.RTLD_NOLOAD | os.RTLD_NOW)
    except OSError:
        pass
    try:
        return ctypes.CDLL(LibraryFinder.find_vendor_library(Backend.NVSHMEM))
    except (LibraryNotFound, OSError) as error:
        raise BackendUnavailable(f"the backend nvshmem needs NVSHMEM 3: {error}") from None


def load_nvshmem() -> NativeLibrary:
    load_host_library()
    return load_backend_library(Backend.NVSHMEM)


@dataclasses.dataclass(frozen=True)
class _Module:
    handle: int
    device: int
    is_needed: bool


class ModuleKeeper:
    """Tracks the CUDA modules that contain NVSHMEM's device library.

    Each module must be initialised once, on the GPU that loaded it, after NVSHMEM is initialised. If a module serves only NVSHMEM
    (`is_needed`), prepare() raises an error as long as the module cannot be initialised. A module that also serves other backends is
    initialised only after a context over NVSHMEM was created."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: list[_Module] = []
        self._has_context = False

    def add(self, handle: int, device: int, is_needed: bool) -> None:
        with self._lock:
            self._waiting.append(_Module(handle, device, is_needed))

    def note_context(self) -> None:
        """Records that a context over NVSHMEM exists."""
        self._has_context = True

    def has_work(self, device: int) -> bool:
        return any(self._is_due(module, device) for module in self._waiting)

    def prepare(self, device: int) -> None:
        """Initialises the modules of the calling thread's GPU that are needed now and are not initialised yet. Waits for the GPU, so no
        stream of the GPU may be capturing a graph."""
        with self._lock:
            for module in [one for one in self._waiting if self._is_due(one, device)]:
                library = load_nvshmem()
                library.check(library.nvshmem_prepare_module(module.handle))
                self._waiting.remove(module)

    def _is_due(self, module: _Module, device: int) -> bool:
        return module.device == device and (module.is_needed or self._has_context)


modules = ModuleKeeper()


class NVSHMEMSymmContextBuilder(SymmContextBuilder):
    """Creates contexts over NVSHMEM's symmetric heap. Initialises NVSHMEM with the communicator's ranks, unless the application
    has initialised NVSHMEM."""

    name = "nvshmem"

    def _make_context(self) -> SymmetricContext:
        library, ranks = load_nvshmem(), self._communicator
        carrier = Carrier(ranks.all_gather, ranks.size)
        with told_with_cause(carrier):
            library.check(library.nvshmem_init(carrier.function, None, ranks.rank, ranks.size))
        context = SymmetricContext.from_handle(library.make("nvshmem_context_create", self.heap_bytes), ranks)
        places = (ranks.rank, ranks.size), (context.rank, context.size)
        if places[0] != places[1]:
            # The ranks of other processes may agree, so those processes do not call close(). After abort(), close() does not wait for
            # other processes.
            context.abort()
            context.close()
            raise ValueError("rank {} of {} in the communicator is PE {} of {} in NVSHMEM. NVSHMEM and the communicator must have the same "
                             "ranks".format(*places[0], *places[1]))
        modules.note_context()
        return context
