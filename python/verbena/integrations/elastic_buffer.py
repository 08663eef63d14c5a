"""DeepEP 2's `ElasticBuffer` over verbena.moe."""
import contextlib
import dataclasses
from collections.abc import Sequence
from typing import Any

from verbena.communicators import adapt
from verbena.context import SymmetricContext
from verbena.integrations.comm_stream import CommStream, EventHandle
from verbena.integrations.rank_rows import RankRows, Sent, count_routing, localise, pack_words, share_multiprocessors, unpack_words
from verbena.moe import ExpertExchange

_DEFAULT_MAX_TOKENS = 4096  # per rank
_ABSENT = ("engram_write", "engram_fetch", "pp_set_config", "pp_send", "pp_recv", "create_agrs_session", "destroy_agrs_session",
           "agrs_new_session", "agrs_set_config", "agrs_get_inplace_tensor", "all_gather")


@dataclasses.dataclass
class EPHandle:
    """The handle of a dispatch. combine() uses this handle, and so do later dispatches that send other rows to the same experts. Tensors
    are in GPU memory."""
    do_expand: bool
    num_experts: int
    expert_alignment: int
    num_max_tokens_per_rank: int
    num_sms: int
    topk_idx: Any                               # [tokens, top_k]
    num_recv_tokens: int                        # number of received rows; without do_cpu_sync: number of rows of the output
    num_expanded_tokens: int                    # number of rows of an expanded output, including padding
    num_recv_tokens_per_expert_list: list[int]  # including padding; empty without do_cpu_sync
    psum_num_recv_tokens_per_scaleup_rank: Any  # int32 [ranks]: number of rows from source ranks 0 to r
    psum_num_recv_tokens_per_expert: Any        # int32 [experts of a rank]: end of each expert's rows; if not expanded, including padding
    num_unaligned_recv_tokens_per_expert: Any   # int32 [experts of a rank]: number of rows, without padding
    recv_src_metadata: Any                      # int32 [rows, 2 + top_k]: source rank * max tokens + token, the source rank, rows of the expanded output
    dst_buffer_slot_idx: Any                    # int32 [tokens, top_k]: index of the row among the rows for the expert's rank; -1: none
    sent: Sent
    local_idx: Any                              # [rows, top_k]: experts of this rank; -1: none
    places: Any                                 # [rows, top_k]: rows of the expanded output; -1: none
    slots: Any                                  # [rows of the expanded output]: row * top_k + slot; -1: none
    token_metadata_at_forward: Any = None
    channel_linked_list: Any = None


