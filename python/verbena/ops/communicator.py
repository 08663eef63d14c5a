"""A team's collectives on tensors."""
import contextlib
import ctypes
import math
from collections.abc import Iterator
from types import TracebackType
from typing import Any

from verbena.communicators import adapt
from verbena.context import SymmetricContext
from verbena.native import OpsSizes, OpsOptions, load_ops_library
from verbena.ops.calls import OPERATIONS, Choice, describe_call, expect_like, find_reduction, need_type, pack_choice, raise_error
from verbena.ops.fused import FusedCalls
from verbena.streams import current_stream, stream_of
from verbena.team import SymmetricTeam


class Communicator(FusedCalls):
    """Collectives of a team on tensors of the ranks' GPUs, in their current streams.

    All members make the same calls in the same order. Calls never synchronise with the GPU, and may be captured in a CUDA
    graph. One communicator serves one stream at a time; streams that run at the same time need a communicator each.
    Creating and freeing it is collective over the context; on ranks that are not members it serves only these calls."""

    def __init__(self, context: SymmetricContext, team: SymmetricTeam | None = None, *, is_member: bool = True,
                 packet_bytes: int = 0, chunk_bytes: int = 0, blocks: int = 0, programmatic_launch: bool = False,
                 tuning_file: str | None = None, has_windows: bool = False) -> None:
        """Creates a communicator. Collective, with the same options on all ranks.

        Args:
            context: outlives the communicator.
            team: None: all ranks of the context.
            is_member: False on ranks that are not members of the team.
            packet_bytes: GPU memory of the workspace for packets; 0: the default.
            chunk_bytes: GPU memory of the workspace for chunks; 0: the default.
            blocks: max blocks of a kernel; 0: the default.
            programmatic_launch: programmatic dependent launch: the next kernel of the stream may start before this one has
                ended.
            tuning_file: measurements of this platform (verbena-coll --calibrate); None: VERBENA_TUNING_FILE.
            has_windows: promises that in each all-reduce either input and output of all ranks lie in windows, each at the
                same offset, or no rank has both in windows.
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
        """Creates a communicator of the ranks of a process group of torch.distributed, such as a DeviceMesh's
        `get_group("tp")`, or of a TorchComms communicator. Creates a context, too, which free() closes. Collective over the
        group. The options are those of Communicator."""
        ranks = adapt(group)
        return cls._own(SymmetricContext.from_all_gather(ranks.all_gather, ranks.rank, ranks.size), options)

    @classmethod
    def from_environment(cls, **options: Any) -> "Communicator":
        """The same of all ranks of the job, by the launcher's variables (SymmetricContext.from_environment)."""
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
        """Frees the communicator, and a context that it has created. Collective."""
        handle, self._handle = self._handle, None
        if handle is not None and not self._context.is_closed:
            self._ops.check(self._ops.ops_destroy(handle))
            if self._owns_context:
                self._context.close()

    def check_error(self) -> None:
        """Raises VerbenaError if the result of an earlier call is not valid, and names the late rank."""
        self._tell_dropped_group()
        raise_error(self._ops.ops_get_error, self.handle)

    def reset(self) -> None:
        """Makes the communicator usable again after an error. Collective."""
        self._ops.check(self._ops.ops_reset(self.handle))
        self._dropped_group = None

    def choose(self, operation: str, length_bytes: int) -> Choice:
        """Returns the algorithm that an operation, such as "all_reduce", would use. `length_bytes`: of the tensor for an
        all-reduce, of one rank's message for all other operations."""
        return self._choose("ops_choose", OPERATIONS.index(operation), length_bytes)

    def all_reduce(self, tensor: Any, reduction: Any = "sum", *, op: Any = None, out: Any = None,
                   choice: Choice | None = None) -> Any:
        """Reduces the ranks' tensors element by element. All ranks get the same bits.

        Args:
            tensor: of any shape, the same on all ranks.
            reduction: "sum", "mean" or "avg", "min", "max", a Reduction, or a torch.distributed.ReduceOp.
            op: `reduction` under torch.distributed's name.
            out: receives the result; may be `tensor`. None: a new tensor.
            choice: None: the library chooses.
        """
        if out is not tensor or not tensor.is_contiguous():
            tensor = tensor.contiguous()
            out = tensor.new_empty(tensor.shape) if out is None else expect_like(out, tensor.shape)
        self._call("ops_all_reduce", tensor, out, tensor.numel(), need_type(tensor), find_reduction(reduction if op is None else op), choice=choice)
        return out

    def all_gather(self, tensor: Any, dim: int, *, out: Any = None, choice: Choice | None = None) -> Any:
        """Concatenates all ranks' tensors along `dim`, without a permutation afterwards."""
        tensor = tensor.contiguous()
        rows, shape = _cut(tensor.shape, dim, self.size)
        out = tensor.new_empty(shape) if out is None else expect_like(out, shape)
        row_bytes = tensor.numel() * tensor.element_size() // max(rows, 1)
        self._call("ops_all_gather", tensor, out, rows, row_bytes, choice=choice)
        return out

    def reduce_scatter(self, tensor: Any, dim: int, reduction: Any = "sum", *, op: Any = None, out: Any = None,
                       choice: Choice | None = None) -> Any:
        """Reduces the ranks' tensors; returns this rank's part of the result along `dim`, whose size must be a multiple of
        the number of ranks. `dim` has no default, because engines and torch.distributed have different ones. `op` is
        `reduction` under torch.distributed's name."""
        tensor = tensor.contiguous()
        shape = list(tensor.shape)
        dim %= len(shape)
        if shape[dim] % self.size != 0:
            raise ValueError(f"dimension {dim} of {shape} cannot be scattered to {self.size} ranks in equal parts")
        shape[dim] //= self.size
        out = tensor.new_empty(shape) if out is None else expect_like(out, shape)
        rows = math.prod(shape[:dim])
        self._call("ops_reduce_scatter", tensor, out, rows, out.numel() // max(rows, 1), need_type(tensor),
                   find_reduction(reduction if op is None else op), choice=choice)
        return out

    def broadcast(self, tensor: Any, root: int = 0, *, choice: Choice | None = None) -> Any:
        """Copies the tensor of rank `root` to the tensor of every rank, in place."""
        expect_like(tensor, tensor.shape)
        self._call("ops_broadcast", tensor, tensor, tensor.numel() * tensor.element_size(), root, choice=choice)
        return tensor

    def all_to_all(self, tensor: Any, split_dim: int = 0, concat_dim: int = 0, *, out: Any = None,
                   choice: Choice | None = None) -> Any:
        """Sends the r-th part along `split_dim` to rank r, and concatenates what it receives along `concat_dim`."""
        tensor = tensor.contiguous()
        shape = list(tensor.shape)
        split_dim, concat_dim = split_dim % len(shape), concat_dim % len(shape)
        if shape[split_dim] % self.size != 0:
            raise ValueError(f"dimension {split_dim} of {shape} cannot be split among {self.size} ranks in equal parts")
        message = list(shape)
        message[split_dim] //= self.size
        joined_rows, joined = _cut(message, concat_dim, self.size)
        out = tensor.new_empty(joined) if out is None else expect_like(out, joined)
        self._call("ops_all_to_all", tensor, out, math.prod(message) * tensor.element_size(), math.prod(shape[:split_dim]),
                   joined_rows, choice=choice)
        return out

    def all_gather_v(self, tensor: Any, counts: Any, out: Any, *, offsets: Any = None, choice: Choice | None = None) -> Any:
        """Gathers different numbers of rows: counts[r] rows of rank r are written to `out` from offsets[r] on, or
        contiguously. Counts and offsets are int64 on the GPU, read when the kernel runs. `tensor` may be longer than
        this rank's count."""
        self._call_v("ops_all_gather_v", tensor, out, [counts, offsets], [], out.numel() // self.size, choice)
        return out

    def reduce_scatter_v(self, tensor: Any, counts: Any, out: Any, reduction: Any = "sum", *, offsets: Any = None,
                         choice: Choice | None = None) -> Any:
        """Reduces the ranks' tensors; rank r gets counts[r] rows of the result, from offsets[r] on. Its `out` may be
        longer."""
        self._call_v("ops_reduce_scatter_v", tensor, out, [counts, offsets], [need_type(tensor), find_reduction(reduction)],
                     tensor.numel() // self.size, choice)
        return out

    def all_to_all_v(self, tensor: Any, send_counts: Any, receive_counts: Any, out: Any, *, send_offsets: Any = None,
                     receive_offsets: Any = None, expected_rows: int = 0, choice: Choice | None = None) -> Any:
        """Sends send_counts[r] rows to rank r, and receives receive_counts[r] rows from it. `expected_rows`, the same on
        all ranks, is the length of a typical message, by which the library chooses the algorithm."""
        counts = [send_counts, send_offsets, receive_counts, receive_offsets]
        row = math.prod(tensor.shape[1:])
        self._call_v("ops_all_to_all_v", tensor, out, counts, [], expected_rows * row, choice)
        return out

    @contextlib.contextmanager
    def group(self, like: Any = None) -> Iterator[None]:
        """Launches the calls of the block together at its end, by one kernel if possible, in the current stream, or in that
        of the GPU of the tensor `like`. The calls must not use each other's results. If the block raises, none of its
        calls is launched and every later call raises until all ranks have called reset(): the peers may have launched
        theirs."""
        self._tell_dropped_group()
        self._ops.check(self._ops.ops_group_begin(self.handle))
        self._group = []
        try:
            yield
            stream = current_stream() if like is None else stream_of(like)
            self._ops.check(self._ops.ops_group_end(self.handle, stream))
        except BaseException as error:
            self._dropped_group = (
                f"ops: a group of {len(self._group)} calls was not launched, because its block raised {type(error).__name__}: {error}; "
                "call reset() on all ranks: peers that launched their group wait for this rank until their time limit")
            raise
        finally:
            self._group = None

    def _call_v(self, name: str, source: Any, out: Any, counts: list[Any], more: list[Any], expected: int,
                choice: Choice | None) -> None:
        for tensor in (source, out):
            expect_like(tensor, tensor.shape)
        for one in counts:
            if one is not None and (str(one.dtype) != "torch.int64" or one.numel() != self.size):
                raise ValueError(f"counts and offsets are int64, one for each of {self.size} ranks")
        element = source.element_size()
        sizes = OpsSizes(math.prod(source.shape[1:]) * element, source.numel() * element, out.numel() * element,
                           expected * element)
        addresses = [None if one is None else one.data_ptr() for one in counts]
        self._launch(name, (source, out, *counts), source.data_ptr(), out.data_ptr(), *addresses, ctypes.byref(sizes), *more,
                     pack_choice(choice), stream_of(source))


def _cut(shape: Any, dim: int, parts: int) -> tuple[int, list[int]]:
    """Rows before `dim`, and the shape of `parts` tensors along it."""
    whole = list(shape)
    dim %= len(whole)
    whole[dim] *= parts
    return math.prod(whole[:dim]), whole
