"""Dispatch and combine for mixture of experts. Users import verbena.moe."""
import ctypes
import dataclasses
import enum
import functools
import math
from collections.abc import Iterable
from typing import Any

from verbena.context import SymmetricContext
from verbena.native import MoeCombine, MoeDispatch, MoeLayout, MoeOptions, load_ops_library
from verbena.ops.calls import expect_like, need_type, raise_error
from verbena.ops.fused import Quantisation
from verbena.part import CollectivePart
from verbena.streams import stream_of
from verbena.team import SymmetricTeam

CAST_BLOCK = 128  # number of elements of a row that share a scale
# Limits of verbena/moe.h: the tokens of one rank in a call, and the mask words of all ranks. A mask word covers 32 tokens.
_MAX_TOKENS, _MAX_MASK_WORDS = 16384, 2048


class Order(enum.IntEnum):
    """The order in which combine() adds a token's rows. Sums are computed in float32. Each rank that adds rows rounds its sum once."""
    ROWS = 0     # rows [ranks, max_tokens, hidden]: the caller has already weighted and added the rows of this rank's experts
    REDUCED = 1  # rows [ranks, max_tokens, top_k, hidden]: the rank of the experts weights and adds the rows in top-k order; the token's
                 # rank adds these sums in rank order
    EXACT = 2    # rows [ranks, max_tokens, top_k, hidden]: the token's rank receives all rows, and weights and adds them in top-k order


class Phase(enum.IntEnum):
    """The part of a dispatch or combine that a call runs: everything (BOTH), or first SEND and then RECEIVE. RECEIVE takes the arguments of
    SEND, and the result of SEND as `out`; only `blocks` may differ. In a dispatch that groups by expert, a call with RECEIVE_IDS may come
    between SEND and RECEIVE. RECEIVE_IDS receives all tensors of the handle except `places`."""
    BOTH = 0
    SEND = 1
    RECEIVE = 2
    RECEIVE_IDS = 3


class Grouping(enum.IntEnum):
    """The grouping of the received rows."""
    RANK = 0    # [ranks, max_tokens, ...]: each received row once
    EXPERT = 1  # [experts of a rank, ranks * max_tokens, ...]: each received row once for each of the row's experts on this rank
    RAGGED = 2  # [rows, ...]: the groups of EXPERT one after the other; each group begins at a multiple of `alignment` rows


@dataclasses.dataclass(frozen=True)
class Dispatched:
    """The tokens that a dispatch has received. The tensors are in GPU memory, and are complete after the kernel has run. In every grouping,
    tensors of shape [ranks, max_tokens] list the received rows by source rank, in the order of the source rank's tokens."""
    rows: Any     # [..., elements of a row], in the shape that `grouping` gives; rows without a token are not written
    scales: Any   # [..., scales of a row], for the same rows; None if rows have no scales
    handle: Any   # uint8; combine() reads this tensor; the tensors below are views of it
    counts: Any   # int32 [ranks]: number of rows received from each rank
    sources: Any  # int32 [ranks, max_tokens]: each row's token on its source rank; -1 after the last row
    ids: Any      # int32 [ranks, max_tokens, top_k]: experts of this rank, numbered from 0; -1 for other ranks' experts, and after the last
                  # row
    weights: Any  # float32 [ranks, max_tokens, top_k]; 0 where the id is -1
    tokens: int   # number of this rank's tokens
    grouping: Grouping = Grouping.RANK
    # The following fields are None unless rows are grouped by expert.
    places: Any = None         # int32 [ranks, max_tokens, top_k]: index of the id's row among the rows of all groups; -1: none
    expert_counts: Any = None  # int32 [experts of a rank]: number of rows in each group
    expert_begins: Any = None  # int32 [experts of a rank]: the first row of each group
    row_sources: Any = None    # int32 for each row of `rows`: source rank * max_tokens + index among the source's rows; -1: no token
    row_experts: Any = None    # int32 for each row of `rows`: the expert; -1: no token


