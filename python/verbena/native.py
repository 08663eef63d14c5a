"""Bindings (ctypes) for libverbena.so and the other libraries in its folder, as declared in include/verbena. Errors become exceptions."""
import atexit
import ctypes
import enum
import functools
import importlib
import threading
from collections.abc import Iterator
from ctypes import POINTER, c_char_p, c_int, c_int64, c_size_t, c_uint32, c_uint64, c_void_p
from typing import Any

from verbena.backends import BACKENDS
from verbena.constants import Backend
from verbena.finder import LibraryFinder, LibraryNotFound
from verbena.settings import warn_about_unknown_names

UNIQUE_ID_BYTES = 128

AllGatherFunction = ctypes.CFUNCTYPE(c_int, c_void_p, c_void_p, c_void_p, c_size_t)
LogFunction = ctypes.CFUNCTYPE(None, c_int, c_char_p)
InterruptFunction = ctypes.CFUNCTYPE(c_int)


class UniqueIdBytes(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_uint8 * UNIQUE_ID_BYTES)]


class QueueHandle(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_uint8 * 128)]


class QueueOptions(ctypes.Structure):
    _fields_ = [("count_readers", c_uint32), ("count_chunks", c_uint32), ("chunk_bytes", c_size_t), ("spin_us", c_int64),
                ("address", c_char_p), ("reader_ranks", POINTER(c_uint32))]


class _PartPlace(ctypes.Union):
    _fields_ = [("data", c_void_p), ("bytes", c_char_p)]


class QueuePart(ctypes.Structure):
    """One part of a message. To pass the address of a bytes object, assign the object to the field `bytes`. This is the fastest way."""
    _anonymous_ = ["place"]
    _fields_ = [("place", _PartPlace), ("length", c_size_t)]


class QueueMessage(ctypes.Structure):
    _fields_ = [("data", c_void_p), ("length", c_size_t), ("ticket", ctypes.c_uint64)]


class RanksOptions(ctypes.Structure):
    _fields_ = [("host", c_char_p), ("port", ctypes.c_uint16), ("count_ranks", c_uint32), ("rank", c_uint32),
                ("timeout_ms", c_int64)]


class PairsAddress(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_uint8 * 128)]


class PairsMessage(ctypes.Structure):
    _fields_ = [("data", c_void_p), ("length", c_size_t), ("owner", c_void_p)]


class OpsOptions(ctypes.Structure):
    _fields_ = [("packet_bytes", c_size_t), ("chunk_bytes", c_size_t), ("blocks", c_uint32), ("programmatic_launch", c_uint32),
                ("tuning_file", c_char_p), ("pause_before_ns", c_uint32), ("pause_after_ns", c_uint32), ("has_windows", c_uint32)]


class OpsChoice(ctypes.Structure):
    _fields_ = [("algorithm", c_int), ("blocks", c_uint32), ("threads", c_uint32), ("chunk_bytes", c_uint32)]


class OpsNorm(ctypes.Structure):
    _fields_ = [("rows", c_size_t), ("hidden", c_size_t), ("weight", c_void_p), ("epsilon", ctypes.c_float),
                ("weight_offset", ctypes.c_float), ("rounds_sum", c_uint32), ("rounds_normed", c_uint32), ("residual_in", c_void_p),
                ("residual_out", c_void_p), ("output", c_void_p), ("residual_in_stride", c_size_t), ("residual_out_stride", c_size_t),
                ("output_stride", c_size_t), ("padding", c_size_t), ("quantisation", c_int), ("quantised", c_void_p),
                ("quantised_stride", c_size_t), ("scales", c_void_p), ("scale_row_stride", c_size_t), ("scale_block_stride", c_size_t),
                ("min_scale", ctypes.c_float)]


class OpsMoeFinalize(ctypes.Structure):
    _fields_ = [("rows", c_void_p), ("row_stride", c_size_t), ("indices", c_void_p), ("weights", c_void_p), ("top_k", c_uint32),
                ("shared", c_void_p), ("shared_stride", c_size_t)]


class OpsSizes(ctypes.Structure):
    _fields_ = [("unit_bytes", c_size_t), ("input_bytes", c_size_t), ("output_bytes", c_size_t), ("expected_bytes", c_size_t)]


