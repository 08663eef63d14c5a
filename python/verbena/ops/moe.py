"""Dispatch and combine of mixture of experts: verbena.moe."""
import ctypes
import dataclasses
import enum
import math
from typing import Any

from verbena.context import SymmetricContext
from verbena.native import MoeCombine, MoeDispatch, MoeLayout, MoeOptions, load_ops_library
from verbena.ops.calls import expect_like, need_type, raise_error
from verbena.ops.fused import Quantisation
from verbena.part import CollectivePart
from verbena.streams import stream_of
from verbena.team import SymmetricTeam

CAST_BLOCK = 128  # elements of a row that share a scale


class Order(enum.IntEnum):
    """How combine() adds a token's rows. Sums are float; each rank that adds rounds once."""
    ROWS = 0     # rows [ranks, max_tokens, hidden]: the rank of the experts has added and weighted them
    REDUCED = 1  # rows [ranks, max_tokens, top_k, hidden]: weighted and added there in top-k order, then in the order of ranks
    EXACT = 2    # the same rows, which all go to the token's rank: weighted and added in top-k order


class Phase(enum.IntEnum):
    """A call in one kernel, or in two. RECEIVE takes the arguments of SEND, and the result of SEND as `out`; its `blocks` may differ."""
    BOTH = 0
    SEND = 1
    RECEIVE = 2


@dataclasses.dataclass(frozen=True)
class Dispatched:
    """The tokens that a dispatch has received: tensors on the GPU, complete once the kernel has run."""
    rows: Any     # [ranks, max_tokens, elements of a row]; rows after the count are not written
    scales: Any   # [ranks, max_tokens, ...], or None
    handle: Any   # uint8; combine() reads it; the other tensors are views of it
    counts: Any   # int32 [ranks]: rows that came from each rank
    sources: Any  # int32 [ranks, max_tokens]: a row's token at its rank; -1 after the count
    ids: Any      # int32 [ranks, max_tokens, top_k]: experts of this rank from 0 on; -1: another rank's, or after the count
    weights: Any  # float32 [ranks, max_tokens, top_k]; 0 where the id is -1
    tokens: int   # of this rank