class ElasticBuffer:
    """DeepEP's ElasticBuffer. Creating an ElasticBuffer is collective over `group`, which may have the same types as for
    verbena.integrations.deep_ep.Buffer.

    Received rows are always sorted by source rank and token. The first call with a new shape allocates memory and is collective. num_bytes,
    num_cpu_bytes and the numbers of queue pairs have no effect. Timeouts have no effect either; VERBENA_SYMM_TIMEOUT_MS limits waits.

    If the ranks are on several hosts, each host must have the same number of ranks, and allow_multiple_reduction must be True; the
    constructor raises an error otherwise. All ranks are one logical domain, as in DeepEP without allow_hybrid_mode, although a row goes
    only once to each host."""

    def __init__(self, group: Any, num_bytes: int | None = None, num_cpu_bytes: int = 0, num_max_tokens_per_rank: int = 0, hidden: int = 0,
                 num_topk: int = 0, use_fp8_dispatch: bool = False, deterministic: bool = False, allow_hybrid_mode: bool = True,
                 allow_multiple_reduction: bool = True, prefer_overlap_with_compute: bool = True, sl_idx: int = 3, num_allocated_qps: int = 0,
                 num_cpu_timeout_secs: int = 300, num_gpu_timeout_secs: int = 100, explicitly_destroy: bool = False) -> None:
        self.group, self.deterministic, self.explicitly_destroy = group, deterministic, explicitly_destroy
        self.allow_hybrid_mode, self.allow_multiple_reduction = allow_hybrid_mode, allow_multiple_reduction
        self.prefer_overlap_with_compute = prefer_overlap_with_compute
        self.num_max_tokens_per_rank, self.num_allocated_qps = num_max_tokens_per_rank, num_allocated_qps or 17
        self._context, self._owns_context = open_context(group)
        with contextlib.ExitStack() as undo:
            undo.callback(self._context.close if self._owns_context else lambda: None)
            self._rows = RankRows(self._context)
            if self._rows.num_hosts > 1 and not allow_multiple_reduction:
                raise NotImplementedError(
                    f"the ranks are on {self._rows.num_hosts} hosts, and each host sends only one sum per token. Pass "
                    f"allow_multiple_reduction=True")
            undo.pop_all()
        self.rank_idx = self.scaleup_rank_idx = self._context.rank
        self.num_ranks = self.num_scaleup_ranks = self._context.size
        self.num_scaleout_ranks, self.scaleout_rank_idx = 1, 0
        self.num_rdma_ranks, self.num_nvlink_ranks = self._rows.num_hosts, self.num_ranks // self._rows.num_hosts
        self._max_tokens = num_max_tokens_per_rank or min(_DEFAULT_MAX_TOKENS, ExpertExchange.find_max_tokens(self.num_ranks))
        self.num_bytes = num_bytes if num_bytes is not None else self._rows.workspace_bytes(
            self.num_ranks, self._max_tokens, hidden, self.num_rdma_ranks) if hidden else 0
        self.runtime = self
        self._stream = CommStream()

    def destroy(self) -> None:
        """Frees the memory. No kernel of any rank may still be using the memory. Collective."""
        self._rows.free()
        if self._owns_context:
            self._context.close()

    @staticmethod
    def get_buffer_size_hint(group: Any, num_max_tokens_per_rank: int, hidden: int, num_topk: int = 0, use_fp8_dispatch: bool = False,
                             allow_hybrid_mode: bool = True, allow_multiple_reduction: bool = True) -> int:
        """Returns how many bytes of GPU memory dispatch and combine allocate on each rank. Biases need additional memory. If the ranks are
        on several hosts, more memory is needed; the function knows the hosts only if `group` is a SymmetricContext."""
        size = group.size if isinstance(group, SymmetricContext) else adapt(group).size
        hosts = size // group.lsa.size if isinstance(group, SymmetricContext) else 1
        return RankRows.workspace_bytes(size, num_max_tokens_per_rank, hidden, hosts)

    @staticmethod
    def capture() -> EventHandle:
        return EventHandle()

    def get_comm_stream(self) -> Any:
        return self._stream.find()

    def get_physical_domain_size(self) -> tuple[int, int]:
        """Returns the number of hosts, and the number of ranks on each host."""
        return self.num_rdma_ranks, self.num_nvlink_ranks

    def get_logical_domain_size(self) -> tuple[int, int]:
        return 1, self.num_ranks

    def get_theoretical_num_sms(self, num_experts: int, num_topk: int, num_scaleout_topk: int = 0, *_: float) -> int:
        return max(4, share_multiprocessors() // 2 * 2) if not self.prefer_overlap_with_compute else 24

    def get_theoretical_num_qps(self, num_sms: int) -> int:
        return min(num_sms, self.num_allocated_qps)

    def barrier(self, use_comm_stream: bool = True, with_cpu_sync: bool = False, sequential: bool = True) -> None:
        """Waits until the GPUs of all ranks have completed all work enqueued before the barrier."""
        import torch
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        self._context.barrier()

    def dispatch(self, x: Any, topk_idx: Any = None, topk_weights: Any = None, cumulative_local_expert_recv_stats: Any = None,
                 num_experts: int | None = None, num_max_tokens_per_rank: int | None = None, expert_alignment: int | None = None,
                 num_sms: int = 0, num_qps: int = 0, previous_event: Any = None, previous_event_before_epilogue: Any = None,
                 async_with_compute_stream: bool = False, allocate_on_comm_stream: bool = False, handle: EPHandle | None = None,
                 do_handle_copy: bool = True, do_cpu_sync: bool | None = None, do_expand: bool = False, do_zero_padding: bool = False,
                 use_tma_aligned_col_major_sf: bool = False) -> Any:
        """Sends each row of `x` [tokens, hidden] to the ranks of its experts `topk_idx` (-1 for no expert). `x` may be a pair (rows,
        scales).

        Returns a tuple:

        * the received rows; with do_expand, one row for each expert, grouped by expert; a pair (rows, scales) if `x` is a pair
        * for each row, the ids of its experts, with -1 for an expert of another rank; None with do_expand
        * the weights
        * the handle
        * the event

        Without do_cpu_sync, the number of rows is the maximum that any routing needs, and rows after the received rows are not written. A
        dispatch with a `handle` never uses do_cpu_sync."""
        data, scales = x if isinstance(x, tuple) else (x, None)
        if handle is not None and (topk_idx is not None or do_cpu_sync or handle.do_expand != do_expand):
            raise ValueError("with a handle, pass neither topk_idx nor do_cpu_sync, and pass the do_expand of the dispatch that returned the handle")

        def move() -> tuple[Any, list[Any]]:
            _wait_for(previous_event_before_epilogue)
            words = pack_words(scales, topk_idx, topk_weights)
            top_k = 0 if topk_idx is None else topk_idx.shape[1]
            if handle is None:
                done = self._begin(data, topk_idx, words, num_experts, num_max_tokens_per_rank or self._max_tokens,
                                   expert_alignment or 1, num_sms, do_handle_copy, do_cpu_sync is not False, do_expand)
                sent = done.sent
            else:
                done = handle
                sent = self._rows.send(data, done.sent.ranks, words, done.num_recv_tokens, done.sent.exchange, num_sms)
            came, ids, weights = unpack_words(sent.words, scales, top_k, 0 if topk_weights is None else topk_weights.shape[1])
            if handle is None:
                self._place(done, ids)
            result = self._present(done, sent.rows, came, weights, do_zero_padding, use_tma_aligned_col_major_sf)
            if cumulative_local_expert_recv_stats is not None:
                cumulative_local_expert_recv_stats.add_(done.num_unaligned_recv_tokens_per_expert)
            done.sent = dataclasses.replace(done.sent, rows=None, words=None)
            tensors = [*(result[0] if isinstance(result[0], tuple) else result[:1]), *result[1:], *list_tensors(done), *list_tensors(done.sent)]
            return (*result, done), tensors

        return self._stream.run(move, (data, scales, topk_idx, topk_weights, cumulative_local_expert_recv_stats), previous_event, async_with_compute_stream)

    def _begin(self, data: Any, topk_idx: Any, words: Any, num_experts: int | None, max_tokens: int, alignment: int, num_sms: int,
               do_handle_copy: bool, do_cpu_sync: bool, do_expand: bool) -> EPHandle:
        import torch
        if num_experts is None or topk_idx is None:
            raise ValueError("a dispatch without a handle needs topk_idx and num_experts")
        ranks, top_k, local = self.num_ranks, topk_idx.shape[1], num_experts // self.num_ranks
        per_rank, per_expert, last = count_routing(topk_idx, num_experts, ranks)
        counts, matrix, _ = self._rows.exchange_counts(per_expert, per_rank, data.shape[0])
        from_ranks = matrix[:, self.rank_idx].cumsum(0).int()
        aligned = (counts + alignment - 1) // alignment * alignment
        ends = aligned.cumsum(0)
        rows, listed = ranks * max_tokens, []
        expanded = rows * min(top_k, local) + min(local, rows * top_k) * (alignment - 1)
        if do_cpu_sync:
            rows, *listed = torch.cat([from_ranks[-1:], aligned]).tolist()
            self._rows.check_error()
            expanded = sum(listed)
        # combine() adds a token's rows in the order of each rank's last entry in the token's top-k list.
        places, order = last.sort(1)
        sent = self._rows.send(data, torch.where(places >= 0, order, -1).int(), words, rows, max_tokens, num_sms)
        number = (last >= 0).cumsum(0) - 1
        rank_of = (topk_idx // local).clamp(0, ranks - 1)
        slot = torch.where((topk_idx >= 0) & (topk_idx < num_experts), number.gather(1, rank_of.long()), -1).int()
        metadata = torch.stack([sent.source_ranks * max_tokens + sent.tokens, sent.source_ranks], 1)
        return EPHandle(do_expand, num_experts, alignment, max_tokens, num_sms, topk_idx.clone() if do_handle_copy else topk_idx, rows, expanded,
                        listed, from_ranks, ((ends - aligned + counts) if do_expand else ends).int(), counts, metadata, slot, sent, None, None, None)

    def _place(self, handle: EPHandle, ids: Any) -> None:
        """Finds the experts of each received row. Then finds a position in the expanded output for each pair of a row and an expert. The
        expanded output is sorted by expert and then by row."""
        import torch
        local = handle.num_experts // self.num_ranks
        handle.local_idx, _ = localise(ids.to(handle.topk_idx.dtype), None, handle.sent, self.rank_idx * local, local)
        none = torch.full_like(handle.local_idx, -1, dtype=torch.int32)
        handle.places = none
        if handle.do_expand:
            flat = torch.where(handle.local_idx >= 0, handle.local_idx, local).flatten()
            experts, order = flat.sort(stable=True)
            counts = handle.num_unaligned_recv_tokens_per_expert.long()
            shift = torch.nn.functional.pad(handle.psum_num_recv_tokens_per_expert.long() - counts.cumsum(0), (0, 1))
            place = torch.where(experts < local, torch.arange(len(flat), device=flat.device) + shift[experts.long()], -1)
            handle.places = none.flatten().scatter(0, order, place.int()).view_as(none)
            slots = torch.full([handle.num_expanded_tokens + 1], -1, dtype=torch.int64, device=flat.device)
            slots.scatter_(0, torch.where(place >= 0, place, handle.num_expanded_tokens), order)
            handle.slots = slots[:-1]
        handle.recv_src_metadata = torch.cat([handle.recv_src_metadata, handle.places], 1)

    def _present(self, handle: EPHandle, rows: Any, scales: Any, weights: Any, do_zero_padding: bool, in_columns: bool) -> tuple[Any, Any, Any]:
        import torch
        if weights is not None:
            weights = torch.where(handle.local_idx >= 0, weights, 0.0)
        ids = handle.local_idx
        if handle.do_expand:
            source = (handle.slots.clamp(min=0)) // max(1, handle.local_idx.shape[1])
            rows = rows.view(torch.int32)[source].view(rows.dtype)
            scales = None if scales is None else scales[source]
            weights = None if weights is None else weights.flatten()[handle.slots.clamp(min=0)]
            ids = None
            if do_zero_padding:
                is_padding = handle.slots < 0
                for one in (rows.view(torch.int32), scales):
                    if one is not None:
                        one.masked_fill_(is_padding.unsqueeze(1), 0)
                if weights is not None:
                    weights.masked_fill_(is_padding, 0)
        if scales is not None and in_columns:
            columns = scales.new_empty([scales.shape[1], -(-scales.shape[0] // 4) * 4]).t()[:scales.shape[0]]
            scales = columns.copy_(scales)
        return rows if scales is None else (rows, scales), ids, weights

    def combine(self, x: Any, handle: EPHandle, topk_weights: Any = None, bias: Any = None, num_sms: int = 0, num_qps: int = 0,
                previous_event: Any = None, previous_event_before_epilogue: Any = None, async_with_compute_stream: bool = False,
                allocate_on_comm_stream: bool = False) -> Any:
        """Returns the combined rows [tokens, hidden] and the sum of `topk_weights` ([rows, top_k], or [rows] after an expanded dispatch). A
        combined row is the sum of the token's BF16 rows of `x`, without weights. `x` has the layout of the rows that the dispatch returned.

        Each rank adds its rows of a token in top-k order and rounds the sum. The token's rank then adds these sums to the biases, in the
        order of each rank's last entry in the token's top-k list. Without allow_multiple_reduction, the token's rank adds all rows, without
        intermediate rounding. On several hosts, the ranks' sums are added as RankRows describes, and the biases are added to the rounded
        sum."""
        import torch
        biases = list_biases(bias)
        blocks = num_sms or handle.num_sms

        def move() -> tuple[Any, list[Any]]:
            _wait_for(previous_event_before_epilogue)
            rows, weights, is_placed = x, topk_weights, handle.places >= 0
            place = handle.places.clamp(min=0).long()
            if handle.do_expand and weights is not None:
                weights = torch.where(is_placed, weights[place], 0.0)
            if handle.do_expand and not self.allow_multiple_reduction:
                local = handle.num_experts // self.num_ranks
                combined = self._rows.add_slots(rows, handle.topk_idx, local, handle.expert_alignment, biases, handle.sent.exchange.max_tokens, blocks)
            else:
                if handle.do_expand:
                    total = torch.zeros([place.shape[0], x.shape[1]], dtype=torch.float32, device=x.device)
                    for slot in range(place.shape[1]):
                        total += torch.where(is_placed[:, slot:slot + 1], x[place[:, slot]], 0.0)
                    rows = total.to(x.dtype)
                combined = self._rows.add(rows, handle.sent, biases, blocks)
            combined_weights = None if weights is None else self._rows.add_weights(weights, handle.sent, blocks)
            return (combined, combined_weights), [combined, combined_weights]

        return self._stream.run(move, (x, topk_weights, *biases), previous_event, async_with_compute_stream)

    def __getattr__(self, name: str) -> Any:
        if name in _ABSENT:
            raise NotImplementedError(f"ElasticBuffer.{name}() is not implemented in Verbena's deep_ep. Use DeepEP itself")
        raise AttributeError(f"ElasticBuffer has no attribute {name!r}")


def open_context(group: Any) -> tuple[SymmetricContext, bool]:
    """Returns the context of a group, and whether this call created it."""
    if isinstance(group, SymmetricContext):
        return group, False
    ranks = adapt(group)
    return SymmetricContext.from_all_gather(ranks.all_gather, ranks.rank, ranks.size), True


def _wait_for(event: Any) -> None:
    """Waits for the event. Verbena has no separate epilogue, so the whole call waits."""
    if event is not None:
        event.current_stream_wait()


def list_biases(bias: Any) -> Sequence[Any]:
    return () if bias is None else bias if isinstance(bias, tuple) else (bias,)


def list_tensors(of: Any) -> list[Any]:
    """Returns the tensors in a dataclass."""
    values = (getattr(of, field.name) for field in dataclasses.fields(of))
    return [value for value in values if hasattr(value, "data_ptr")]