class MoeOptions(ctypes.Structure):
    _fields_ = [("experts", c_uint32), ("max_tokens", c_uint32), ("top_k", c_uint32), ("hidden", c_uint32), ("max_row_bytes", c_uint32),
                ("max_scale_bytes", c_uint32), ("exact", c_uint32), ("blocks", c_uint32), ("programmatic_launch", c_uint32),
                ("in_windows", c_uint32)]


class MoeLayout(ctypes.Structure):
    _fields_ = [("bytes", c_size_t), ("counts", c_size_t), ("sources", c_size_t), ("ids", c_size_t), ("weights", c_size_t),
                ("places", c_size_t), ("expert_counts", c_size_t), ("expert_begins", c_size_t), ("own_ids", c_size_t), ("own_weights", c_size_t)]


class MoeDispatch(ctypes.Structure):
    _fields_ = [("tokens", c_uint32), ("row_bytes", c_uint32), ("rows", c_void_p), ("row_stride", c_size_t), ("scale_bytes", c_uint32),
                ("id_bits", c_uint32), ("scales", c_void_p), ("scale_stride", c_size_t), ("ids", c_void_p), ("id_stride", c_size_t),
                ("weights", c_void_p), ("output", c_void_p), ("output_scales", c_void_p), ("handle", c_void_p), ("blocks", c_uint32),
                ("phase", c_int), ("quantisation", c_int), ("type", c_int), ("grouping", c_int), ("alignment", c_uint32), ("output_rows", c_uint32),
                ("column_scales", c_uint32), ("row_sources", c_void_p), ("row_experts", c_void_p)]


class MoeCombine(ctypes.Structure):
    _fields_ = [("tokens", c_uint32), ("order", c_int), ("type", c_int), ("blocks", c_uint32), ("phase", c_int), ("rows", c_void_p),
                ("handle", c_void_p), ("output", c_void_p), ("grouping", c_int), ("weights", c_void_p)]


class Result(enum.IntEnum):
    SUCCESS = 0
    CUDA_ERROR = 1
    SYSTEM_ERROR = 2
    INTERNAL_ERROR = 3
    INVALID_ARGUMENT = 4
    INVALID_USAGE = 5
    REMOTE_ERROR = 6
    TIMEOUT = 7


class BackendUnavailable(RuntimeError):
    """Raised if a backend cannot be used. The text says what is missing."""


class VerbenaError(RuntimeError):
    """Raised if a call of the library fails. `result` has the error code; the text is the library's error message."""

    def __init__(self, result: Result, text: str) -> None:
        super().__init__(text)
        self.result = result


