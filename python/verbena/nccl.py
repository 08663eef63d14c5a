"""The backends nccl and ncclx, which create contexts over NCCL's windows. Also detects the features of the NCCL library that the process
has loaded. NCCLX is recognised by its symbols, because the version string does not reliably distinguish NCCLX from NCCL."""
import ctypes
import enum
import os
from ctypes import POINTER, c_int, c_size_t, c_void_p
from typing import Any

from verbena.builders import HEAP_BYTES, SymmContextBuilder, check_signal_pad
from verbena.constants import Backend
from verbena.context import SymmetricContext
from verbena.native import BackendUnavailable, Handle, Prototypes, load_backend_library

LIBRARY_NAME = "libnccl.so.2"
FIRST_WITH_DEVICE_API = (2, 28, 0)
# The functions of libverbena_nccl.so, as declared in include/verbena/backends.h.
PROTOTYPES: Prototypes = {
    "nccl_context_create": (c_int, [c_void_p, c_size_t, POINTER(Handle)]),
    "nccl_context_create_with_buffer": (c_int, [c_void_p, c_void_p, c_size_t, c_size_t, POINTER(Handle)]),
}
DEVICE_API = ("ncclCommWindowRegister", "ncclDevCommCreate", "ncclMemAlloc")


class NcclxFeature(enum.IntFlag):
    """Host functions that NCCLX adds to NCCL. NCCLX's device API is the same as NCCL's."""

    NONE = 0
    SPARSE_ALL_REDUCE = 1
    COMM_DUMP = 2


_FEATURE_SYMBOLS = {NcclxFeature.SPARSE_ALL_REDUCE: "ncclAllReduceSparseBlock", NcclxFeature.COMM_DUMP: "ncclCommDump"}


class NcclLibrary:
    """The NCCL library that the process has loaded, or the library at `path`. A communicator works only with the library that
    created it."""

    def __init__(self, path: str | None = None) -> None:
        self.path = path or LIBRARY_NAME
        try:
            self._library = ctypes.CDLL(self.path, mode=os.RTLD_NOW | (os.RTLD_NOLOAD if path is None else 0))
        except OSError as error:
            cause = "this process has not loaded libnccl.so.2. The NCCL of its communicators is linked into another library"
            raise BackendUnavailable(f"the backend nccl needs NCCL 2.28 or newer: {error if path else cause}") from None

    @property
    def version(self) -> tuple[int, int, int]:
        code = ctypes.c_int(0)
        if self._library.ncclGetVersion(ctypes.byref(code)) != 0:
            raise BackendUnavailable(f"{self.path}: ncclGetVersion failed")
        # NCCL 2.9 and newer encode the version as 10000 * major + 100 * minor + patch.
        return code.value // 10000, code.value // 100 % 100, code.value % 100

    @property
    def ncclx_features(self) -> NcclxFeature:
        found = NcclxFeature.NONE
        for feature, symbol in _FEATURE_SYMBOLS.items():
            if hasattr(self._library, symbol):
                found |= feature
        return found

    def check_device_api(self) -> None:
        version = self.version
        shown = ".".join(map(str, version))
        if version < FIRST_WITH_DEVICE_API:
            raise BackendUnavailable(f"the backend nccl needs NCCL 2.28 or newer: {self.path} has version {shown}")
        missing = [name for name in DEVICE_API if not hasattr(self._library, name)]
        if missing:
            raise BackendUnavailable(f"the backend nccl: {self.path} ({shown}) has no {', '.join(missing)}")

    def check_ncclx(self) -> None:
        if not self.ncclx_features:
            wanted = " or ".join(_FEATURE_SYMBOLS.values())
            raise BackendUnavailable(f"NCCLx features require NCCL built with the IS_NCCLX flag: {self.path} has no "
                                     f"{wanted}")


