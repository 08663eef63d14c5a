"""Uses verbena.moe to send each row at most once to each rank, and to add the rows that come back. The interfaces of DeepEP use this
module for high-throughput calls.

The underlying exchange treats each rank as one expert. The rows that a rank receives are therefore a single group of Grouping.RAGGED:
contiguous, sorted by source rank and token."""
import dataclasses
import functools
import operator
from collections.abc import Sequence
from typing import Any

from verbena.context import SymmetricContext
from verbena.integrations.hosts import find_hosts
from verbena.ops.moe import Dispatched, ExpertExchange, Grouping, Order

_MIN_TOKENS = 32      # of the smallest exchange; larger exchanges have 64, 128, 256, ... tokens
_MAX_TOP_K = 32       # maximum number of ids, and of weights, that travel with a row
_PARTS = 3            # number of bfloat16 values whose sum is a float32


@dataclasses.dataclass(frozen=True)
class Sent:
    """The received rows, and the data that is needed to send back and add rows of the same layout."""
    rows: Any        # [rows, elements]; rows after the received rows are not written
    words: Any       # int32 [rows, words]: data that arrived with each row; or None
    sources: Any     # int32 [rows]: source rank * max_tokens + index among the source's rows; -1 after the received rows
    ranks: Any       # int32 [tokens, ranks]: the ranks to which each token went, in the order in which its rows are added; -1: unused
    exchange: ExpertExchange
    dispatched: Dispatched  # without the rows

    @property
    def source_ranks(self) -> Any:
        return self._mask(self.sources // self.exchange.max_tokens)

    @property
    def tokens(self) -> Any:
        """int32 [rows]: the number of the row's token at its source rank; -1 for rows after the received rows."""
        return self._mask(self.dispatched.sources.flatten()[self.sources.clamp(min=0).long()])

    def _mask(self, values: Any) -> Any:
        return values.masked_fill(self.sources < 0, -1)


class RankRows:
    """Moves rows between the ranks of a context. Creating a RankRows is collective. The first call with a new shape allocates memory and is
    collective.

    If the ranks are on several hosts, each host adds its rows of a token in rank order. The token's rank then adds the sums of all hosts,
    in the order of hosts. Other hosts round their sums before they send them; the token's rank does not round the sum of its own host."""

    def __init__(self, context: SymmetricContext) -> None:
        self._context, self.hosts = context, find_hosts(context)  # the host of each rank
        self._exchanges: dict[tuple[int, ...], ExpertExchange] = {}

    @property
    def ranks(self) -> int:
        return self._context.size

    @property
    def num_hosts(self) -> int:
        return len(set(self.hosts))

    @property
    def _order(self) -> Order:
        """The order of the sums. A received row counts as the row of one expert with the weight 1, so Order.REDUCED does not round it."""
        return Order.EXACT if self.num_hosts == 1 else Order.REDUCED

    def free(self) -> None:
        """Frees the exchanges. Collective."""
        for exchange in self._exchanges.values():
            exchange.free()
        self._exchanges.clear()

    @staticmethod
    def workspace_bytes(ranks: int, max_tokens: int, hidden: int, hosts: int = 1) -> int:
        return ExpertExchange.workspace_bytes(ranks, hosts=hosts, exact=hosts == 1, **_options(ranks, max_tokens, hidden))

    def _find(self, hidden: int, experts: int, top_k: int, max_tokens: int, max_row_bytes: int = 0, max_scale_bytes: int = 0) -> ExpertExchange:
        key = (hidden, experts, top_k, max_tokens, max_row_bytes, max_scale_bytes)
        if key not in self._exchanges:
            self._exchanges[key] = ExpertExchange(
                self._context, experts=experts, max_tokens=max_tokens, top_k=top_k, hidden=hidden, exact=self.num_hosts == 1,
                max_row_bytes=max_row_bytes, max_scale_bytes=max_scale_bytes, blocks=share_multiprocessors())
        return self._exchanges[key]

    def exchange_counts(self, per_expert: Any, per_rank: Any, tokens: int) -> tuple[Any, Any, Any]:
        """Returns three tensors:

        * int32 [experts of a rank]: the number of rows for each expert of this rank
        * a matrix; element [i, r] is the number of rows that rank i sends to rank r
        * the number of tokens of each rank"""
        import torch
        ranks, local = self.ranks, per_expert.numel() // self.ranks
        width = -(-(local + ranks + 1) // 4) * 4
        rows = per_expert.new_zeros([ranks, width], dtype=torch.int32)
        rows[:, :local] = per_expert.view(ranks, local)
        rows[:, local:local + ranks] = per_rank
        rows[:, local + ranks] = tokens
        exchange = self._find(8, ranks, 1, ranks, max_row_bytes=4 * width)
        came = exchange.dispatch(rows, torch.arange(ranks, dtype=torch.int32, device=rows.device).unsqueeze(1), blocks=_limit(2)).rows[:, 0]
        return came[:, :local].sum(0, dtype=torch.int32), came[:, local:local + ranks], came[:, local + ranks]

    def check_error(self) -> None:
        """Raises VerbenaError if an earlier call failed."""
        for exchange in self._exchanges.values():
            exchange.check_error()

    def send(self, x: Any, ranks: Any, words: Any, rows: int, max_tokens: int | ExpertExchange, blocks: int = 0) -> Sent:
        """Sends row t of `x` to the ranks in ranks[t], together with row t of `words` (int32 [tokens, words] or None). `rows` is the number
        of rows to allocate, at least the number of rows that arrive. `max_tokens` is the maximum number of tokens of any rank, the same on
        all ranks, or the exchange of an earlier call."""
        exchange = max_tokens if isinstance(max_tokens, ExpertExchange) else self._find_for_rows(x.shape[1], max_tokens)
        if exchange.hidden != x.shape[1]:
            exchange = self._find_for_rows(x.shape[1], exchange.max_tokens)
        if x.shape[0] > exchange.max_tokens:
            raise ValueError(f"this rank has {x.shape[0]} tokens, more than the maximum of this call, {exchange.max_tokens}")
        came = self._route(exchange, x, ranks, words, rows, 1, blocks)
        return Sent(came.rows, came.scales, came.row_sources, ranks, exchange, dataclasses.replace(came, rows=None, scales=None))

    def _find_for_rows(self, hidden: int, max_tokens: int) -> ExpertExchange:
        """Returns an exchange for at least `max_tokens` tokens of each rank. All ranks choose the same exchange."""
        limit = ExpertExchange.find_max_tokens(self.ranks)
        if max_tokens > limit:
            raise ValueError(f"a rank has {max_tokens} tokens, but a call takes at most {limit} tokens of each rank")
        options = _options(self.ranks, max_tokens, hidden)
        enough = [key for key in self._exchanges if key[:3] == (hidden, self.ranks, self.ranks) and key[3] >= max_tokens and key[5] == options["max_scale_bytes"]]
        size = min(key[3] for key in enough) if enough else min(limit, max(_MIN_TOKENS, 1 << (max_tokens - 1).bit_length()))
        return self._find(hidden, self.ranks, self.ranks, size, max_scale_bytes=options["max_scale_bytes"])

    def _route(self, exchange: ExpertExchange, x: Any, ids: Any, words: Any, rows: int, alignment: int, blocks: int) -> Dispatched:
        out = exchange.make_dispatched(x, words, None, Grouping.RAGGED, alignment, rows=rows)
        return exchange.dispatch(x, ids, scales=words, grouping=Grouping.RAGGED, alignment=alignment, out=out, blocks=_limit(blocks))

    def add(self, rows: Any, sent: Sent, bias: Sequence[Any] = (), blocks: int = 0) -> Any:
        """Returns [tokens, hidden]: for each token of this rank, the sum of the biases and of the rows that other ranks hold for the token.
        `rows` [rows, hidden] is BF16 and has the layout of the received rows. On one host, adds in float32, first the biases, then the rows
        in the order of sent.ranks, and rounds once. On several hosts, adds the biases to the rounded sum of the rows."""
        if not bias or self.num_hosts > 1:
            total = sent.exchange.combine(rows, sent.dispatched, self._order, blocks=_limit(blocks))
            return functools.reduce(operator.add, (one.float() for one in bias), total.float()).to(total.dtype) if bias else total
        return self.add_slots(rows, sent.ranks, 1, 1, bias, sent.exchange.max_tokens, blocks)

    def add_slots(self, rows: Any, slots: Any, experts: int, alignment: int, bias: Sequence[Any], max_tokens: int, blocks: int = 0) -> Any:
        """Computes the same sum as add(), but over the rows of experts instead of ranks. Each rank has `experts` experts. `slots` [tokens,
        slots] lists the experts of each token, in the order in which their rows are added. `rows` are grouped by expert, as with
        Grouping.RAGGED. Each bias is sent as the row of an additional expert on the token's rank. Supports only ranks on one host."""
        import torch
        tokens, count = slots.shape[0], len(bias)
        exchange = self._find(rows.shape[1], self.ranks * (experts + count), slots.shape[1] + count, max_tokens)
        number = slots // experts * (experts + count) + count + slots % experts
        own = torch.arange(count, dtype=number.dtype, device=number.device) + self._context.rank * (experts + count)
        ids = torch.cat([own.expand(tokens, count), torch.where(slots >= 0, number, -1)], 1).int()
        gap = rows.new_zeros([-tokens % alignment, rows.shape[1]])
        rows = torch.cat([part for one in bias for part in (one, gap)] + [rows])
        routed = self._route(exchange, rows.new_zeros([tokens, 8]), ids, None, rows.shape[0], alignment, blocks)
        return exchange.combine(rows, routed, Order.EXACT, blocks=_limit(blocks))

    def add_weights(self, weights: Any, sent: Sent, blocks: int = 0) -> Any:
        """Returns float32 [tokens, top_k]: for each token, the sum of the `weights` [rows, top_k] of all ranks. Each weight is split into
        three bfloat16 values whose sum is the weight, and each rank uses separate columns, so the weight arrives with all its bits."""
        import torch
        ranks, top_k = self.ranks, weights.shape[1]
        width = _PARTS * top_k
        rows = weights.new_zeros([weights.shape[0], -(-width * ranks // 8) * 8], dtype=torch.bfloat16)
        rest = weights.float()
        for part in range(_PARTS):
            begin = self._context.rank * width + part * top_k
            rows[:, begin:begin + top_k] = rest
            rest = rest - rows[:, begin:begin + top_k].float()
        exchange = self._find(rows.shape[1], ranks, ranks, sent.exchange.max_tokens)
        routed = self._route(exchange, rows.new_zeros([sent.ranks.shape[0], 8]), sent.ranks, None, rows.shape[0], 1, blocks)
        parts = exchange.combine(rows, routed, self._order, blocks=_limit(blocks))[:, :width * ranks].float().view(-1, ranks, _PARTS, top_k)
        return functools.reduce(operator.add, functools.reduce(operator.add, parts.unbind(2)).unbind(1))


def count_routing(topk_idx: Any, num_experts: int, ranks: int) -> tuple[Any, Any, Any]:
    """Returns three tensors:

    * int32 [ranks]: the number of tokens for each rank
    * int32 [experts]: the number of tokens for each expert
    * [tokens, ranks]: the last entry of the token's top-k list that is an expert of the rank; -1 if there is none"""
    import torch
    is_valid = (topk_idx >= 0) & (topk_idx < num_experts)
    rank_of = torch.where(is_valid, topk_idx // (num_experts // ranks), -1)
    slot = torch.arange(topk_idx.shape[1], device=topk_idx.device).unsqueeze(1)
    last = torch.where(rank_of.unsqueeze(2) == torch.arange(ranks, device=topk_idx.device), slot, -1).amax(1)
    counts = torch.zeros(num_experts + 1, dtype=torch.int32, device=topk_idx.device)
    expert = torch.where(is_valid, topk_idx, num_experts).flatten().long()
    counts.scatter_add_(0, expert, torch.ones_like(expert, dtype=torch.int32))
    return (last >= 0).sum(0, dtype=torch.int32), counts[:num_experts], last


def pack_words(scales: Any, topk_idx: Any, topk_weights: Any) -> Any:
    """Returns the scales, ids and weights that travel with each row, as int32 [tokens, words]. Returns None if all arguments are None."""
    import torch
    for one in (scales, topk_weights):
        if one is not None and one.element_size() != 4:
            raise TypeError(f"scales and weights must have elements of 4 bytes (float32 or packed exponents), not {one.dtype}")
    parts = [one.contiguous().view(torch.int32) for one in (scales, None if topk_idx is None else topk_idx.int(), topk_weights) if one is not None]
    return torch.cat(parts, 1) if parts else None


def unpack_words(words: Any, scales: Any, top_k: int, num_weights: int) -> tuple[Any, Any, Any]:
    """Returns the scales, ids and weights that pack_words() has packed. The scales have the type and width of `scales`."""
    import torch
    width = 0 if scales is None else scales.shape[1]
    came = None if scales is None else words[:, :width].contiguous().view(scales.dtype)
    ids = words[:, width:width + top_k] if top_k else None
    weights = words[:, width + top_k:width + top_k + num_weights].contiguous().view(torch.float32) if num_weights else None
    return came, ids, weights


def localise(ids: Any, weights: Any, sent: Sent, first: int, experts: int) -> tuple[Any, Any]:
    """Returns the expert ids relative to the first expert of this rank, and the weights. An expert of another rank, or a row without a
    token, has the id -1 and the weight 0."""
    import torch
    is_mine = (ids >= first) & (ids < first + experts) & (sent.sources >= 0).unsqueeze(1)
    return torch.where(is_mine, ids - first, -1), None if weights is None else torch.where(is_mine, weights, 0.0)


def share_multiprocessors() -> int:
    """Returns the number of blocks for each of two exchanges whose kernels run at the same time. Leaves some multiprocessors to other
    kernels."""
    import torch
    if not torch.cuda.is_available():
        return 0
    return max(1, int(torch.cuda.get_device_properties().multi_processor_count) // 2 - 2)


def _limit(blocks: int) -> int:
    """Limits the number of blocks of a call to the blocks of its exchange."""
    return min(blocks, share_multiprocessors())


def _options(ranks: int, max_tokens: int, hidden: int) -> dict[str, Any]:
    return {"experts": ranks, "max_tokens": max_tokens, "top_k": ranks, "hidden": hidden,
            "max_scale_bytes": 4 * -(-hidden // 128) + 8 * _MAX_TOP_K}