Handle = c_void_p
Prototypes = dict[str, tuple[Any, list[Any]]]
# Maps each function's name to (type of the result, types of the arguments).
_PROTOTYPES: Prototypes = {
    "describe": (c_char_p, [c_int]),
    "last_error": (c_char_p, []),
    "set_log": (None, [LogFunction]),
    "get_unique_id": (c_int, [POINTER(UniqueIdBytes)]),
    "context_create": (c_int, [POINTER(UniqueIdBytes), c_uint32, c_uint32, POINTER(Handle)]),
    "context_create_from_environment": (c_int, [POINTER(Handle)]),
    "context_create_from_all_gather": (c_int, [AllGatherFunction, c_void_p, c_uint32, c_uint32, POINTER(Handle)]),
    "context_destroy": (c_int, [Handle]),
    "context_rank": (c_uint32, [Handle]),
    "context_size": (c_uint32, [Handle]),
    "context_barrier": (c_int, [Handle]),
    "context_quiet": (c_int, [Handle]),
    "context_get_error": (c_int, [Handle, c_char_p, c_size_t]),
    "context_abort": (None, [Handle]),
    "window_allocate": (c_int, [Handle, c_size_t, POINTER(Handle)]),
    "window_register": (c_int, [Handle, c_void_p, c_size_t, POINTER(Handle)]),
    "window_free": (c_int, [Handle]),
    "window_address": (c_void_p, [Handle]),
    "window_length": (c_size_t, [Handle]),
    "window_peer_address": (c_void_p, [Handle, c_uint32]),
    "window_find": (c_void_p, [Handle, c_void_p]),
    "team_world": (c_void_p, [Handle]),
    "team_lsa": (c_void_p, [Handle]),
    "team_split": (c_int, [Handle, Handle, c_int64, c_int64, POINTER(Handle)]),
    "team_create": (c_int, [Handle, POINTER(c_uint32), c_size_t, POINTER(Handle)]),
    "team_reset": (c_int, [Handle, Handle]),
    "team_free": (c_int, [Handle]),
    "team_rank": (c_uint32, [Handle]),
    "team_size": (c_uint32, [Handle]),
    "team_world_rank": (c_uint32, [Handle, c_uint32]),
    "team_device_context": (c_void_p, [Handle]),
    "team_host_context": (c_void_p, [Handle]),
    "workspace_create": (c_int, [Handle, Handle, c_size_t, c_uint32, POINTER(Handle)]),
    "workspace_reset": (c_int, [Handle]),
    "workspace_free": (c_int, [Handle]),
    "workspace_get_error": (c_int, [Handle, c_char_p, c_size_t]),
    "workspace_slot_bytes": (c_size_t, [Handle]),
    "workspace_device_context": (c_void_p, [Handle]),
    "workspace_host_context": (c_void_p, [Handle]),
    "workspace_team": (c_void_p, [Handle]),
    "barrier_on_stream": (c_int, [Handle, c_uint32, c_void_p]),
    "signal_on_stream": (c_int, [Handle, c_uint32, c_uint32, ctypes.c_uint64, c_int, c_void_p]),
    "wait_on_stream": (c_int, [Handle, c_uint32, c_int, c_int64, c_void_p]),
    "put_on_stream": (c_int, [Handle, c_void_p, c_void_p, c_size_t, c_uint32, c_void_p]),
    "put_pieces_on_stream": (c_int, [Handle, c_void_p, c_size_t, c_uint32, c_void_p]),
    "get_on_stream": (c_int, [Handle, c_void_p, c_void_p, c_size_t, c_uint32, c_void_p]),
    "quiet_on_stream": (c_int, [Handle, c_void_p]),
    "pool_create": (c_int, [Handle, c_size_t, POINTER(Handle)]),
    "pool_free": (c_int, [Handle]),
    "pool_check": (c_int, [Handle]),
    "pool_index": (c_uint32, [Handle]),
    "pool_window": (c_void_p, [Handle]),
    "pool_max_used": (c_size_t, [Handle]),
    "set_interrupt_check": (None, [InterruptFunction]),
    "queue_create": (c_int, [POINTER(QueueOptions), POINTER(Handle)]),
    "queue_get_handle": (c_int, [Handle, POINTER(QueueHandle)]),
    "queue_attach": (c_int, [POINTER(QueueHandle), c_uint32, c_int64, POINTER(Handle)]),
    "queue_wait_until_ready": (c_int, [Handle, c_int64]),
    "queue_is_local": (c_int, [Handle]),
    "queue_get_address": (c_int, [Handle, c_char_p, c_size_t]),
    "queue_pin": (c_int, [Handle]),
    "queue_shutdown": (c_int, [Handle]),
    "queue_destroy": (c_int, [Handle]),
    "queue_cancel": (None, [Handle]),
    "queue_enqueue": (c_int, [Handle, POINTER(QueuePart), c_size_t, c_int64]),
    "queue_reserve": (c_int, [Handle, c_int64, POINTER(c_void_p)]),
    "queue_commit": (c_int, [Handle, c_size_t]),
    "queue_drop_reader": (c_int, [Handle, c_uint32]),
    "queue_dequeue": (c_int, [Handle, c_int64, POINTER(QueueMessage)]),
    "queue_release": (c_int, [Handle, ctypes.c_uint64]),
    "identify_host": (c_int, [c_char_p, c_size_t]),
    "ranks_join": (c_int, [POINTER(RanksOptions), POINTER(Handle)]),
    "ranks_rank": (c_uint32, [Handle]),
    "ranks_count": (c_uint32, [Handle]),
    "ranks_all_gather": (c_int, [Handle, c_void_p, c_void_p, c_size_t]),
    "ranks_barrier": (c_int, [Handle]),
    "ranks_leave": (None, [Handle]),
    "pairs_open": (c_int, [c_uint32, c_uint32, c_char_p, POINTER(Handle)]),
    "pairs_get_address": (c_int, [Handle, POINTER(PairsAddress)]),
    "pairs_connect": (c_int, [Handle, POINTER(PairsAddress)]),
    "pairs_send": (c_int, [Handle, c_uint32, ctypes.c_uint64, c_void_p, c_size_t, c_int64]),
    "pairs_receive": (c_int, [Handle, c_uint32, ctypes.c_uint64, c_int64, POINTER(PairsMessage)]),
    "pairs_release": (None, [POINTER(PairsMessage)]),
    "pairs_close": (None, [Handle]),
}
_CHOICE, _EXTENT, _NORM = POINTER(OpsChoice), POINTER(OpsSizes), POINTER(OpsNorm)
_OPS_PROTOTYPES: Prototypes = {
    "ops_create": (c_int, [Handle, Handle, POINTER(OpsOptions), POINTER(Handle)]),
    "ops_destroy": (c_int, [Handle]),
    "ops_reset": (c_int, [Handle]),
    "ops_get_error": (c_int, [Handle, c_char_p, c_size_t]),
    "ops_rank": (c_uint32, [Handle]),
    "ops_size": (c_uint32, [Handle]),
    "ops_choose": (c_int, [Handle, c_int, c_size_t, _CHOICE]),
    "ops_all_reduce": (c_int, [Handle, c_void_p, c_void_p, c_size_t, c_int, c_int, _CHOICE, c_void_p]),
    "ops_all_gather": (c_int, [Handle, c_void_p, c_void_p, c_size_t, c_size_t, _CHOICE, c_void_p]),
    "ops_reduce_scatter": (c_int, [Handle, c_void_p, c_void_p, c_size_t, c_size_t, c_int, c_int, _CHOICE, c_void_p]),
    "ops_broadcast": (c_int, [Handle, c_void_p, c_void_p, c_size_t, c_uint32, _CHOICE, c_void_p]),
    "ops_all_to_all": (c_int, [Handle, c_void_p, c_void_p, c_size_t, c_size_t, c_size_t, _CHOICE, c_void_p]),
    "ops_all_gather_v": (c_int, [Handle, c_void_p, c_void_p, c_void_p, c_void_p, _EXTENT, _CHOICE, c_void_p]),
    "ops_reduce_scatter_v": (c_int, [Handle, c_void_p, c_void_p, c_void_p, c_void_p, _EXTENT, c_int, c_int, _CHOICE,
                                     c_void_p]),
    "ops_all_to_all_v": (c_int, [Handle, c_void_p, c_void_p, c_void_p, c_void_p, c_void_p, c_void_p, _EXTENT, _CHOICE,
                                 c_void_p]),
    "ops_choose_quantised": (c_int, [Handle, c_int, c_size_t, _CHOICE]),
    "ops_all_reduce_quantised": (c_int, [Handle, c_void_p, c_void_p, c_size_t, c_int, c_int, ctypes.c_uint64, _CHOICE, c_void_p]),
    "ops_norm_rows": (c_int, [Handle, c_void_p, c_size_t, c_int, _NORM, c_void_p]),
    "ops_all_reduce_norm": (c_int, [Handle, c_void_p, c_void_p, c_int, _NORM, c_int, _CHOICE, c_void_p]),
    "ops_moe_finalize_all_reduce_norm": (c_int, [Handle, POINTER(OpsMoeFinalize), c_void_p, c_int, _NORM, c_int, _CHOICE, c_void_p]),
    "ops_reduce_scatter_norm_all_gather": (c_int, [Handle, c_void_p, c_void_p, c_int, _NORM, _CHOICE, c_void_p]),
    "ops_group_begin": (c_int, [Handle]),
    "ops_group_end": (c_int, [Handle, c_void_p]),
    "ops_pause": (c_int, [Handle, ctypes.c_uint64, c_void_p]),
    "moe_workspace_bytes": (c_size_t, [POINTER(MoeOptions), c_uint32]),
    "moe_workspace_bytes_across": (c_size_t, [POINTER(MoeOptions), c_uint32, c_uint32]),
    "moe_set_mask": (c_int, [Handle, c_uint64]),
    "moe_get_mask": (c_int, [Handle, POINTER(c_uint64)]),
    "moe_max_rows": (c_size_t, [POINTER(MoeOptions), c_uint32, c_int, c_uint32]),
    "moe_create": (c_int, [Handle, Handle, POINTER(MoeOptions), POINTER(Handle)]),
    "moe_destroy": (c_int, [Handle]),
    "moe_reset": (c_int, [Handle]),
    "moe_get_error": (c_int, [Handle, c_char_p, c_size_t]),
    "moe_get_layout": (c_int, [Handle, POINTER(MoeLayout)]),
    "moe_dispatch": (c_int, [Handle, POINTER(MoeDispatch), c_void_p]),
    "moe_combine": (c_int, [Handle, POINTER(MoeCombine), c_void_p]),
}


