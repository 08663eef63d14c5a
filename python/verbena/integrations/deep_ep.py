"""DeepEP 1.2's `Buffer` and DeepEP 2's `ElasticBuffer` over verbena.moe, for engines that import a module named deep_ep. A separate folder
contains a module with this name. Python does not search this folder by default, so add it to PYTHONPATH:

    PYTHONPATH="$(python3 -m verbena.integrations.deep_ep)${PYTHONPATH:+:$PYTHONPATH}" python3 -m sglang.launch_server ...

Results have the shapes and types of DeepEP's results. Received rows are always sorted by source rank and token. Ranks are GPUs of one
host, or evenly distributed over several hosts. On one host, rows are added in DeepEP's order. On several hosts, each host sends only one
sum, so sums are rounded as with verbena.moe.Order.REDUCED."""
import contextlib
import dataclasses
import functools
import pathlib
from collections.abc import Callable, Sequence
from typing import Any

from verbena.integrations.comm_stream import CommStream, EventHandle, EventOverlap
from verbena.integrations.elastic_buffer import ElasticBuffer, EPHandle, list_biases, open_context
from verbena.integrations.rank_rows import RankRows, Sent, count_routing, localise, pack_words, share_multiprocessors, unpack_words
from verbena.moe import Dispatched, ExpertExchange, Grouping, Order, Phase

__all__ = ["Buffer", "Config", "ElasticBuffer", "EPHandle", "EventHandle", "EventOverlap"]

_SHORTEST_ROW = 8  # elements of 16 bits
_GPUS_OF_HOST = 8  # DeepEP assumes this number if it knows only the number of ranks


def __getattr__(name: str) -> Any:
    if name == "topk_idx_t":
        import torch
        return torch.int64
    raise AttributeError(f"module {__name__} has no attribute {name!r}")