class ExpertExchange(CollectivePart):
    """Dispatch and combine between the ranks of a team, or between all ranks of the context if `team` is None. The ranks are on one host,
    or evenly distributed over several hosts. Kernels run on each rank's current stream.

    All members make the same calls in the same order; the number of tokens, the ids and the addresses may differ. Calls never synchronise
    with the GPU, and may be captured in a CUDA graph. Ids, weights and rows are read when the kernel runs. Only one thread and one stream
    at a time may use an exchange. Batches that overlap in time need separate exchanges. Creating and freeing an exchange is collective over
    the context."""

    _name = "exchange"

    def __init__(self, context: SymmetricContext, team: SymmetricTeam | None = None, *, experts: int, max_tokens: int, top_k: int,
                 hidden: int, is_member: bool = True, max_row_bytes: int = 0, max_scale_bytes: int = 0, exact: bool = False,
                 blocks: int = 0, programmatic_launch: bool = False, in_windows: bool = False) -> None:
        """Creates an exchange. Collective, with the same arguments on all ranks.

        Args:
            experts: number of experts on all ranks together, a multiple of the number of ranks n. Rank r has the experts r * experts / n
                to (r + 1) * experts / n - 1.
            max_tokens: maximum number of tokens of each rank in a call.
            max_row_bytes: maximum length of a dispatched row in bytes; 0 for 2 * hidden.
            max_scale_bytes: maximum length of a row's scales in bytes.
            exact: True to allocate memory for Order.EXACT. Not supported if the ranks are on several hosts.
            blocks: maximum number of blocks of a kernel; 0 for as many as fit on the GPU.
            in_windows: True if ranks should access rows in each other's windows, for long batches and few blocks. Then all ranks are on one
                host, and calls use only Grouping.RANK, Order.ROWS and Phase.BOTH. `rows`, `scales` and `handle` of each dispatch's result,
                and the rows of each combine, must lie in windows, such as the pool of SymmetricContext.create_pool(). docs/moe.md shows how
                to allocate them.
        """
        ops = load_ops_library()
        self._ops = ops
        chosen = (context.world if team is None else team) if is_member else None
        self._options = options = MoeOptions(experts, max_tokens, top_k, hidden, max_row_bytes, max_scale_bytes, exact, blocks, programmatic_launch,
                                             in_windows)
        super().__init__(context, ops.make("moe_create", context.handle, None if chosen is None else chosen.handle, ctypes.byref(options)))
        self.ranks = 0 if chosen is None else chosen.size
        self.experts, self.max_tokens, self.top_k, self.hidden = experts, max_tokens, top_k, hidden
        self._layout = MoeLayout()
        if chosen is not None:
            self._read_layout()

    def _read_layout(self) -> None:
        self._ops.check(self._ops.moe_get_layout(self.handle, ctypes.byref(self._layout)))

    @staticmethod
    def workspace_bytes(ranks: int, *, experts: int, max_tokens: int, top_k: int, hidden: int, max_row_bytes: int = 0,
                        max_scale_bytes: int = 0, exact: bool = False, blocks: int = 0, hosts: int = 1, in_windows: bool = False) -> int:
        """Returns how many bytes of GPU memory an exchange allocates on each rank if `ranks` ranks are on `hosts` hosts. Needs no GPU."""
        options = MoeOptions(experts, max_tokens, top_k, hidden, max_row_bytes, max_scale_bytes, exact, blocks, 0, in_windows)
        length_bytes = int(load_ops_library().moe_workspace_bytes_across(ctypes.byref(options), ranks, hosts))
        if length_bytes == 0:
            raise ValueError(f"an exchange of {ranks} ranks on {hosts} hosts with {experts} experts, {max_tokens} tokens, top-{top_k} and "
                             f"hidden size {hidden} is not supported. docs/moe.md lists the limits")
        return length_bytes

    @staticmethod
    def find_max_tokens(ranks: int) -> int:
        """Returns the largest `max_tokens` of an exchange between `ranks` ranks."""
        return min(_MAX_TOKENS, _MAX_MASK_WORDS // ranks * 32)

    def free(self) -> None:
        """Frees the exchange. No kernel on any rank may still be using the exchange. Collective."""
        handle, self._handle = self._handle, None
        if handle is not None and not self._context.is_closed:
            self._ops.check(self._ops.moe_destroy(handle))

    def check_error(self) -> None:
        """Raises VerbenaError if an earlier call timed out, so that its result is not valid. The error names the late rank."""
        raise_error(self._ops.moe_get_error, self.handle)

    def reset(self) -> None:
        """Waits until this rank's GPU is idle, and makes the exchange usable again. Collective."""
        self._ops.check(self._ops.moe_reset(self.handle))

    def set_living(self, ranks: Iterable[int]) -> None:
        """Excludes all ranks of the team except `ranks` from later calls. Calls then ignore ids of experts on excluded ranks, and do not
        wait for excluded ranks. All of `ranks` must call this method between the same two calls, with the same argument; the excluded ranks
        must make no calls. The method does not communicate. A captured graph keeps the ranks with which it was captured.

        To continue without a late rank, call reset() and then this method. An excluded rank can take part again after a reset() of all
        ranks."""
        self._ops.check(self._ops.moe_set_mask(self.handle, sum(1 << rank for rank in set(ranks))))

    def get_living(self) -> list[int]:
        """Returns the ranks that take part in calls."""
        mask = ctypes.c_uint64()
        self._ops.check(self._ops.moe_get_mask(self.handle, ctypes.byref(mask)))
        return [rank for rank in range(self.ranks) if mask.value >> rank & 1]

    def dispatch(self, x: Any, ids: Any, weights: Any = None, *, scales: Any = None, cast: str | None = None,
                 grouping: Grouping | str = Grouping.RANK, alignment: int = 1, exact_rows: bool = False, column_scales: bool = False,
                 out: Dispatched | None = None, blocks: int = 0, phase: Phase = Phase.BOTH) -> Dispatched:
        """Sends each row of `x` [tokens, elements] to the ranks of its experts, and receives the rows of all ranks.

        Args:
            ids: int32 or int64 [tokens, top_k]; an id that is not the number of an expert has no effect. Or the result of an earlier
                dispatch with the same number of tokens; the call then sends the rows to the same experts, with the same weights.
            weights: float32 [tokens, top_k]; None for weights of 1.
            scales: [tokens, ...]; the call sends them with the rows, unchanged.
            cast: "fp8_block", "fp8_block_power" or "fp8_block_exponent" to quantise BF16 or FP16 rows to e4m3 in the dispatch, with one
                scale for each 128 elements. The scale is a float, a float that is a power of two, or an exponent (UE8M0), respectively; an
                int32 holds four exponents.
            grouping: the grouping of the received rows.
            alignment: for Grouping.RAGGED: each group begins at a multiple of this number of rows.
            exact_rows: for Grouping.RAGGED: True to wait until the rows are counted, and to return exactly this number of rows; such a call
                cannot be captured in a graph. If False, the result has the maximum number of rows that any routing needs, and `row_experts`
                is -1 for rows after the groups.
            column_scales: with `cast`: True to store the scales in column-major order, and to return them as a transposed view.
            out: the result of an earlier dispatch with the same grouping, cast, shapes and types, whose memory is reused.
            phase: Phase.SEND for the first of two calls, then Phase.RECEIVE with the same arguments and the first call's result as `out`.
        """
        group_by = Grouping[grouping.upper()] if isinstance(grouping, str) else grouping
        if isinstance(ids, Dispatched):
            self._expect_handle(ids)
            if weights is not None or ids.tokens != x.shape[0]:
                raise ValueError(f"the routing of the earlier dispatch is for {ids.tokens} tokens, but x has {x.shape[0]} rows or weights "
                                 "were passed. Pass the same number of rows, and no weights")
            ids, weights = self._view_routing(ids)
        tokens = x.shape[0]
        if len(x.shape) != 2 or list(ids.shape) != [tokens, self.top_k] or not (_has_rows(x) and _has_rows(ids)):
            raise ValueError(f"x must have the shape [tokens, elements] and ids [tokens, {self.top_k}], with contiguous rows that do not overlap; "
                             "the shapes are "
                             f"{list(x.shape)} and {list(ids.shape)} with strides {x.stride()} and {ids.stride()}")
        if phase in (Phase.RECEIVE, Phase.RECEIVE_IDS) and out is None:
            raise ValueError(f"Phase.{Phase(phase).name} needs the argument `out`. Pass the result of the dispatch with "
                             "Phase.SEND")
        if exact_rows and (group_by != Grouping.RAGGED or phase == Phase.RECEIVE_IDS):
            raise ValueError("exact_rows needs Grouping.RAGGED and cannot be combined with Phase.RECEIVE_IDS")
        if str(ids.dtype) not in ("torch.int32", "torch.int64"):
            raise TypeError(f"ids must be int32 or int64, not {ids.dtype}")
        _expect_weights(weights, [tokens, self.top_k])
        given = None if scales is None else expect_like(scales, [tokens, *scales.shape[1:]])
        if out is not None:
            self._expect_result(out, x, given, cast, group_by, column_scales)

        def make(rows: int | None = None, handle: Any = None) -> Dispatched:
            return self.make_dispatched(x, given, cast, group_by, alignment, column_scales, rows, handle)

        def launch(phase: Phase, out: Dispatched) -> None:
            sources, experts = out.row_sources, out.row_experts
            arguments = MoeDispatch(
                tokens, _row_bytes(x), x.data_ptr(), x.stride(0) * x.element_size(), 0 if given is None else _row_bytes(given),
                8 * ids.element_size(), _address(given), 0, ids.data_ptr(), ids.stride(0), _address(weights), out.rows.data_ptr(),
                _address(out.scales), out.handle.data_ptr(), blocks, phase, Quantisation.NONE if cast is None else Quantisation[cast.upper()],
                0 if cast is None else need_type(x), group_by, alignment, 0 if sources is None else sources.numel(), column_scales,
                _address(sources), _address(experts))
            self._launch("moe_dispatch", (x, ids, weights, given, out), arguments, stream_of(x))
        if not exact_rows:
            out = make() if out is None else dataclasses.replace(out, tokens=tokens)
            launch(phase, out)
            return out
        # Until the rows are counted, the calls use a result without rows.
        sent = make(0) if phase != Phase.RECEIVE else out
        assert sent is not None
        if phase != Phase.RECEIVE:
            launch(Phase.SEND, sent)
        if phase == Phase.SEND:
            return sent
        launch(Phase.RECEIVE_IDS, sent)
        rows = _count_rows(sent.ids.reshape(-1, self.top_k), self.experts // self.ranks, alignment)
        self.check_error()
        out = make(rows, sent.handle)
        launch(Phase.RECEIVE, out)
        return out

    def combine(self, rows: Any, dispatched: Dispatched, order: Order | str = Order.REDUCED, *, weights: Any = None, out: Any = None,
                blocks: int = 0, phase: Phase = Phase.BOTH) -> Any:
        """Sends the experts' rows back, and returns [tokens, hidden] with the sum of each token's rows. A token without an expert gets
        zeros.

        Args:
            rows: BF16 or FP16 rows in the shape that `order` requires. If the dispatch groups by expert, the rows of Order.REDUCED and
                Order.EXACT are grouped in the same way.
            dispatched: the result of this rank's dispatch.
            weights: for Order.EXACT: float32 [tokens, top_k]; None to use the weights of the dispatch.
        """
        order = Order[order.upper()] if isinstance(order, str) else order
        self._expect_handle(dispatched)
        place = [self.ranks, self.max_tokens] if order == Order.ROWS else [self.ranks, self.max_tokens, self.top_k]
        if order != Order.ROWS and dispatched.grouping != Grouping.RANK:
            place = self._find_place(dispatched.grouping, dispatched.row_sources.numel())
        rows = expect_like(rows, [*place, self.hidden])
        shape = [dispatched.tokens, self.hidden]
        out = rows.new_empty(shape) if out is None else expect_like(out, shape, rows.dtype)
        _expect_weights(weights, [dispatched.tokens, self.top_k])
        arguments = MoeCombine(dispatched.tokens, order, need_type(rows), blocks, phase, rows.data_ptr(), dispatched.handle.data_ptr(),
                               out.data_ptr(), dispatched.grouping, _address(weights))
        self._launch("moe_combine", (rows, dispatched, weights, out), arguments, stream_of(rows))
        return out

    def _launch(self, name: str, tensors: tuple[Any, ...], arguments: MoeDispatch | MoeCombine, stream: int) -> None:
        """Launches a call. `tensors` are all tensors that the kernel reads and writes."""
        self._ops.check(getattr(self._ops, name)(self.handle, ctypes.byref(arguments), stream))

    def _find_place(self, grouping: Grouping, rows: int) -> list[int]:
        """Returns the shape of the received rows, without the shape of a single row. `rows` is the number of rows for Grouping.RAGGED."""
        if grouping == Grouping.RAGGED:
            return [rows]
        return [self.ranks, self.max_tokens] if grouping == Grouping.RANK else [self.experts // self.ranks, self.ranks * self.max_tokens]

    def make_dispatched(self, x: Any, scales: Any = None, cast: str | None = None, grouping: Grouping = Grouping.RANK, alignment: int = 1,
                        column_scales: bool = False, rows: int | None = None, handle: Any = None) -> Dispatched:
        """Returns empty tensors for the result of a dispatch. `rows` is the number of rows for Grouping.RAGGED. If `rows` is None,
        the tensors have room for any routing. If `handle` is None, creates a new handle."""
        import torch
        if self.ranks == 0:
            self._read_layout()  # raises an error, because this rank is not a member
        if rows is None:
            rows = int(self._ops.moe_max_rows(ctypes.byref(self._options), self.ranks, grouping, alignment))
            if rows == 0:
                raise ValueError(f"alignment {alignment} is not supported; docs/moe.md lists the limits")
        place = self._find_place(grouping, rows)
        (shape, dtype), of_scales = _find_forms(place, x, scales, cast, column_scales)
        received = self._allocate(x, shape, dtype)
        factors = None if of_scales is None else self._allocate(x, *of_scales)
        factors = factors.transpose(-1, -2) if column_scales and factors is not None else factors
        of_rows = [None if grouping == Grouping.RANK else self._allocate(x, place, torch.int32) for _ in range(2)]
        handle = self._allocate(x, [self._layout.bytes], torch.uint8) if handle is None else handle
        return self.view_handle(received, factors, handle, x.shape[0], grouping, *of_rows)

    def _allocate(self, x: Any, shape: list[int], dtype: Any) -> Any:
        """Returns an empty tensor for a part of a dispatch's result. Subclasses may use other memory than PyTorch's."""
        return x.new_empty(shape, dtype=dtype)

    def _expect_result(self, out: Dispatched, x: Any, scales: Any, cast: str | None, grouping: Grouping, column_scales: bool) -> None:
        """Raises ValueError if the tensors of `out` differ from the tensors that make_dispatched() would create, because the kernel does
        not check their shapes."""
        import torch
        try:
            self._expect_handle(out)
            if out.grouping != grouping:
                raise ValueError(f"the rows of `out` are grouped by {Grouping(out.grouping).name}, but this call groups rows by "
                                 f"{grouping.name}")
            place = self._find_place(grouping, 0 if out.row_sources is None else out.row_sources.numel())
            rows, factors = _find_forms(place, x, scales, cast, column_scales)
            expect_like(out.rows, *rows)
            if (out.scales is None) != (factors is None):
                raise ValueError(f"`out` has "
                                 f"{'no scales, but this call returns scales' if out.scales is None else 'scales, but this call returns none'}")
            if factors is not None:
                expect_like(out.scales.transpose(-1, -2) if column_scales else out.scales, *factors)
            for one in () if grouping == Grouping.RANK else (out.row_sources, out.row_experts):
                expect_like(one, place, torch.int32)
        except (TypeError, ValueError) as cause:
            raise ValueError(f"`out` does not match this call's result: {cause}. Pass the result of a dispatch with the same "
                             "grouping, cast, shapes and types, or None") from None

    def _expect_handle(self, dispatched: Dispatched) -> None:
        handle, length = dispatched.handle, self._layout.bytes
        if handle.numel() * handle.element_size() != length or not handle.is_contiguous():
            raise ValueError(f"the handle has {handle.numel() * handle.element_size()} bytes, but handles of this exchange have {length} "
                             "bytes. Pass the result of a dispatch of this exchange")

    def _view_routing(self, dispatched: Dispatched) -> tuple[Any, Any]:
        """Returns the ids and weights of this rank's tokens, each [tokens, top_k], from the handle."""
        import torch
        shape, layout = (dispatched.tokens, self.top_k), self._layout
        return _view(dispatched.handle, layout.own_ids, torch.int32, *shape), _view(dispatched.handle, layout.own_weights, torch.float32, *shape)

    def view_handle(self, rows: Any, scales: Any, handle: Any, tokens: int, grouping: Grouping = Grouping.RANK, row_sources: Any = None,
                    row_experts: Any = None) -> Dispatched:
        """Returns the result of a dispatch. The tensors of the result are the arguments and views of parts of the handle."""
        import torch
        place, layout = [self.ranks, self.max_tokens], self._layout
        view = functools.partial(_view, handle)
        groups = [] if grouping == Grouping.RANK else [
            view(layout.places, torch.int32, *place, self.top_k),
            *(view(offset, torch.int32, self.experts // self.ranks) for offset in (layout.expert_counts, layout.expert_begins)),
            row_sources, row_experts]
        return Dispatched(rows, scales, handle, view(layout.counts, torch.int32, self.ranks), view(layout.sources, torch.int32, *place),
                          view(layout.ids, torch.int32, *place, self.top_k), view(layout.weights, torch.float32, *place, self.top_k), tokens,
                          grouping, *groups)


def _find_forms(place: list[int], x: Any, scales: Any, cast: str | None, column_scales: bool) -> tuple[Any, Any]:
    """Returns shape and type of the received rows, and shape and type of their scales in memory (None without scales)."""
    import torch
    shape = [*place, x.shape[1]]
    if cast is None:
        return (shape, x.dtype), None if scales is None else ([*place, *scales.shape[1:]], scales.dtype)
    has_exponents = cast.lower() == "fp8_block_exponent"
    count, kind = -(-x.shape[1] // (CAST_BLOCK * (4 if has_exponents else 1))), torch.int32 if has_exponents else torch.float32
    return (shape, torch.float8_e4m3fn), ([*place[:-1], count, place[-1]] if column_scales else [*place, count], kind)


def _view(handle: Any, offset: int, dtype: Any, *shape: int) -> Any:
    """Returns a tensor of 4-byte elements at an offset of the handle."""
    return handle[offset:offset + 4 * math.prod(shape)].view(dtype).view(shape)


def _expect_weights(weights: Any, shape: Any) -> None:
    if weights is not None and str(expect_like(weights, shape).dtype) != "torch.float32":
        raise TypeError(f"weights must be float32, not {weights.dtype}")


def _count_rows(ids: Any, experts: int, alignment: int) -> int:
    """Returns the number of rows of all groups. Waits for the GPU. If an expert occurs twice in a row of `ids`, both occurrences share one
    row."""
    import torch
    ordered = ids.sort(dim=1).values
    is_first = torch.ones_like(ordered, dtype=torch.bool)
    is_first[:, 1:] = ordered[:, 1:] != ordered[:, :-1]
    counts = torch.bincount(ordered[is_first & (ordered >= 0)], minlength=experts)
    return int((((counts + alignment - 1) // alignment) * alignment).sum())


def _has_rows(tensor: Any) -> bool:
    """Returns True if the elements of each row are contiguous. Returns False if a single row was expanded to several rows, because the
    stride of such rows is 0, which the C function takes for contiguous rows. The strides of a tensor without rows are ignored."""
    rows, elements = tensor.shape
    return bool(rows == 0 or ((elements == 1 or tensor.stride(1) == 1) and (rows == 1 or tensor.stride(0) != 0)))


def _row_bytes(tensor: Any) -> int:
    return int(math.prod(tensor.shape[1:]) * tensor.element_size())


def _address(tensor: Any) -> int | None:
    return None if tensor is None else int(tensor.data_ptr())
