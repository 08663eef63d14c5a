"""A team's collectives on tensors."""
import contextlib
import ctypes
import math
from collections.abc import Iterator
from typing import Any

from verbena.context import SymmetricContext
from verbena.native import OpsExtent, OpsOptions, load_ops_library
from verbena.ops.calls import OPERATIONS, Choice, describe_call, expect_like, find_reduction, need_type, pack_choice, raise_error
from verbena.ops.fused import FusedCalls
from verbena.streams import current_stream, stream_of
from verbena.team import SymmetricTeam


class Communicator(FusedCalls):
    """Collectives of a team (None: of all ranks of the context), on tensors of the ranks' GPUs and in their current streams.
    All members make the same calls in the same order. Nothing waits for the GPU, and everything may be captured in a graph.

    One communicator serves one stream at a time; streams that run at the same time have one each. Made and freed
    collectively over the context; on ranks that are no members, for the collective calls alone."""

    def __init__(self, context: SymmetricContext, team: SymmetricTeam | None = None, *, is_member: bool = True,
                 packet_bytes: int = 0, chunk_bytes: int = 0, blocks: int = 0, lets_next_start: bool = False,
                 tuning_file: str | None = None, has_windows: bool = False) -> None:
        """Collective, with the same numbers. Other ranks than members say is_member=False. has_windows: the promise that in each
        all-reduce either input and output of all ranks lie in windows, each at the same offset, or no rank has both in windows."""
        ops = load_ops_library()
        chosen = (context.world if team is None else team) if is_member else None
        options = OpsOptions(packet_bytes, chunk_bytes, blocks, lets_next_start,
                             None if tuning_file is None else tuning_file.encode(), 0, 0, has_windows)
        handle = ops.make("ops_create", context.handle, None if chosen is None else chosen.handle, ctypes.byref(options))
        super().__init__(context, handle)
        self._ops = ops

    def __repr__(self) -> str:
        if self._handle is None or self._context.is_closed:
            return "<verbena.ops.Communicator, freed>"
        last = "no call so far" if self._last is None else f"last call {describe_call(self, *self._last)}"
        return f"<verbena.ops.Communicator, rank {self.rank} of {self.size}, {last}>"

    def free(self) -> None:
        """Collective."""
        handle, self._handle = self._handle, None
        if handle is not None and not self._context.is_closed:
            self._ops.check(self._ops.ops_destroy(handle))

    def check_error(self) -> None:
        """Raises why a call's result is not there, with the rank that did not come, if so."""
        self._tell_dropped_group()
        raise_error(self._ops.ops_get_error, self.handle)

    def reset(self) -> None:
        """Collective: after an error the communicator is as good as new."""
        self._ops.check(self._ops.ops_reset(self.handle))
        self._dropped_group = None

    def choose(self, operation: str, length_bytes: int) -> Choice:
        """How an operation, such as "all_reduce", of so many bytes (of others than that: of a message) would be done."""
        return self._choose("ops_choose", OPERATIONS.index(operation), length_bytes)

    def all_reduce(self, tensor: Any, reduction: Any = "sum", *, op: Any = None, out: Any = None,
                   choice: Choice | None = None) -> Any:
        """Reduces the ranks' tensors element by element; the result has the same bits on all ranks. `reduction`: "sum", "mean" or "avg",
        "min", "max", a Reduction, or a torch.distributed.ReduceOp; `op` is the same under torch.distributed's name. `out` may be the
        tensor."""
        tensor = tensor.contiguous()
        out = tensor.new_empty(tensor.shape) if out is None else expect_like(out, tensor.shape)
        self._call("ops_all_reduce", tensor, out, tensor.numel(), need_type(tensor), find_reduction(reduction if op is None else op), choice=choice)
        return out

    def all_gather(self, tensor: Any, dim: int, *, out: Any = None, choice: Choice | None = None) -> Any:
        """All ranks' tensors concatenated along `dim`, without a permutation afterwards."""
        tensor = tensor.contiguous()
        rows, shape = _cut(tensor.shape, dim, self.size)
        out = tensor.new_empty(shape) if out is None else expect_like(out, shape)
        row_bytes = tensor.numel() * tensor.element_size() // max(rows, 1)
        self._call("ops_all_gather", tensor, out, rows, row_bytes, choice=choice)
        return out

    def reduce_scatter(self, tensor: Any, dim: int, reduction: Any = "sum", *, op: Any = None, out: Any = None,
                       choice: Choice | None = None) -> Any:
        """Returns this rank's part of the sum along `dim`, whose size the number of ranks divides. `dim` has no default, as all_gather()'s:
        engines and torch.distributed have different ones. `op` is `reduction` under torch.distributed's name."""
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
        """In place: the tensor of rank `root`."""
        expect_like(tensor, tensor.shape)
        self._call("ops_broadcast", tensor, tensor, tensor.numel() * tensor.element_size(), root, choice=choice)
        return tensor

    def all_to_all(self, tensor: Any, split_dim: int = 0, concat_dim: int = 0, *, out: Any = None,
                   choice: Choice | None = None) -> Any:
        """The r-th part along `split_dim` goes to rank r; what comes is concatenated along `concat_dim`."""
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
        """counts[r] rows come from rank r and lie in `out` from offsets[r] on, or contiguously. Counts and offsets are
        int64 on the GPU, read when the kernel runs; `tensor` may be longer than this rank's count."""
        self._call_v("ops_all_gather_v", tensor, out, [counts, offsets], [], out.numel() // self.size, choice)
        return out

    def reduce_scatter_v(self, tensor: Any, counts: Any, out: Any, reduction: Any = "sum", *, offsets: Any = None,
                         choice: Choice | None = None) -> Any:
        """counts[r] rows, from offsets[r] on, of all ranks' tensors become rank r's `out`, which may be longer."""
        self._call_v("ops_reduce_scatter_v", tensor, out, [counts, offsets], [need_type(tensor), find_reduction(reduction)],
                     tensor.numel() // self.size, choice)
        return out

    def all_to_all_v(self, tensor: Any, send_counts: Any, receive_counts: Any, out: Any, *, send_offsets: Any = None,
                     receive_offsets: Any = None, expected_rows: int = 0, choice: Choice | None = None) -> Any:
        """send_counts[r] rows go to rank r, receive_counts[r] come from it. `expected_rows`, the same on all ranks, says how
        long a message may be, for the choice of an algorithm."""
        counts = [send_counts, send_offsets, receive_counts, receive_offsets]
        row = math.prod(tensor.shape[1:])
        self._call_v("ops_all_to_all_v", tensor, out, counts, [], expected_rows * row, choice)
        return out

    @contextlib.contextmanager
    def group(self, like: Any = None) -> Iterator[None]:
        """Launches the calls of the block together at its end, by one kernel where possible, in the current stream, or in that of
        the GPU of `like`, a tensor. The calls do not use each other's results. If the block raises, none of its calls is launched
        and every further call raises until all ranks have called reset(): the peers may have launched theirs."""
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
        extent = OpsExtent(math.prod(source.shape[1:]) * element, source.numel() * element, out.numel() * element,
                           expected * element)
        addresses = [None if one is None else one.data_ptr() for one in counts]
        self._launch(name, (source, out, *counts), source.data_ptr(), out.data_ptr(), *addresses, ctypes.byref(extent), *more,
                     pack_choice(choice), stream_of(source))


def _cut(shape: Any, dim: int, parts: int) -> tuple[int, list[int]]:
    """Rows before `dim`, and the shape of `parts` tensors along it."""
    whole = list(shape)
    dim %= len(whole)
    whole[dim] *= parts
    return math.prod(whole[:dim]), whole