class ExpertExchange(CollectivePart):
    """Dispatch and combine of a team (None: of all ranks of the context), in the ranks' current streams.

    All members make the same calls in the same order; the number of tokens, ids and addresses may differ. Calls never
    synchronise with the GPU, and may be captured in a CUDA graph: ids, weights and rows are read when the kernel runs. One
    thread and one stream at a time use an exchange. Batches that overlap need an exchange each. Creating and freeing it is
    collective over the context."""

    _name = "exchange"

    def __init__(self, context: SymmetricContext, team: SymmetricTeam | None = None, *, experts: int, max_tokens: int, top_k: int,
                 hidden: int, is_member: bool = True, max_row_bytes: int = 0, max_scale_bytes: int = 0, exact: bool = False,
                 blocks: int = 0, programmatic_launch: bool = False) -> None:
        """Creates an exchange. Collective, with the same numbers on all ranks.

        Args:
            experts: of all ranks, a multiple of their number; rank r has those from r * experts / ranks on.
            max_tokens: of a rank in a call.
            max_row_bytes: of a dispatched row; 0: 2 * hidden.
            max_scale_bytes: of a row's scales.
            exact: allocates memory for Order.EXACT.
            blocks: max blocks of a kernel; 0: as many as fit on the GPUs.
        """
        ops = load_ops_library()
        self._ops = ops
        chosen = (context.world if team is None else team) if is_member else None
        options = MoeOptions(experts, max_tokens, top_k, hidden, max_row_bytes, max_scale_bytes, exact, blocks, programmatic_launch)
        super().__init__(context, ops.make("moe_create", context.handle, None if chosen is None else chosen.handle, ctypes.byref(options)))
        self.ranks = 0 if chosen is None else chosen.size
        self.experts, self.max_tokens, self.top_k, self.hidden = experts, max_tokens, top_k, hidden
        self._layout = MoeLayout()
        if chosen is not None:
            ops.check(ops.moe_get_layout(self.handle, ctypes.byref(self._layout)))

    @staticmethod
    def workspace_bytes(ranks: int, *, experts: int, max_tokens: int, top_k: int, hidden: int, max_row_bytes: int = 0,
                        max_scale_bytes: int = 0, exact: bool = False, blocks: int = 0) -> int:
        """Returns the GPU memory that an exchange allocates on each of `ranks` ranks. Needs no GPU."""
        options = MoeOptions(experts, max_tokens, top_k, hidden, max_row_bytes, max_scale_bytes, exact, blocks, 0)
        length_bytes = int(load_ops_library().moe_workspace_bytes(ctypes.byref(options), ranks))
        if length_bytes == 0:
            raise ValueError(f"there is no exchange of {ranks} ranks with {experts} experts, {max_tokens} tokens, top-{top_k}, hidden {hidden}: "
                             "docs/moe.md has the limits")
        return length_bytes

    def free(self) -> None:
        """Frees the exchange. No kernel on any rank may still be using it. Collective."""
        handle, self._handle = self._handle, None
        if handle is not None and not self._context.is_closed:
            self._ops.check(self._ops.moe_destroy(handle))

    def check_error(self) -> None:
        """Raises VerbenaError if the result of an earlier call is not valid, and names the late rank."""
        raise_error(self._ops.moe_get_error, self.handle)

    def reset(self) -> None:
        """Waits until this rank's GPU is idle, and makes the exchange usable again. Collective."""
        self._ops.check(self._ops.moe_reset(self.handle))

    def dispatch(self, x: Any, ids: Any, weights: Any = None, *, scales: Any = None, cast: str | None = None, out: Dispatched | None = None,
                 blocks: int = 0, phase: Phase = Phase.BOTH) -> Dispatched:
        """Sends each row of `x` [tokens, elements] to the ranks of its experts `ids` (int32 or int64 [tokens, top_k]; ids that name no
        expert go nowhere) and receives those of all ranks. `weights`: float32 [tokens, top_k]; None: 1. `scales` [tokens, ...] go with
        the rows unchanged. `cast`: "fp8_block" or "fp8_block_power" casts BF16 or FP16 rows to e4m3 on the way, with a float scale
        for each 128 elements, the latter's a power of two. `out`: the result of an earlier dispatch of the same shapes, to be reused.
        Phase.SEND and, with the same arguments and its result as `out`, Phase.RECEIVE: the call as two kernels."""
        tokens = x.shape[0]
        if len(x.shape) != 2 or list(ids.shape) != [tokens, self.top_k] or not (_has_rows(x) and _has_rows(ids)):
            raise ValueError(f"x is [tokens, elements] and ids [tokens, {self.top_k}], each row contiguous and in separate memory, not "
                             f"{list(x.shape)} and {list(ids.shape)} with strides {x.stride()} and {ids.stride()}")
        if phase == Phase.RECEIVE and out is None:
            raise ValueError("Phase.RECEIVE needs the argument `out`: pass the result of the dispatch with Phase.SEND, whose "
                             "kernel has written to it")
        if str(ids.dtype) not in ("torch.int32", "torch.int64"):
            raise TypeError(f"ids are int32 or int64, not {ids.dtype}")
        if weights is not None and str(expect_like(weights, ids.shape).dtype) != "torch.float32":
            raise TypeError(f"weights are float32, not {weights.dtype}")
        given = None if scales is None else expect_like(scales, [tokens, *scales.shape[1:]])
        out = self.make_dispatched(x, given, cast) if out is None else dataclasses.replace(out, tokens=tokens)
        arguments = MoeDispatch(
            tokens, _row_bytes(x), x.data_ptr(), x.stride(0) * x.element_size(), 0 if given is None else _row_bytes(given),
            8 * ids.element_size(), _address(given), 0, ids.data_ptr(), ids.stride(0), _address(weights), out.rows.data_ptr(),
            _address(out.scales), out.handle.data_ptr(), blocks, phase, Quantisation.NONE if cast is None else Quantisation[cast.upper()],
            0 if cast is None else need_type(x))
        self._launch("moe_dispatch", (x, ids, weights, given, out), arguments, stream_of(x))
        return out

    def combine(self, rows: Any, dispatched: Dispatched, order: Order | str = Order.REDUCED, *, out: Any = None, blocks: int = 0,
                phase: Phase = Phase.BOTH) -> Any:
        """Sends the experts' rows back, BF16 or FP16 in the shape that `order` says, and returns [tokens, hidden]: the sum
        of each token's rows, zeros for a token without an expert. `dispatched` is the result of this rank's dispatch."""
        order = Order[order.upper()] if isinstance(order, str) else order
        rows = expect_like(rows, [self.ranks, self.max_tokens, *([] if order == Order.ROWS else [self.top_k]), self.hidden])
        shape = [dispatched.tokens, self.hidden]
        out = rows.new_empty(shape) if out is None else expect_like(out, shape)
        arguments = MoeCombine(dispatched.tokens, order, need_type(rows), blocks, phase, rows.data_ptr(), dispatched.handle.data_ptr(),
                               out.data_ptr())
        self._launch("moe_combine", (rows, dispatched, out), arguments, stream_of(rows))
        return out

    def _launch(self, name: str, tensors: tuple[Any, ...], arguments: MoeDispatch | MoeCombine, stream: int) -> None:
        """`tensors`: what the kernel reads and writes."""
        self._ops.check(getattr(self._ops, name)(self.handle, ctypes.byref(arguments), stream))

    def make_dispatched(self, x: Any, scales: Any = None, cast: str | None = None) -> Dispatched:
        """Returns empty tensors for the result of a dispatch."""
        import torch
        place = [self.ranks, self.max_tokens]
        if cast is None:
            rows = x.new_empty([*place, x.shape[1]])
            received = None if scales is None else scales.new_empty([*place, *scales.shape[1:]])
        else:
            rows = x.new_empty([*place, x.shape[1]], dtype=torch.float8_e4m3fn)
            received = x.new_empty([*place, -(-x.shape[1] // CAST_BLOCK)], dtype=torch.float32)
        return self.view_handle(rows, received, x.new_empty([self._layout.bytes], dtype=torch.uint8), x.shape[0])

    def view_handle(self, rows: Any, scales: Any, handle: Any, tokens: int) -> Dispatched:
        """Returns a dispatch's result from three of its tensors."""
        import torch
        place, layout = [self.ranks, self.max_tokens], self._layout

        def view(offset: int, dtype: Any, *shape: int) -> Any:
            return handle[offset:offset + 4 * math.prod(shape)].view(dtype).view(shape)
        return Dispatched(rows, scales, handle, view(layout.counts, torch.int32, self.ranks), view(layout.sources, torch.int32, *place),
                          view(layout.ids, torch.int32, *place, self.top_k), view(layout.weights, torch.float32, *place, self.top_k), tokens)


def _has_rows(tensor: Any) -> bool:
    """Whether rows are contiguous and not one row expanded: C takes a stride of 0 for contiguous rows. Strides of no row say nothing."""
    rows, elements = tensor.shape
    return bool(rows == 0 or ((elements == 1 or tensor.stride(1) == 1) and (rows == 1 or tensor.stride(0) != 0)))


def _row_bytes(tensor: Any) -> int:
    return int(math.prod(tensor.shape[1:]) * tensor.element_size())


def _address(tensor: Any) -> int | None:
    return None if tensor is None else int(tensor.data_ptr())