def _check_signals(raised: list[BaseException]) -> Iterator[int]:
    """Each step lets Python run its signal handlers, and yields 0. If a handler raises an exception such as KeyboardInterrupt, the step
    appends the exception to `raised` and yields 1.

    Python runs pending signal handlers as soon as it executes Python code. This function is a generator, because the code with which a
    generator resumes is already inside the `try`."""
    result = 0
    while True:
        try:
            yield result
            ctypes.pythonapi.PyErr_CheckSignals()
            result = 0
        except GeneratorExit:  # the interpreter is shutting down
            return
        except BaseException as error:
            raised.append(error)
            result = 1


_raised: list[BaseException] = []
_signals = _check_signals(_raised)
next(_signals)
# The library calls this function while the main thread waits.
_INTERRUPT_CHECK = InterruptFunction(_signals.__next__)


def raise_interrupt() -> None:
    """Raises the exception of a signal handler that interrupted this thread's last call of the library."""
    if _raised and threading.current_thread() is threading.main_thread():
        error = _raised.pop()
        _raised.clear()
        raise error


class NativeLibrary:
    """A loaded library. The library's functions are attributes of this object, named without the prefix `verbena_`."""

    def __init__(self, path: str, prototypes: Prototypes) -> None:
        self.path = path
        self._library = ctypes.CDLL(path)
        for name, (returned, arguments) in prototypes.items():
            function = getattr(self._library, f"verbena_{name}")
            function.restype, function.argtypes = returned, arguments

    def __getattr__(self, name: str) -> Any:  # only called once per name
        function = getattr(self._library, f"verbena_{name}")
        setattr(self, name, function)
        return function

    def check(self, result: int) -> None:
        """Raises VerbenaError if `result` is an error. `result` must be the result of this thread's last call of the library."""
        if result == Result.SUCCESS:
            return
        raise_interrupt()
        # libverbena.so keeps the last error for all libraries.
        library = load_library()
        text = library.last_error() or library.describe(result)
        raise VerbenaError(Result(result), text.decode())

    def make(self, name: str, *arguments: Any) -> int | None:
        """Calls a function that writes a handle to its last argument. Returns the handle, or None if the handle is NULL."""
        handle = Handle()
        self.check(getattr(self, name)(*arguments, ctypes.byref(handle)))
        return handle.value


