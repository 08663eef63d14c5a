"""The communicator, which runs collectives of a team on PyTorch tensors."""
import contextlib
import ctypes
import math
from collections.abc import Iterator
from types import TracebackType
from typing import Any

from verbena.communicators import adapt
from verbena.context import SymmetricContext
from verbena.native import OpsSizes, OpsOptions, load_ops_library
from verbena.ops.calls import OPERATIONS, Choice, describe_call, expect_like, find_reduction, need_type, pack_choice_of, raise_error
from verbena.ops.fused import FusedCalls
from verbena.streams import current_stream, stream_of
from verbena.team import SymmetricTeam


class Communicator(FusedCalls):
    """Collectives of a team on tensors in GPU memory.

    Ranks: all members make the same calls in the same order. Creating, resetting and freeing a communicator is collective over the context.
    Ranks that are not members of the team make only these three calls.

    Streams: a call enqueues a kernel on the current stream of the tensor's GPU and returns without synchronising. Calls may be captured in
    a CUDA graph. A communicator serves one stream at a time. If several streams run at the same time, use a separate communicator for each
    stream. Threads: only one thread at a time may use a communicator.

    Errors: invalid arguments raise ValueError, TypeError or VerbenaError. If a rank does not make a call within VERBENA_SYMM_TIMEOUT_MS,
    the outputs on the other ranks are filled with 0xff bytes. Then check_error() and every later call raise VerbenaError until all ranks
    call reset()."""

    def __init__(self, context: SymmetricContext, team: SymmetricTeam | None = None, *, is_member: bool = True,
                 packet_bytes: int = 0, chunk_bytes: int = 0, blocks: int = 0, programmatic_launch: bool = False,
                 tuning_file: str | None = None, has_windows: bool = False) -> None:
        """Creates a communicator. Collective, with the same options on all ranks.

        Args:
            context: must outlive the communicator.
            team: the team; None for all ranks of the context.
            is_member: False on ranks that are not members of the team.
            packet_bytes: bytes of GPU memory for packets (small messages); 0 for the default.
            chunk_bytes: bytes of GPU memory for chunks (large messages); 0 for the default.
            blocks: maximum number of blocks of a kernel; 0 for the default.
            programmatic_launch: enables programmatic dependent launch (PDL): the next kernel of the stream may start before
                the communicator's kernel has ended.
            tuning_file: path of a file with measurements of this platform, which `verbena-bench coll --calibrate FILE` writes; None for
                the path in VERBENA_TUNING_FILE.
            has_windows: True if the caller promises the following about every all-reduce: if the input and output of one rank lie in
                windows, then the inputs and outputs of all ranks lie in windows, at the same offsets.
        """
        ops = load_ops_library()
        chosen = (context.world if team is None else team) if is_member else None
        options = OpsOptions(packet_bytes, chunk_bytes, blocks, programmatic_launch,
                             None if tuning_file is None else tuning_file.encode(), 0, 0, has_windows)
        handle = ops.make("ops_create", context.handle, None if chosen is None else chosen.handle, ctypes.byref(options))
        super().__init__(context, handle)
        self._ops = ops
        self._owns_context = False

    @classmethod
    def from_group(cls, group: Any, **options: Any) -> "Communicator":
        """Creates a communicator for the ranks of a group. Also creates a context, which free() of the communicator closes. Collective over
        the group.

        Args:
            group: a process group of torch.distributed, such as a DeviceMesh's `get_group("tp")`, or a TorchComms
                communicator.
            options: keyword arguments of Communicator().
        """
        ranks = adapt(group)
        return cls._own(SymmetricContext.from_all_gather(ranks.all_gather, ranks.rank, ranks.size), options)

    @classmethod
    def from_environment(cls, **options: Any) -> "Communicator":
        """Creates a communicator for all ranks of the job, and a context that the communicator's free() closes. Reads the ranks from the
        environment variables of the launcher, like SymmetricContext.from_environment(). Collective. `options` are keyword arguments of
        Communicator()."""
        return cls._own(SymmetricContext.from_environment(), options)

    @classmethod
    def _own(cls, context: SymmetricContext, options: dict[str, Any]) -> "Communicator":
        try:
            communicator = cls(context, **options)
        except BaseException:
            context.abort()
            raise
        communicator._owns_context = True
        return communicator

    def __repr__(self) -> str:
        if self._handle is None or self._context.is_closed:
            return "<verbena.ops.Communicator, freed>"
        last = "no call so far" if self._last is None else f"last call {describe_call(self, *self._last)}"
        return f"<verbena.ops.Communicator, rank {self.rank} of {self.size}, {last}>"

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        super().__exit__(kind, error, trace)
        if kind is not None and self._owns_context:
            self._context.__exit__(kind, error, trace)

    def free(self) -> None:
        """Frees the communicator, and its context if from_group() or from_environment() created it. No kernel on any rank may still be
        using the communicator. Collective."""
        handle, self._handle = self._handle, None
        if handle is not None and not self._context.is_closed:
            self._ops.check(self._ops.ops_destroy(handle))
            if self._owns_context:
                self._context.close()

    def check_error(self) -> None:
        """Raises VerbenaError if the result of an earlier call is not valid. The error names the rank that was late. Never
        waits."""
        self._tell_dropped_group()
        raise_error(self._ops.ops_get_error, self.handle)

    def reset(self) -> None:
        """Makes the communicator usable again after an error. Waits until this rank's GPU is idle. Collective."""
        self._ops.check(self._ops.ops_reset(self.handle))
        self._dropped_group = None

    def choose(self, operation: str, length_bytes: int) -> Choice:
        """Returns the algorithm that the library would choose for bfloat16 tensors. For tensors of other types, the library uses
        BULK_TWO_SHOT if this method returns Algorithm.LOSSLESS.

        Args:
            operation: the name of the method, such as "all_reduce".
            length_bytes: for an all-reduce, the size of the tensor in bytes; for every other operation, the size of one rank's message.
        """
        return self._choose("ops_choose", OPERATIONS.index(operation), length_bytes)

    def all_reduce(self, tensor: Any, reduction: Any = "sum", *, op: Any = None, out: Any = None,
                   choice: Choice | None = None) -> Any:
        """Reduces the ranks' tensors element by element, and returns the result. All ranks get the same bits.

        Args:
            tensor: a tensor of any shape; shape and type are the same on all ranks.
            reduction: "sum", "mean" or "avg", "min", "max", a Reduction, or a torch.distributed.ReduceOp.
            op: the same as `reduction`, under the name that torch.distributed uses.
            out: the tensor that receives the result; may be `tensor` itself. None for a new tensor.
            choice: the algorithm; None to let the library choose.
        """
        if out is not tensor or not tensor.is_contiguous():
            tensor = tensor.contiguous()
            out = tensor.new_empty(tensor.shape) if out is None else expect_like(out, tensor.shape, tensor.dtype)
        self._call("ops_all_reduce", tensor, out, tensor.numel(), need_type(tensor), find_reduction(reduction if op is None else op), choice=choice)
        return out

    def all_gather(self, tensor: Any, dim: int, *, out: Any = None, choice: Choice | None = None) -> Any:
        """Returns all ranks' tensors, concatenated along `dim` in rank order. All ranks pass the same shape and type. `out`
        receives the result; None for a new tensor. The kernel writes the result in its final layout, without a permutation
        afterwards."""
        tensor = tensor.contiguous()
        rows, shape = _cut(tensor.shape, dim, self.size)
        out = tensor.new_empty(shape) if out is None else expect_like(out, shape, tensor.dtype)
        row_bytes = tensor.numel() * tensor.element_size() // max(rows, 1)
        self._call("ops_all_gather", tensor, out, rows, row_bytes, choice=choice)
        return out

    def reduce_scatter(self, tensor: Any, dim: int, reduction: Any = "sum", *, op: Any = None, out: Any = None,
                       choice: Choice | None = None) -> Any:
        """Reduces the ranks' tensors element by element, splits the result along `dim` into one part per rank, and returns
        this rank's part.

        Args:
            tensor: a tensor whose size along `dim` is a multiple of the number of ranks; same shape and type on all ranks.
            dim: the dimension along which the result is split. This argument has no default, because engines and torch.distributed have
                different defaults.
            reduction: the same as for all_reduce().
            op: the same as `reduction`, under the name that torch.distributed uses.
            out: the tensor that receives this rank's part; None for a new tensor.
            choice: the algorithm; None to let the library choose.
        """
        tensor = tensor.contiguous()
        shape = list(tensor.shape)
        dim %= len(shape)
        if shape[dim] % self.size != 0:
            raise ValueError(f"dimension {dim} of {shape} cannot be scattered to {self.size} ranks in equal parts")
        shape[dim] //= self.size
        out = tensor.new_empty(shape) if out is None else expect_like(out, shape, tensor.dtype)
        rows = math.prod(shape[:dim])
        self._call("ops_reduce_scatter", tensor, out, rows, out.numel() // max(rows, 1), need_type(tensor),
                   find_reduction(reduction if op is None else op), choice=choice)
        return out

    def broadcast(self, tensor: Any, root: int = 0, *, choice: Choice | None = None) -> Any:
        """Overwrites the tensor of every rank with the tensor of rank `root`, and returns the overwritten tensor. The tensor must be
        contiguous, and must have the same shape and type on all ranks."""
        expect_like(tensor, tensor.shape)
        self._call("ops_broadcast", tensor, tensor, tensor.numel() * tensor.element_size(), root, choice=choice)
        return tensor

    def all_to_all(self, tensor: Any, split_dim: int = 0, concat_dim: int = 0, *, out: Any = None,
                   choice: Choice | None = None) -> Any:
        """Splits the tensor along `split_dim` into one part per rank, and sends part r to rank r. Returns the received parts, concatenated
        along `concat_dim` in rank order. The size along `split_dim` must be a multiple of the number of ranks. `out` receives the result;
        None for a new tensor."""
        tensor = tensor.contiguous()
        shape = list(tensor.shape)
        split_dim, concat_dim = split_dim % len(shape), concat_dim % len(shape)
        if shape[split_dim] % self.size != 0:
            raise ValueError(f"dimension {split_dim} of {shape} cannot be split among {self.size} ranks in equal parts")
        message = list(shape)
        message[split_dim] //= self.size
        joined_rows, joined = _cut(message, concat_dim, self.size)
        out = tensor.new_empty(joined) if out is None else expect_like(out, joined, tensor.dtype)
        self._call("ops_all_to_all", tensor, out, math.prod(message) * tensor.element_size(), math.prod(shape[:split_dim]),
                   joined_rows, choice=choice)
        return out

    def all_gather_v(self, tensor: Any, counts: Any, out: Any, *, offsets: Any = None, choice: Choice | None = None) -> Any:
        """Gathers a different number of rows from each rank, and returns `out`. Never synchronises with the GPU to read the
        counts.

        Args:
            tensor: contiguous rows, at least counts[rank] of them.
            counts: int64 [ranks] in GPU memory. Rank r contributes its first counts[r] rows. The kernel reads `counts` when it runs.
            out: a contiguous tensor that receives the rows.
            offsets: int64 [ranks] in GPU memory: the row of `out` at which rank r's rows begin. None to concatenate the rows.
            choice: the algorithm; None to let the library choose.
        """
        self._call_v("ops_all_gather_v", tensor, out, [counts, offsets], [], out.numel() // self.size, choice)
        return out

    def reduce_scatter_v(self, tensor: Any, counts: Any, out: Any, reduction: Any = "sum", *, offsets: Any = None,
                         choice: Choice | None = None) -> Any:
        """Reduces the ranks' tensors element by element. Rank r gets counts[r] rows of the result in `out`, which the call returns.

        Args:
            tensor: contiguous rows; same shape and type on all ranks.
            counts: int64 [ranks] in GPU memory. The kernel reads `counts` when it runs.
            out: a contiguous tensor of at least counts[rank] rows.
            reduction: the same as for all_reduce().
            offsets: int64 [ranks] in GPU memory: the first row of rank r's part in `tensor`. None if the parts are
                contiguous.
            choice: the algorithm; None to let the library choose.
        """
        self._call_v("ops_reduce_scatter_v", tensor, out, [counts, offsets], [need_type(tensor), find_reduction(reduction)],
                     tensor.numel() // self.size, choice)
        return out

    def all_to_all_v(self, tensor: Any, send_counts: Any, receive_counts: Any, out: Any, *, send_offsets: Any = None,
                     receive_offsets: Any = None, expected_rows: int = 0, choice: Choice | None = None) -> Any:
        """Sends send_counts[r] rows to rank r, receives receive_counts[r] rows from rank r, and returns `out`.

        Args:
            tensor: the contiguous rows to send.
            send_counts: int64 [ranks] in GPU memory. The kernel reads send_counts, receive_counts, send_offsets and receive_offsets when it
                runs.
            receive_counts: int64 [ranks] in GPU memory.
            out: a contiguous tensor that receives the rows.
            send_offsets: int64 [ranks] in GPU memory: the first row for rank r in `tensor`. None if the rows for the ranks are contiguous.
            receive_offsets: int64 [ranks] in GPU memory: the first row from rank r in `out`. None to concatenate the rows.
            expected_rows: number of rows of a typical message, the same on all ranks. The library's choice of the algorithm depends on this
                number.
            choice: the algorithm; None to let the library choose.
        """
        counts = [send_counts, send_offsets, receive_counts, receive_offsets]
        row = math.prod(tensor.shape[1:])
        self._call_v("ops_all_to_all_v", tensor, out, counts, [], expected_rows * row, choice)
        return out

    @contextlib.contextmanager
    def group(self, like: Any = None) -> Iterator[None]:
        """Collects the calls of a `with` block, and launches them together at the end of the block, as one kernel if possible. The calls
        must not use each other's results.

        The kernel runs on the current stream or, if the tensor `like` is given, on the current stream of that tensor's GPU.
        If the block raises an exception, none of its calls is launched. Every later call then raises VerbenaError until all
        ranks have called reset(), because the peers may have launched their calls."""
        self._tell_dropped_group()
        self._ops.check(self._ops.ops_group_begin(self.handle))
        self._group = []
        try:
            yield
            stream = current_stream() if like is None else stream_of(like)
            self._ops.check(self._ops.ops_group_end(self.handle, stream))
        except BaseException as error:
            self._dropped_group = (
                f"ops: a group of {len(self._group)} calls was not launched, because its block raised {type(error).__name__}: {error}. "
                "Call reset() on all ranks: peers that launched their group wait for this rank until their time limit")
            raise
        finally:
            self._group = None

    def _call_v(self, name: str, source: Any, out: Any, counts: list[Any], more: list[Any], expected: int,
                choice: Choice | None) -> None:
        expect_like(source, source.shape)
        expect_like(out, [*out.shape[:1], *source.shape[1:]], source.dtype)
        for one in counts:
            if one is not None and (str(one.dtype) != "torch.int64" or one.numel() != self.size):
                raise ValueError(f"counts and offsets must be int64 tensors with {self.size} elements, one per rank")
        element = source.element_size()
        sizes = OpsSizes(math.prod(source.shape[1:]) * element, source.numel() * element, out.numel() * element,
                           expected * element)
        addresses = [None if one is None else one.data_ptr() for one in counts]
        self._launch(name, (source, out, *counts), source.data_ptr(), out.data_ptr(), *addresses, ctypes.byref(sizes), *more,
                     pack_choice_of(name, source, choice), stream_of(source))


def _cut(shape: Any, dim: int, parts: int) -> tuple[int, list[int]]:
    """Returns (rows, whole). `whole` is the shape that results if `parts` tensors of shape `shape` are concatenated along `dim`; `rows` is
    the product of the sizes before `dim`."""
    whole = list(shape)
    dim %= len(whole)
    whole[dim] *= parts
    return math.prod(whole[:dim]), whole
