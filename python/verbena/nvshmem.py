"""NVSHMEM on the host: the library of the process, and the modules of kernels that call it."""
import ctypes
import dataclasses
import functools
import os
import threading

from verbena.constants import Backend
from verbena.finder import NVSHMEM_LIBRARY_NAME, LibraryFinder, LibraryNotFound
from verbena.native import BackendUnavailable, NativeLibrary, load_backend_library


@functools.cache
def load_host_library() -> ctypes.CDLL:
    """The one that is loaded already, or else the wheel's: there is never a second."""
    try:
        return ctypes.CDLL(NVSHMEM_LIBRARY_NAME, mode=os.RTLD_NOLOAD | os.RTLD_NOW)
    except OSError:
        pass
    try:
        return ctypes.CDLL(LibraryFinder.find_nvshmem_library())
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
    """Modules of CUDA's that hold NVSHMEM's device library. Each is prepared once, by the GPU that loaded it, with NVSHMEM
    initialized. What has to be prepared before a launch (`is_needed`) raises until it is; what may serve other backends too
    waits for a context of NVSHMEM's."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: list[_Module] = []
        self._has_context = False

    def add(self, handle: int, device: int, is_needed: bool) -> None:
        with self._lock:
            self._waiting.append(_Module(handle, device, is_needed))

    def note_context(self) -> None:
        """There is a context of NVSHMEM's now."""
        self._has_context = True

    def has_work(self, device: int) -> bool:
        return any(self._is_due(module, device) for module in self._waiting)

    def prepare(self, device: int) -> None:
        """What is due on the calling thread's GPU. Waits for the GPU: not while a stream of it is captured."""
        with self._lock:
            for module in [one for one in self._waiting if self._is_due(one, device)]:
                library = load_nvshmem()
                library.check(library.nvshmem_prepare_module(module.handle))
                self._waiting.remove(module)

    def _is_due(self, module: _Module, device: int) -> bool:
        return module.device == device and (module.is_needed or self._has_context)


modules = ModuleKeeper()
