"""Types, reductions, algorithms and argument checks that all calls of a communicator share."""
import ctypes
import dataclasses
import enum
import functools
from typing import Any

from verbena.native import NativeLibrary, OpsChoice, Result, VerbenaError
from verbena.part import CollectivePart
from verbena.streams import stream_of


class DataType(enum.IntEnum):
    FLOAT32 = 0
    FLOAT16 = 1
    BFLOAT16 = 2
    INT32 = 3
    E4M3 = 4


class Reduction(enum.IntEnum):
    SUM = 0
    MEAN = 1
    MIN = 2
    MAX = 3


class Algorithm(enum.IntEnum):
    AUTO = 0
    ONE_SHOT = 1
    TWO_SHOT = 2
    BULK_ONE_SHOT = 3
    BULK_TWO_SHOT = 4
    COPY_ENGINES = 5
    DIRECT = 6
    # Quantised.
    FP8 = 16
    INT8 = 17
    INT6 = 18
    INT4 = 19
    MXFP8 = 20
    FP8_INT8 = 21
    INT4_INT8 = 22
    LOSSLESS = 32       # exact; data is compressed between hosts
    AUTO_BFLOAT16 = 33  # AUTO for bfloat16 elements in an exchange, which may use LOSSLESS


# The keys are names instead of PyTorch's types, because PyTorch may not be loaded.
_TYPES = {"torch.float32": DataType.FLOAT32, "torch.float16": DataType.FLOAT16, "torch.bfloat16": DataType.BFLOAT16,
          "torch.int32": DataType.INT32, "torch.float8_e4m3fn": DataType.E4M3}
OPERATIONS = ["all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all"]
# Functions of the library that move elements without knowing their type.
_EXCHANGES = {"ops_all_gather", "ops_broadcast", "ops_all_to_all", "ops_all_gather_v", "ops_all_to_all_v"}
_AUTO_BFLOAT16 = OpsChoice(Algorithm.AUTO_BFLOAT16)
# Includes "avg", which is PyTorch's name of the mean.
_REDUCTIONS = {one.name.lower(): one for one in Reduction} | {"avg": Reduction.MEAN}


@dataclasses.dataclass(frozen=True)
class Choice:
    """An algorithm and the launch shape of its kernel. The library chooses each field that is 0. All ranks must pass the
    same choice."""
    algorithm: Algorithm = Algorithm.AUTO
    blocks: int = 0
    threads: int = 0
    chunk_bytes: int = 0


def find_data_type(tensor: Any) -> DataType | None:
    """Returns the DataType of a tensor, or None if no kernel can reduce this type. Operations that only move data accept every type."""
    return _find_by_type(tensor.dtype)


@functools.cache
def _find_by_type(dtype: Any) -> DataType | None:
    return _TYPES.get(str(dtype))


class OpsPart(CollectivePart):
    """Base class of the communicator. Launches calls, and keeps the tensors of an open group alive."""

    _name = "ops"
    _ops: NativeLibrary
    # Tensors of the calls in the open group, kept alive until the end of the group, where its kernels are launched.
    _group: list[tuple[Any, ...]] | None = None
    _dropped_group: str | None = None  # the reason why all calls fail until reset()
    _last: tuple[str, Any, Any, Choice | None] | None = None  # of the last _call(): name, size in bytes and type of the tensor, choice

    @property
    def rank(self) -> int:
        """This rank's number in the team."""
        return int(self._ops.ops_rank(self.handle))

    @property
    def size(self) -> int:
        """The number of members of the team; 0 on a rank that is not a member."""
        return int(self._ops.ops_size(self.handle))

    def _choose(self, name: str, what: int, length_bytes: int) -> Choice:
        choice = OpsChoice()
        self._ops.check(getattr(self._ops, name)(self.handle, what, length_bytes, ctypes.byref(choice)))
        return Choice(Algorithm(choice.algorithm), choice.blocks, choice.threads, choice.chunk_bytes)

    def _call(self, name: str, source: Any, out: Any, *arguments: Any, choice: Choice | None) -> None:
        self._launch(name, (source, out), source.data_ptr(), out.data_ptr(), *arguments, pack_choice_of(name, source, choice),
                     stream_of(source))
        self._last = name, source.numel() * source.element_size(), source.dtype, choice  # nbytes is not in PyTorch 1

    def _launch(self, name: str, tensors: tuple[Any, ...], *arguments: Any) -> None:
        """Calls a function of the library that takes a stream. All such calls go through this method."""
        if self._dropped_group is not None:
            self._tell_dropped_group()
        self._ops.check(getattr(self._ops, name)(self.handle, *arguments))
        if self._group is not None:
            self._group.append(tensors)

    def _tell_dropped_group(self) -> None:
        if self._dropped_group is not None:
            raise VerbenaError(Result.INVALID_USAGE, self._dropped_group)