@functools.cache
def load_library() -> NativeLibrary:
    warn_about_unknown_names()
    library = NativeLibrary(LibraryFinder.find_library(), _PROTOTYPES)
    library.set_interrupt_check(_INTERRUPT_CHECK)
    atexit.register(library.set_interrupt_check, InterruptFunction(0))
    return library


@functools.cache
def load_ops_library() -> NativeLibrary:
    """Loads libverbena_ops.so. First loads libverbena.so, so that the process has only one copy of libverbena.so."""
    load_library()
    try:
        return NativeLibrary(LibraryFinder.find_ops_library(), _OPS_PROTOTYPES)
    except LibraryNotFound as error:
        raise BackendUnavailable(f"cannot load the collectives: {error}\nCMake builds this library (target verbena_ops) if "
                                 "CMake finds nvcc.") from None
    except OSError as error:
        raise BackendUnavailable(f"cannot load the collectives: {error}") from None


@functools.cache
def load_backend_library(backend: Backend) -> NativeLibrary:
    """Loads the library that creates the backend's contexts. Loads libverbena.so first, so that the process has only one copy of
    libverbena.so."""
    row = BACKENDS[backend]
    load_library()
    prototypes = importlib.import_module(row.module).PROTOTYPES
    try:
        return NativeLibrary(LibraryFinder.find_backend_library(backend), prototypes)
    except LibraryNotFound as error:
        raise BackendUnavailable(f"the backend {backend.name.lower()}: {error}\n{row.origin}.") from None
    except OSError as error:
        raise BackendUnavailable(f"the backend {backend.name.lower()}: {error}") from None