class NCCLSymmContextBuilder(SymmContextBuilder):
    """Creates contexts over NCCL's windows, with a device communicator that is created from the given communicator. Close the builder
    before you destroy the communicator.

    If the first call of a builder is build(), the buffer of this call becomes part of the context, and kernels use the buffer's own
    address. This buffer must come from ncclMemAlloc or another allocator that uses cuMemCreate. All later buffers must lie in windows that
    allocate() returned."""

    name = "nccl"
    _own: tuple[int, int] | None = None  # address and length of the buffer that became part of the context

    def __init__(self, comm: Any, heap_bytes: int = HEAP_BYTES, library: NcclLibrary | None = None) -> None:
        super().__init__(comm, heap_bytes)
        self.native_handle = self._communicator.find_native_handle()
        self.library = library or NcclLibrary()
        self.library.check_device_api()

    def _make_context(self) -> SymmetricContext:
        handle = load_backend_library(Backend.NCCL).make("nccl_context_create", self.native_handle, self.heap_bytes)
        return SymmetricContext.from_handle(handle, self._communicator)

    def _make_context_with(self, address: int, length_bytes: int) -> SymmetricContext:
        handle = make_context_with_buffer(self.native_handle, address, length_bytes, self.heap_bytes)
        self._own = address, length_bytes
        return SymmetricContext.from_handle(handle, self._communicator)

    def _admit(self, address: int, length_bytes: int) -> None:
        if self._own is None or not self._own[0] <= address <= sum(self._own) - length_bytes:
            super()._admit(address, length_bytes)

    def close(self) -> None:
        """Closes the context. Afterwards the application may use the buffer of build() for other purposes. Collective."""
        self._own = None
        super().close()


class NCCLxSymmContextBuilder(NCCLSymmContextBuilder):
    """NCCLSymmContextBuilder for NCCLX, which adds host functions to NCCL."""

    name = "ncclx"

    def __init__(self, comm: Any, heap_bytes: int = HEAP_BYTES, library: NcclLibrary | None = None) -> None:
        super().__init__(comm, heap_bytes, library)
        self._check_ncclx_available()

    def _check_ncclx_available(self) -> None:
        self.library.check_ncclx()

    def _detect_ncclx_features(self) -> NcclxFeature:
        return self.library.ncclx_features


def make_context_with_buffer(native_handle: int, address: int, length_bytes: int, heap_bytes: int) -> int | None:
    """Creates a context over an ncclComm_t and a buffer, and returns the verbena_context*. Collective."""
    return load_backend_library(Backend.NCCL).make("nccl_context_create_with_buffer", native_handle, address, length_bytes,
                                                   heap_bytes)


_made: dict[int, SymmetricContext] = {}  # maps the address of each device context to its context


def create_nccl_symm_context_from_comm(nccl_comm_ptr: int, buffer_ptr: int, buffer_size: int, signal_pad_size: int,
                                       device_idx: int, rank: int, world_size: int) -> int:
    """Creates a context over an ncclComm_t, and returns the address of the device context, which kernels take as ctx_ptr. Kernels use the
    buffer's own address. Collective. The result is valid until destroy_nccl_symm_context().

    The buffer must come from ncclMemAlloc or another allocator that uses cuMemCreate. `device_idx` must be the calling thread's GPU."""
    check_signal_pad(signal_pad_size)
    context = SymmetricContext.from_handle(make_context_with_buffer(nccl_comm_ptr, buffer_ptr, buffer_size, HEAP_BYTES))
    if (context.rank, context.size) != (rank, world_size):
        places = (f"the arguments say rank {rank} of {world_size}, but this process is rank {context.rank} of {context.size} in the "
                  "communicator. Pass the communicator's rank and size")
        # The arguments of the other ranks may be valid, so those ranks do not call close(). After abort(), close() does not wait for other
        # ranks.
        context.abort()
        context.close()
        raise ValueError(places)
    address = context.world.device_context
    _made[address] = context
    return address


def destroy_nccl_symm_context(device_context: int) -> None:
    """Destroys a context. Call this function before you destroy the communicator and free the buffer. Collective."""
    _made.pop(device_context).close()


# The name that PyTorch's bindings use.
_create_nccl_symm_context_from_comm = create_nccl_symm_context_from_comm