def describe_call(calls: OpsPart, name: str, tensor_bytes: int, dtype: Any, choice: Choice | None) -> str:
    """Returns a text with the name, size and algorithm of a call. If `choice` is None, the text has the algorithm that the library would
    choose."""
    operation = name.removeprefix("ops_")
    if choice is None and operation in OPERATIONS:
        # The library chooses by the size of a message, which is the whole tensor or, in these two operations, one rank's part of it.
        message_bytes = tensor_bytes // calls.size if operation in ("reduce_scatter", "all_to_all") else tensor_bytes
        choice = calls._choose("ops_choose", OPERATIONS.index(operation), message_bytes)
        if choice.algorithm == Algorithm.LOSSLESS and _find_by_type(dtype) is not DataType.BFLOAT16:
            choice = Choice(Algorithm.BULK_TWO_SHOT)
    algorithm = "" if choice is None else f" by {choice.algorithm.name}"
    return f"{operation} of {tensor_bytes} bytes{algorithm}"


def raise_error(get_error: Any, handle: int) -> None:
    """Calls one of the library's get_error functions, and raises VerbenaError if it reports an error."""
    text = ctypes.create_string_buffer(512)
    result = get_error(handle, text, len(text))
    if result != Result.SUCCESS:
        raise VerbenaError(Result(result), text.value.decode())


def find_reduction(reduction: Any) -> Reduction:
    """Returns the Reduction for a name, a Reduction or a ReduceOp of torch.distributed."""
    if isinstance(reduction, str) and reduction in _REDUCTIONS:
        return _REDUCTIONS[reduction]
    named = reduction if isinstance(reduction, str) else getattr(getattr(reduction, "op", reduction), "name", str(reduction))
    try:
        return _REDUCTIONS[named.lower()]
    except KeyError:
        raise ValueError(f"the reduction {named!r} is not supported. Use sum, mean (avg), min or max; for another "
                         "reduction use torch.distributed") from None


def need_type(tensor: Any) -> DataType:
    found = _find_by_type(tensor.dtype)
    if found is None:
        raise TypeError(f"{tensor.dtype} cannot be reduced. The supported types are {', '.join(sorted(_TYPES))}. Convert the tensor, "
                        "or use torch.distributed")
    return found


def expect_like(tensor: Any, shape: Any, dtype: Any = None) -> Any:
    """Returns the tensor if it has the given shape and type; otherwise raises an error. If `dtype` is None, any type is accepted. Kernels
    do not check shape and type, and would write beyond the end of a tensor that is too small."""
    if dtype is not None and tensor.dtype != dtype:
        raise TypeError(f"the tensor must be of type {dtype}, not {tensor.dtype}")
    if (tensor.shape != shape and list(tensor.shape) != list(shape)) or not tensor.is_contiguous():
        raise ValueError(f"the tensor must be contiguous and have the shape {list(shape)}; its shape is {list(tensor.shape)}")
    return tensor


def pack_choice(choice: Choice | None) -> Any:
    if choice is None:
        return None
    return ctypes.byref(OpsChoice(choice.algorithm, choice.blocks, choice.threads, choice.chunk_bytes))


def pack_choice_of(name: str, tensor: Any, choice: Choice | None) -> Any:
    """Converts a choice to an argument of the library's function `name`. Functions that move elements do not know their type, so for
    bfloat16 elements this function replaces None by AUTO_BFLOAT16, which allows the library to choose Algorithm.LOSSLESS."""
    if name not in _EXCHANGES:
        return pack_choice(choice)
    is_bfloat16 = _find_by_type(tensor.dtype) is DataType.BFLOAT16
    if choice is None:
        return ctypes.byref(_AUTO_BFLOAT16) if is_bfloat16 else None
    if choice.algorithm == Algorithm.LOSSLESS and not is_bfloat16:
        raise TypeError(f"Algorithm.LOSSLESS encodes bfloat16 elements, but the elements of the tensor are {tensor.dtype}. Omit "
                        "the choice, or pass tensor.view(torch.bfloat16) if the tensor contains bfloat16 elements")
    return pack_choice(choice)