class Config:
    """DeepEP's tuning parameters. Only num_sms has an effect: it limits the number of blocks of a call."""

    def __init__(self, num_sms: int = 20, *_: int) -> None:
        self.num_sms = num_sms

    def get_nvl_buffer_size_hint(self, hidden_bytes: int, num_ranks: int) -> int:
        """Returns how many bytes of GPU memory high-throughput calls allocate on each rank for the maximum number of tokens, if all ranks
        are on one host. `hidden_bytes` is the length of a BF16 row in bytes."""
        return RankRows.workspace_bytes(num_ranks, ExpertExchange.find_max_tokens(num_ranks), hidden_bytes // 2)

    def get_rdma_buffer_size_hint(self, hidden_bytes: int, num_ranks: int) -> int:
        """Returns how many bytes are allocated in addition if each host has 8 ranks. Returns 0 unless `num_ranks` is 16, 24, 32 and so
        on."""
        hosts = _guess_hosts(num_ranks)
        if hosts == 1:
            return 0
        across = RankRows.workspace_bytes(num_ranks, ExpertExchange.find_max_tokens(num_ranks), hidden_bytes // 2, hosts)
        return max(0, across - self.get_nvl_buffer_size_hint(hidden_bytes, num_ranks))


class RankHandle(Sequence[Any]):
    """The handle that a high-throughput dispatch returns for its combine.

    As a sequence, the handle has the six tensors of DeepEP's intranode handle, with one channel. Each tensor is computed when it is
    accessed:

        0  a matrix; element [i, r] is the number of rows that ranks 0 to i send to rank r
        1  the number of rows that this rank sends to each rank
        2  zeros: the first row of the only channel, for each rank
        3  the number of each received row's token on the source rank
        4  bool [tokens, ranks]: whether each token of this rank goes to each rank
        5  the position of each token among the rows for each rank

    If the ranks are on several hosts, the handle has the ten elements of DeepEP's internode handle. Elements 3, 4 and 7 to 9 are offsets in
    DeepEP's buffers, and reading one of these elements raises NotImplementedError. The other elements are:

        0  bool [tokens, ranks]: whether each token of this rank goes to each rank
        1  the number of this rank's tokens that go to each host
        2  the number of this rank's tokens that go to each rank
        5  the first received row from each rank
        6  the number of rows received from ranks 0 to i"""

    def __init__(self, matrix: Any, is_token_in_rank: Any, sent: Sent, rank: int, hosts: Sequence[int]) -> None:
        self.matrix, self.is_token_in_rank, self.sent, self.rank, self.hosts = matrix, is_token_in_rank, sent, rank, hosts

    def __len__(self) -> int:
        return 6 if len(set(self.hosts)) == 1 else 10

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return tuple(self[place] for place in range(len(self))[index])
        place = range(len(self))[index]
        if len(self) == 6:
            return (self.find_prefixes, self.find_sent_counts, self.find_channel_begins, lambda: self.sent.tokens,
                    lambda: self.is_token_in_rank, self.find_numbers)[place]()
        internode: dict[int, Callable[[], Any]] = {
            0: lambda: self.is_token_in_rank, 1: lambda: _count_for_hosts(self.is_token_in_rank, self.hosts).unsqueeze(1),
            2: self.find_sent_counts, 5: lambda: (self.find_ends() - self.matrix[:, self.rank]).unsqueeze(1), 6: self.find_ends}
        if place not in internode:
            raise NotImplementedError(f"element {place} of the handle is an offset in DeepEP's buffers, but Verbena does not have these "
                                      f"buffers")
        return internode[place]()

    def find_ends(self) -> Any:
        return self.matrix[:, self.rank].cumsum(0).int()

    def find_prefixes(self) -> Any:
        return self.matrix.cumsum(0).int()

    def find_sent_counts(self) -> Any:
        return self.matrix[self.rank].unsqueeze(1)

    def find_channel_begins(self) -> Any:
        return self.matrix.new_zeros([self.matrix.shape[0], 1])

    def find_numbers(self) -> Any:
        numbers = self.is_token_in_rank.cumsum(0).int() - 1
        return numbers.masked_fill(~self.is_token_in_rank, -1)


class LowLatencyHandle(Sequence[Any]):
    """The handle that a low-latency dispatch returns for its combine.

    As a sequence, the handle has the elements of DeepEP's handle. Elements 0 and 1 are computed when they are accessed:

        0  int32 [experts, rows]: the number of each row's token on the source rank; -1 without a token
        1  int64 [experts, ranks]: begin << 32 | count of the rows from each source rank
        2  the maximum number of tokens
        3  the hidden size
        4  the number of experts"""

    def __init__(self, exchange: ExpertExchange, dispatched: Dispatched, hidden: int, num_experts: int) -> None:
        self.exchange, self.dispatched = exchange, dispatched
        self._numbers = (exchange.max_tokens, hidden, num_experts)
        self.combine_rows: Any = None  # memory for a combine with zero_copy

    def __len__(self) -> int:
        return 5

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return tuple(self[place] for place in range(5)[index])
        place = range(5)[index]
        return [self.find_sources, self.find_ranges][place]() if place < 2 else self._numbers[place - 2]

    def find_sources(self) -> Any:
        rows = self.dispatched.row_sources
        tokens = self.dispatched.sources.flatten()[rows.clamp(min=0).long()]
        return tokens.masked_fill(rows < 0, -1)

    def find_ranges(self) -> Any:
        import torch
        rows, ranks = self.dispatched.row_sources, self.exchange.ranks
        of_rank = torch.where(rows < 0, -1, rows // self.exchange.max_tokens)
        counts = torch.stack([(of_rank == rank).sum(1) for rank in range(ranks)], 1).long()
        return (counts.cumsum(1) - counts) << 32 | counts


class Buffer:
    """DeepEP's Buffer. Creating a Buffer is collective over `group`: a process group of torch.distributed, a TorchComms communicator, or a
    SymmetricContext.

    The first call with a new shape allocates memory. This call is therefore collective and must not be captured in a CUDA graph. The buffer
    sizes that the caller passes have no effect. High-throughput calls run on a separate stream and accept at most 16,384 tokens of each
    rank. Low-latency calls run on the current stream. At most two low-latency calls may be in flight, and at most two of their results may
    be in use, at any time. Errors and late ranks are handled as in verbena.moe.ExpertExchange.

    If the ranks are on several hosts, each host must have the same number of ranks. The constructor raises VerbenaError if no exchange can
    connect the ranks. With several hosts, enable_shrink works only if each host has one rank."""

    num_sms = 20

    def __init__(self, group: Any, num_nvl_bytes: int = 0, num_rdma_bytes: int = 0, low_latency_mode: bool = False,
                 num_qps_per_rank: int = 24, allow_nvlink_for_low_latency_mode: bool = True, allow_mnnvl: bool = False,
                 explicitly_destroy: bool = False, enable_shrink: bool = False, comm: Any = None, use_fabric: bool = False) -> None:
        self.group, self.num_nvl_bytes, self.num_rdma_bytes = group, num_nvl_bytes, num_rdma_bytes
        self.low_latency_mode, self.explicitly_destroy = low_latency_mode, explicitly_destroy
        self._context, self._owns_context = open_context(group if comm is None else comm)
        self.rank, self.group_size = self._context.rank, self._context.size
        with contextlib.ExitStack() as undo:
            undo.callback(self._context.close if self._owns_context else lambda: None)
            self._rows, self._stream = RankRows(self._context), CommStream()
            if enable_shrink:
                self._expect_single_ranks()
            undo.pop_all()
        self.runtime = self
        self._exchanges: dict[tuple[int, ...], list[ExpertExchange]] = {}
        self._turns: dict[tuple[int, ...], int] = {}
        self._left_out: set[int] = set()

    def destroy(self) -> None:
        """Frees the memory. No kernel of any rank may still be using the memory. Collective."""
        for pair in self._exchanges.values():
            for exchange in pair:
                exchange.free()
        self._exchanges.clear()
        self._rows.free()
        if self._owns_context:
            self._context.close()

    @staticmethod
    def is_sm90_compiled() -> bool:
        return True

    @staticmethod
    def set_num_sms(new_num_sms: int) -> None:
        if new_num_sms % 2:
            raise ValueError(f"num_sms is {new_num_sms}, but must be even")
        Buffer.num_sms = new_num_sms

    @staticmethod
    def capture() -> EventOverlap:
        return EventOverlap(EventHandle())

    @staticmethod
    def get_low_latency_rdma_size_hint(num_max_dispatch_tokens_per_rank: int, hidden: int, num_ranks: int, num_experts: int,
                                       num_topk: int = 8) -> int:
        """Returns how many bytes of GPU memory low-latency calls allocate on each rank. If the number of ranks is a multiple of 8, assumes
        that each host has 8 ranks."""
        options = _options(num_max_dispatch_tokens_per_rank, hidden, num_experts, num_topk, hosts := _guess_hosts(num_ranks))
        return 2 * ExpertExchange.workspace_bytes(num_ranks, hosts=hosts, **options)

    @staticmethod
    def get_dispatch_config(num_ranks: int) -> Config:
        return Config(Buffer.num_sms)

    @staticmethod
    def get_combine_config(num_ranks: int) -> Config:
        return Config(Buffer.num_sms)

    def get_comm_stream(self) -> Any:
        return self._stream.find()

    def get_local_buffer_tensor(self, dtype: Any, size: Any = None, offset: int = 0, use_rdma_buffer: bool = False) -> Any:
        """Returns a new tensor of zeros with the given size; without a size, an empty tensor. The tensor does not share memory with the
        buffer, because callers only clear the tensor."""
        import torch
        return torch.zeros(0 if size is None else size, dtype=dtype, device="cuda" if torch.cuda.is_available() else "cpu")

    def get_dispatch_layout(self, topk_idx: Any, num_experts: int, previous_event: Any = None, async_finish: bool = False,
                            allocate_on_comm_stream: bool = False) -> Any:
        """Counts the tokens for each rank, host and expert. Returns a tuple:

        * int32 [ranks]: the number of tokens for each rank
        * int32 [hosts]: the number of tokens for each host; None if there is one host
        * int32 [experts]: the number of tokens for each expert
        * bool [tokens, ranks]: whether each token goes to each rank
        * the event"""
        def count() -> tuple[Any, list[Any]]:
            per_rank, per_expert, last = count_routing(topk_idx, num_experts, self.group_size)
            per_host = None if self._rows.num_hosts == 1 else _count_for_hosts(last >= 0, self._rows.hosts)
            tensors = [per_rank, per_host, per_expert, last >= 0]
            return tensors, tensors
        return self._stream.run(count, [topk_idx], previous_event, async_finish)

    def dispatch(self, x: Any, handle: RankHandle | None = None, num_tokens_per_rank: Any = None, num_tokens_per_rdma_rank: Any = None,
                 is_token_in_rank: Any = None, num_tokens_per_expert: Any = None, topk_idx: Any = None, topk_weights: Any = None,
                 expert_alignment: int = 1, num_worst_tokens: int = 0, config: Config | None = None, previous_event: Any = None,
                 async_finish: bool = False, allocate_on_comm_stream: bool = False) -> Any:
        """Sends each row of `x` [tokens, hidden] to the ranks that `is_token_in_rank` names. `x` may be a pair (rows, scales).
        get_dispatch_layout() returns `is_token_in_rank` and the counts.

        Returns a tuple:

        * the received rows, sorted by source rank and token; a pair (rows, scales) if `x` is a pair
        * int64 [rows, top_k]: the ids of this rank's experts among each row's `topk_idx`; -1 for an expert of another rank
        * float32 [rows, top_k]: the weights of these experts; 0 where the id is -1
        * a list with the number of rows for each expert of this rank, rounded up to a multiple of `expert_alignment`
        * the handle
        * the event

        If `num_worst_tokens` is given, the result has this number of rows, the list is empty, and the host does not wait for the GPU.
        `num_worst_tokens` must be the same on all ranks, and at least the number of ranks times the largest number of tokens of a rank.
        With the `handle` of an earlier dispatch, the rows go to the same ranks as in that dispatch, and all results except the rows and the
        event are None."""
        data, scales = x if isinstance(x, tuple) else (x, None)
        if handle is None and (num_tokens_per_rank is None or is_token_in_rank is None or num_tokens_per_expert is None):
            raise ValueError("a dispatch without a handle needs num_tokens_per_rank, is_token_in_rank and num_tokens_per_expert")
        if (topk_idx is None) != (topk_weights is None) or handle is not None and topk_idx is not None:
            raise ValueError("pass both topk_idx and topk_weights, or neither of the two. With a handle, pass neither")
        blocks = (config or self.get_dispatch_config(self.group_size)).num_sms

        def move() -> tuple[Any, list[Any]]:
            words = pack_words(scales, topk_idx, topk_weights)
            if handle is not None:
                sent = self._rows.send(data, handle.sent.ranks, words, handle.sent.sources.shape[0], handle.sent.exchange, blocks)
                came = unpack_words(sent.words, scales, 0, 0)[0]
                return (_pair(sent.rows, came), None, None, None, None), [sent.rows, came]
            return self._send(data, scales, words, num_tokens_per_rank, is_token_in_rank, num_tokens_per_expert, topk_idx, topk_weights,
                              expert_alignment, num_worst_tokens, blocks)
        inputs = (data, scales, topk_idx, topk_weights, is_token_in_rank, num_tokens_per_rank, num_tokens_per_expert)
        return self._stream.run(move, inputs, previous_event, async_finish)

    def _send(self, data: Any, scales: Any, words: Any, per_rank: Any, is_token_in_rank: Any, per_expert: Any, topk_idx: Any,
              topk_weights: Any, alignment: int, num_worst_tokens: int, blocks: int) -> tuple[Any, list[Any]]:
        import torch
        counts, matrix, tokens = self._rows.exchange_counts(per_expert, per_rank, data.shape[0])
        rows, max_tokens, listed = num_worst_tokens, -(-num_worst_tokens // self.group_size), []
        if num_worst_tokens == 0:
            rows, max_tokens, *listed = torch.cat([matrix[:, self.rank].sum(0, keepdim=True), tokens.amax(0, keepdim=True), counts]).tolist()
            self._rows.check_error()
        numbers = torch.arange(self.group_size, dtype=torch.int32, device=data.device)
        sent = self._rows.send(data, torch.where(is_token_in_rank, numbers, -1), words, rows, max(1, max_tokens), blocks)
        top_k = 0 if topk_idx is None else topk_idx.shape[1]
        came, ids, weights = unpack_words(sent.words, scales, top_k, top_k)
        if top_k:
            local = per_expert.numel() // self.group_size
            ids, weights = localise(ids.to(topk_idx.dtype), weights, sent, self.rank * local, local)
        kept = dataclasses.replace(sent, rows=None, words=None)
        handle = RankHandle(matrix, is_token_in_rank, kept, self.rank, self._rows.hosts)
        aligned = [-(-count // alignment) * alignment for count in listed]
        tensors = [sent.rows, came, ids, weights, matrix, sent.sources, sent.ranks, sent.dispatched.handle]
        return (_pair(sent.rows, came), ids, weights, aligned, handle), tensors

    def combine(self, x: Any, handle: RankHandle, topk_weights: Any = None, bias: Any = None, config: Config | None = None,
                previous_event: Any = None, async_finish: bool = False,
                allocate_on_comm_stream: bool = False) -> Any:
        """Returns the combined rows [tokens, hidden], the sum of `topk_weights`, and the event. A combined row is the sum of one or two
        tensors `bias` and of the rows of `x` that all ranks hold for the token. `x` has the layout of the rows that the dispatch returned.

        On one host, adds in float32, first the biases, then the rows in rank order, and rounds once. On several hosts, each other host's
        sum is rounded, and the biases are added to the rounded sum of all rows."""
        blocks = (config or self.get_combine_config(self.group_size)).num_sms
        biases = list_biases(bias)

        def move() -> tuple[Any, list[Any]]:
            combined = self._rows.add(x, handle.sent, biases, blocks)
            weights = None if topk_weights is None else self._rows.add_weights(topk_weights, handle.sent, blocks)
            return (combined, weights), [combined, weights]
        return self._stream.run(move, (x, topk_weights, *biases), previous_event, async_finish)

    def internode_dispatch(self, x: Any, handle: RankHandle | None = None, num_tokens_per_rank: Any = None,
                           num_tokens_per_rdma_rank: Any = None, is_token_in_rank: Any = None, num_tokens_per_expert: Any = None,
                           topk_idx: Any = None, topk_weights: Any = None, expert_alignment: int = 1, config: Config | None = None,
                           previous_event: Any = None, async_finish: bool = False, allocate_on_comm_stream: bool = False) -> Any:
        """The same as dispatch()."""
        return self.dispatch(x, handle, num_tokens_per_rank, num_tokens_per_rdma_rank, is_token_in_rank, num_tokens_per_expert, topk_idx,
                             topk_weights, expert_alignment, 0, config, previous_event, async_finish, allocate_on_comm_stream)

    internode_combine = combine

    def clean_low_latency_buffer(self, num_max_dispatch_tokens_per_rank: int, hidden: int, num_experts: int) -> None:
        """Does nothing, because each call leaves the buffer clean."""

    def _next_exchange(self, max_tokens: int, hidden: int, experts: int, top_k: int) -> ExpertExchange:
        """Returns one of two exchanges in turn, so that a batch can be sent before the previous batch has been received."""
        shape = (max_tokens, hidden, experts, top_k)
        if shape not in self._exchanges:
            blocks = share_multiprocessors()
            options = _options(*shape, self._rows.num_hosts)
            self._exchanges[shape] = [ExpertExchange(self._context, blocks=blocks, **options) for _ in range(2)]
            self._set_living(self._exchanges[shape])
        self._turns[shape] = turn = self._turns.get(shape, 1) ^ 1
        return self._exchanges[shape][turn]

    def _set_living(self, exchanges: list[ExpertExchange]) -> None:
        for exchange in exchanges:
            exchange.set_living(set(range(self.group_size)) - self._left_out)

    def _expect_single_ranks(self) -> None:
        if 1 < self._rows.num_hosts < self.group_size:
            raise NotImplementedError(
                f"a single rank of the {self._rows.num_hosts} hosts cannot be excluded, because each rank also forwards rows from other "
                "hosts to the ranks of its host. Pass enable_shrink=False, or have one rank on each host")

    def _list_exchanges(self) -> list[ExpertExchange]:
        return [exchange for pair in self._exchanges.values() for exchange in pair]

    def low_latency_update_mask_buffer(self, rank_to_mask: int, mask: bool = False) -> None:
        """Excludes a rank from later calls (mask=True) or includes it again (mask=False). All ranks that continue must call this method
        between the same two calls. A late rank is not excluded automatically. Instead, the call after the timeout raises an error that
        names the late rank. Then call low_latency_clean_mask_buffer() on all ranks, and exclude the late rank with this method."""
        self._expect_single_ranks()
        before = set(self._left_out)
        (self._left_out.add if mask else self._left_out.discard)(rank_to_mask)
        changed: list[ExpertExchange] = []
        try:
            for exchange in self._list_exchanges():
                self._set_living([exchange])
                changed.append(exchange)
        except BaseException:
            self._left_out = before
            self._set_living(changed)  # the old mask may be set again until the exchange's next call
            raise

    def low_latency_query_mask_buffer(self, mask_status: Any) -> None:
        """Writes 1 for each excluded rank, and 0 for every other rank, to `mask_status` (int32 [ranks])."""
        mask_status.copy_(mask_status.new_tensor([int(rank in self._left_out) for rank in range(self.group_size)]))

    def low_latency_clean_mask_buffer(self) -> None:
        """Includes all ranks again, and resets the exchanges. Collective over all ranks, including the excluded ranks."""
        self._left_out.clear()
        for exchange in self._list_exchanges():
            exchange.reset()
        self._set_living(self._list_exchanges())

    def low_latency_dispatch(self, x: Any, topk_idx: Any, num_max_dispatch_tokens_per_rank: int, num_experts: int,
                             cumulative_local_expert_recv_stats: Any = None, dispatch_wait_recv_cost_stats: Any = None, use_fp8: bool = True,
                             round_scale: bool = False, use_ue8m0: bool = False, async_finish: bool = False,
                             return_recv_hook: bool = False) -> tuple[Any, Any, LowLatencyHandle, EventOverlap, Callable[[], None] | None]:
        """Sends BF16 rows `x` [tokens, hidden] to the ranks of their experts `topk_idx` (int64 [tokens, top_k]; -1 for no expert).

        Returns a tuple:

        * the received rows [experts of this rank, ranks * max tokens, hidden], grouped by expert; with FP8, a pair of e4m3 rows and
          column-major scales
        * int32 [experts of this rank]: the number of rows for each expert
        * the handle
        * the event
        * with return_recv_hook, a hook; otherwise None

        The hook is a function that receives the rows. The rows are not valid before the hook is called, and no kernel of the dispatch runs
        between the sending kernel and the hook. Do not change `x` and `topk_idx` before the hook has run, because the hook reads this
        rank's own rows and ids. dispatch_wait_recv_cost_stats is not written."""
        exchange = self._next_exchange(num_max_dispatch_tokens_per_rank, x.shape[1], num_experts, topk_idx.shape[1])
        cast = None if not use_fp8 else "fp8_block_exponent" if use_ue8m0 else "fp8_block_power" if round_scale else "fp8_block"
        call = functools.partial(exchange.dispatch, x, topk_idx, cast=cast, grouping=Grouping.EXPERT, column_scales=use_fp8)
        sent = call(phase=Phase.SEND if return_recv_hook else Phase.BOTH)

        def receive() -> None:
            if return_recv_hook:
                call(phase=Phase.RECEIVE, out=sent)
            if cumulative_local_expert_recv_stats is not None:
                cumulative_local_expert_recv_stats.add_(sent.expert_counts)
        if not return_recv_hook:
            receive()
        rows = (sent.rows, sent.scales) if use_fp8 else sent.rows
        handle = LowLatencyHandle(exchange, sent, x.shape[1], num_experts)
        return (rows, sent.expert_counts, handle, _finish(async_finish, (x, topk_idx, sent)), receive if return_recv_hook else None)

    def low_latency_combine(self, x: Any, topk_idx: Any, topk_weights: Any, handle: LowLatencyHandle, use_logfmt: bool = False,
                            zero_copy: bool = False, async_finish: bool = False, return_recv_hook: bool = False, out: Any = None,
                            combine_wait_recv_cost_stats: Any = None) -> tuple[Any, EventOverlap, Callable[[], None] | None]:
        """Returns [tokens, hidden]: for each token the weighted sum of the rows of its experts, with `topk_weights` (float32). `x` has the
        shape of the dispatched rows. With zero_copy, reads the memory that get_next_low_latency_combine_buffer() returned instead of `x`.
        use_logfmt has no effect, because rows are sent as they are.

        On one host, adds in float32 in top-k order and rounds once. On several hosts, a kernel sends the weights to the experts' ranks,
        which add the rows as with verbena.moe.Order.REDUCED. In this case, the kernel waits until all ranks have made the call, even with
        return_recv_hook."""
        rows = handle.combine_rows if zero_copy else x
        if rows is None:
            raise ValueError("zero_copy needs the memory of get_next_low_latency_combine_buffer(handle)")
        if self._rows.num_hosts == 1:
            call = functools.partial(handle.exchange.combine, rows, handle.dispatched, Order.EXACT, weights=topk_weights)
        else:
            nothing = rows.new_zeros([topk_idx.shape[0], _SHORTEST_ROW])
            weighted = handle.exchange.dispatch(nothing, topk_idx, topk_weights, grouping=Grouping.EXPERT)
            call = functools.partial(handle.exchange.combine, rows, weighted, Order.REDUCED)
        combined = call(out=out, phase=Phase.SEND if return_recv_hook else Phase.BOTH)

        def receive() -> None:
            call(out=combined, phase=Phase.RECEIVE)
        return combined, _finish(async_finish, (rows, topk_weights, handle, combined)), receive if return_recv_hook else None

    def get_next_low_latency_combine_buffer(self, handle: LowLatencyHandle) -> Any:
        """Returns memory for the rows of a combine with zero_copy: BF16, in the shape of the dispatched rows."""
        import torch
        if handle.combine_rows is None:
            rows = handle.dispatched.rows
            handle.combine_rows = rows.new_empty([*rows.shape[:-1], handle[3]], dtype=torch.bfloat16)
        return handle.combine_rows


def _options(max_tokens: int, hidden: int, experts: int, top_k: int, hosts: int) -> dict[str, Any]:
    return {"experts": experts, "max_tokens": max_tokens, "top_k": top_k, "hidden": hidden, "max_scale_bytes": 4 * -(-hidden // 128),
            "exact": hosts == 1}


def _guess_hosts(num_ranks: int) -> int:
    return num_ranks // _GPUS_OF_HOST if num_ranks % _GPUS_OF_HOST == 0 else 1


def _count_for_hosts(is_token_in_rank: Any, hosts: Sequence[int]) -> Any:
    """Returns the number of tokens for each host, int32 [hosts]. A token counts once for each host that has at least one of the token's
    ranks."""
    import torch
    ranks_of = [[rank for rank, one in enumerate(hosts) if one == host] for host in sorted(set(hosts))]
    return torch.stack([is_token_in_rank[:, ranks].any(1).sum(dtype=torch.int32) for ranks in ranks_of])


def _pair(rows: Any, scales: Any) -> Any:
    return rows if scales is None else (rows, scales)


def _finish(async_finish: bool, tensors: tuple[Any, ...]) -> EventOverlap:
    return EventOverlap(EventHandle() if async_finish else None, tensors if async_finish else None)


def find_folder() -> pathlib.Path:
    """Returns the folder that contains the module named deep_ep."""
    return pathlib.Path(__file__).parent / "as_deep_ep"


if __name__ == "__main__":
    print(find_folder())
