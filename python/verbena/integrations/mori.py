"""MORI's dispatch and combine of mixture of experts over verbena.moe, within one host and between hosts. Has the classes that AITER, ATOM,
vLLM and SGLang use from the module `mori` on AMD GPUs.

    context = verbena.SymmetricContext.from_environment()
    op = EpDispatchCombineOp(EpDispatchCombineConfig(
        data_type=torch.float8_e4m3fn, rank=context.rank, world_size=context.size, hidden_dim=6144, scale_dim=48, scale_type_size=4,
        max_token_type_size=2, max_num_inp_token_per_rank=128, num_experts_per_rank=2, num_experts_per_token=2), context)
    rows, weights, scales, ids, count = op.dispatch(x, topk_weights, x_scales, topk_ids)
    y, _ = op.combine(experts(rows, weights, scales, ids, count), None, topk_ids)

Received rows are always sorted by source rank and token. Rows after the count have ids of -1."""
import dataclasses
import enum
import functools
import math
import types
import warnings
from typing import Any

from verbena.communicators import adapt
from verbena.context import SymmetricContext
from verbena.moe import Dispatched, ExpertExchange, Grouping, Order, Phase
from verbena.team import SymmetricTeam

__all__ = ["EpDispatchCombineConfig", "EpDispatchCombineKernelType", "EpDispatchCombineOp", "EpDispatchCombineQuantType", "ops", "shmem"]

_WORD_BYTES = 4


class EpDispatchCombineKernelType(enum.Enum):
    """MORI's kinds of kernels. The value has no effect, because an op itself determines which ranks are on other hosts. Engines choose
    AsyncLL to call the send and receive methods separately."""
    InterNode = 0
    IntraNode = 1
    InterNodeV1 = 2
    InterNodeV1LL = 3
    AsyncLL = 4
    IntraNodeLL = 5


class EpDispatchCombineQuantType(enum.Enum):
    """MORI's quantisation of the rows of a combine. The value has no effect, because Verbena sends these rows as they are."""
    None_ = 0
    Fp8DirectCast = 1


@dataclasses.dataclass
class EpDispatchCombineConfig:
    """MORI's configuration. `block_num` is the maximum number of blocks of a kernel.

    These fields have no effect: warp_num_per_block, rdma_block_num, num_qp_per_pe, gpu_per_node, kernel_type, quant_type,
    use_external_inp_buf (a combine can read any memory), and max_total_recv_tokens (there is always memory for all tokens)."""
    data_type: Any
    rank: int
    world_size: int
    hidden_dim: int
    scale_dim: int
    scale_type_size: int
    max_token_type_size: int
    max_num_inp_token_per_rank: int
    num_experts_per_rank: int
    num_experts_per_token: int
    warp_num_per_block: int = 8
    block_num: int = 80
    max_total_recv_tokens: int = 0
    use_external_inp_buf: bool = True
    kernel_type: EpDispatchCombineKernelType = EpDispatchCombineKernelType.IntraNode
    gpu_per_node: int = 8
    rdma_block_num: int = 0
    num_qp_per_pe: int = 1
    quant_type: Any = "none"

    @property
    def max_num_tokens_to_recv(self) -> int:
        return self.world_size * self.max_num_inp_token_per_rank


@dataclasses.dataclass
class _Sent:
    """A dispatch in flight. The kernel that receives takes the same arguments as the kernel that sends."""
    receive: Any
    sent: Dispatched
    results: tuple[Any, Any, Any, Any, Any]


class EpDispatchCombineOp:
    """Runs one dispatch and one combine at a time. Creating and freeing an op is collective over the context. Calls may be captured in a
    CUDA graph. Calls never synchronise with the GPU, except get_dispatch_src_token_pos().

    A row is sent once to each rank that has an expert of its token. All ids and weights of the token and the scales of the row go with the
    row. Scales are not interpreted, so quantise the rows before the dispatch. Received rows are contiguous, because the underlying exchange
    treats each rank as one expert.

    Ranks may be on several hosts with the same number of ranks on each host; otherwise the constructor raises VerbenaError. Between
    hosts, a row goes once to each host, and one sum of each host comes back."""

    def __init__(self, config: EpDispatchCombineConfig, context: SymmetricContext | None = None, team: SymmetricTeam | None = None) -> None:
        """Creates the op. Collective. If `context` is None, uses the context of shmem_torch_process_group_init()."""
        self.config = config
        if context is None:
            context = _get_context()
        members = context.world if team is None else team
        if (members.rank, members.size) != (config.rank, config.world_size):
            raise ValueError(f"the config says rank {config.rank} of {config.world_size}, but this process is rank {members.rank} of "
                             f"{members.size}")
        if not 0 < config.num_experts_per_token <= config.num_experts_per_rank * config.world_size:
            raise ValueError(f"num_experts_per_token is {config.num_experts_per_token}; it must be from 1 to "
                             f"{config.num_experts_per_rank * config.world_size}, the number of experts")
        self._scale_bytes = -(-config.scale_dim * config.scale_type_size // _WORD_BYTES) * _WORD_BYTES
        limit = ExpertExchange.find_max_tokens(config.world_size)
        self._max_tokens = min(config.max_num_inp_token_per_rank, limit)
        if self._max_tokens < config.max_num_inp_token_per_rank:
            warnings.warn(f"verbena: max_num_inp_token_per_rank is {config.max_num_inp_token_per_rank}, but a batch may have at most "
                          f"{limit} tokens of a rank; a rank with more tokens raises an error, and the other ranks time out", stacklevel=2)
        self._exchange = ExpertExchange(
            context, team, experts=config.world_size, max_tokens=self._max_tokens, top_k=config.num_experts_per_token,
            hidden=config.hidden_dim, max_row_bytes=config.hidden_dim * max(2, config.max_token_type_size),
            max_scale_bytes=self._scale_bytes + 2 * _WORD_BYTES * config.num_experts_per_token, blocks=max(0, config.block_num))
        self._in_flight: _Sent | None = None
        self._dispatched: Dispatched | None = None
        self._combine_in_flight: Any = None
        self._own: tuple[Any, Any] = (None, None)  # of the last dispatch: weights, and the rank of each slot of its tokens
        self._combine_inputs: dict[Any, Any] = {}

    def free(self) -> None:
        """Frees the memory. No kernel of any rank may still be using the memory. Collective."""
        self._exchange.free()

    def check_error(self) -> None:
        """Raises VerbenaError if an earlier call timed out, so that its result is not valid. The error names the late rank."""
        self._exchange.check_error()

    def reset(self) -> None:
        """Waits until this rank's GPU is idle, and makes the op usable again. Collective."""
        self._in_flight = self._dispatched = self._combine_in_flight = None
        self._exchange.reset()

    def dispatch(self, input: Any, weights: Any, scales: Any, indices: Any, block_num: int = -1, rdma_block_num: int = -1,
                 warp_per_block: int = -1) -> tuple[Any, Any, Any, Any, Any]:
        """Sends the rows `input` [tokens, elements] to the ranks of their experts `indices` (int32 or int64 [tokens, top_k]).

        Returns five tensors. The first four tensors have ranks * max tokens rows:

        * the received rows
        * float32: the weights of the rows; None if `weights` is None
        * the scales of the rows; None if `scales` is None
        * int32: the ids of each row's experts on all ranks
        * int32 [1]: the number of received rows

        Rows after the received rows are not valid, and the ids of these rows are -1."""
        flight = self._dispatch(input, weights, scales, indices, Phase.BOTH)
        self._unpack(flight)
        return flight.results

    def dispatch_send(self, input: Any, weights: Any, scales: Any, indices: Any, block_num: int = -1, rdma_block_num: int = -1,
                      warp_per_block: int = -1) -> tuple[Any, Any, Any, Any, Any]:
        """Sends the rows of a dispatch(). The results are complete after dispatch_recv()."""
        self._in_flight = self._dispatch(input, weights, scales, indices, Phase.SEND)
        return self._in_flight.results

    def _dispatch(self, input: Any, weights: Any, scales: Any, indices: Any, phase: Phase) -> _Sent:
        if self._in_flight is not None:
            raise RuntimeError("a dispatch is in flight. Call dispatch_recv() first")
        import torch
        top_k = self.config.num_experts_per_token
        if input.shape[0] > self._max_tokens:
            raise ValueError(f"the batch has {input.shape[0]} tokens, more than max_num_inp_token_per_rank, "
                             f"{self.config.max_num_inp_token_per_rank}, or more than the limit of an exchange, "
                             f"{ExpertExchange.find_max_tokens(self.config.world_size)}")
        if list(indices.shape) != [input.shape[0], top_k]:
            raise ValueError(f"indices must have the shape [{input.shape[0]}, {top_k}], not {list(indices.shape)}")
        # Floor division keeps -1. The exchange ignores ids beyond the last expert, because they become numbers beyond the last rank.
        ranks = torch.div(indices, self.config.num_experts_per_rank, rounding_mode="floor")
        is_repeated = (ranks.unsqueeze(2) == ranks.unsqueeze(1)).tril(-1).any(2)
        ranks = ranks.masked_fill(is_repeated, -1)
        load = self._pack(scales, indices.to(torch.int32), weights)
        call = functools.partial(self._exchange.dispatch, input, ranks, scales=load, grouping=Grouping.RAGGED)
        sent = call(phase=phase)
        place = len(sent.rows)
        out_weights = None if weights is None else weights.new_empty([place, top_k], dtype=torch.float32)
        out_scales = None if not self._has_scales(scales) else scales.new_empty([place, *scales.shape[1:]])
        results = (sent.rows, out_weights, out_scales, indices.new_empty([place, top_k], dtype=torch.int32), sent.expert_counts)
        # combine() multiplies each token's weights by the number of ranks to which the token went.
        self._own = (weights, ranks)
        return _Sent(call, sent, results)

    def dispatch_recv(self, block_num: int = -1, warp_per_block: int = -1) -> None:
        """Receives the rows of the last dispatch_send()."""
        if self._in_flight is None:
            raise RuntimeError("no dispatch is in flight. Call dispatch_send() first")
        flight, self._in_flight = self._in_flight, None
        flight.receive(phase=Phase.RECEIVE, out=flight.sent)
        self._unpack(flight)

    def _unpack(self, flight: _Sent) -> None:
        """Copies the scales, ids and weights that arrived with the rows to the results."""
        import torch
        sent, (_, out_weights, out_scales, out_ids, _) = flight.sent, flight.results
        end, id_bytes = self._scale_bytes, _WORD_BYTES * self.config.num_experts_per_token
        if out_scales is not None:
            row_bytes = out_scales[0].numel() * out_scales.element_size()
            out_scales.view(torch.uint8).view(len(out_scales), row_bytes).copy_(sent.scales[:, :row_bytes])
        ids = sent.scales[:, end:end + id_bytes].view(torch.int32)
        out_ids.copy_(ids).masked_fill_((sent.row_sources < 0).unsqueeze(1), -1)
        if out_weights is not None:
            out_weights.copy_(sent.scales[:, end + id_bytes:].view(torch.float32))
        self._dispatched = sent

    def combine(self, input: Any, weights: Any, indices: Any, block_num: int = -1, rdma_block_num: int = -1, warp_per_block: int = -1,
                use_external_inp_buf: int = -1, call_reset: bool = False) -> tuple[Any, Any]:
        """Sends the rows `input` [ranks * max tokens, hidden], BF16 or FP16, back to their tokens' ranks. `input` has one row for each
        received row, already weighted and added over the experts of this rank. `indices` are the indices of the dispatch.

        Returns the combined rows [tokens, hidden] and the combined weights. A combined row is the sum of the token's rows, added in rank
        order; between hosts, the sums of hosts are added. The combined weights are the weights of the dispatch times the number of ranks to
        which the token went; None if `weights` is None. The values of `weights` are not read, because each rank knows the weights that it
        sent."""
        results = self._combine(input, weights, indices, Phase.BOTH)
        if call_reset:
            self.reset()
        return results

    def combine_send(self, input: Any, weights: Any, indices: Any, block_num: int = -1, rdma_block_num: int = -1,
                     warp_per_block: int = -1) -> tuple[Any, Any]:
        """Sends the rows of a combine(). The results are complete after combine_recv()."""
        return self._combine(input, weights, indices, Phase.SEND)

    def _combine(self, input: Any, weights: Any, indices: Any, phase: Phase) -> tuple[Any, Any]:
        sent = self._get_dispatched()
        if self._combine_in_flight is not None:
            raise RuntimeError("a combine is in flight. Call combine_recv() first")
        if indices is not None and len(indices) != sent.tokens:
            raise ValueError(f"the dispatch had {sent.tokens} tokens, but indices has {len(indices)} rows. Pass the indices of the "
                             "dispatch")
        rows = input if len(input) == len(sent.rows) else _lengthen(input, len(sent.rows))
        call = functools.partial(self._exchange.combine, rows, sent, Order.REDUCED)
        out = call(phase=phase)
        if phase == Phase.SEND:
            self._combine_in_flight = functools.partial(call, out=out, phase=Phase.RECEIVE)
        own, ranks = self._own
        if weights is None or own is None:
            return out, None
        return out, own * ((ranks >= 0) & (ranks < self.config.world_size)).sum(1, keepdim=True)

    def combine_recv(self, block_num: int = -1, warp_per_block: int = -1) -> None:
        """Receives the rows of the last combine_send()."""
        if self._combine_in_flight is None:
            raise RuntimeError("no combine is in flight. Call combine_send() first")
        receive, self._combine_in_flight = self._combine_in_flight, None
        receive()

    def get_dispatch_src_token_pos(self) -> Any:
        """Returns the origin of each received row, source rank * max_num_inp_token_per_rank + token, as int32 [rows]. Waits for the GPU."""
        sent = self._get_dispatched()
        rows = sent.row_sources[:int(sent.expert_counts[0])]
        return rows // self._max_tokens * self.config.max_num_inp_token_per_rank + sent.sources.flatten()[rows.long()]

    def get_registered_combine_input_buffer(self, dtype: Any, hidden_dim: int = -1) -> Any:
        """Returns memory for the input of a combine, the same memory in each call. Other memory may be used too, and is not slower."""
        import torch
        kind = (dtype, self.config.hidden_dim if hidden_dim <= 0 else hidden_dim)
        if kind not in self._combine_inputs:
            device = "cuda" if torch.cuda.is_available() else "cpu"
            self._combine_inputs[kind] = torch.empty(self.config.world_size * self._max_tokens, kind[1], dtype=dtype, device=device)
        return self._combine_inputs[kind]

    def _get_dispatched(self) -> Dispatched:
        if self._dispatched is None or self._in_flight is not None:
            raise RuntimeError("there is no complete dispatch. Call dispatch(), or dispatch_recv() after dispatch_send()")
        return self._dispatched

    def _has_scales(self, scales: Any) -> bool:
        return scales is not None and len(scales.shape) > 1 and self.config.scale_dim > 0

    def _pack(self, scales: Any, ids: Any, weights: Any) -> Any:
        """Returns the scales, ids and weights of each row, as bytes that travel with the row."""
        import torch
        tokens, parts = len(ids), []
        if self._scale_bytes > 0:
            kept = self.config.scale_dim * self.config.scale_type_size
            if self._has_scales(scales):
                row_bytes = math.prod(scales.shape[1:]) * scales.element_size()
                if len(scales) != tokens or row_bytes != kept:
                    raise ValueError(f"scales must have {tokens} rows of {kept} bytes, but have {len(scales)} rows of {row_bytes} bytes; "
                                     f"scale_dim * scale_type_size is {kept}")
                parts.append(scales.contiguous().view(torch.uint8).reshape(tokens, kept))
            missing = self._scale_bytes - (kept if parts else 0)
            if missing > 0:
                parts.append(ids.new_zeros([tokens, missing], dtype=torch.uint8))
        if weights is not None and list(weights.shape) != list(ids.shape):
            raise ValueError(f"weights must have the shape {list(ids.shape)}, not {list(weights.shape)}")
        numbers = torch.zeros_like(ids) if weights is None else weights.to(torch.float32).contiguous()
        return torch.cat([*parts, ids.contiguous().view(torch.uint8), numbers.view(torch.uint8)], 1)


def _lengthen(rows: Any, length: int) -> Any:
    """Copies the rows to a new tensor of `length` rows, because an engine may have truncated the rows."""
    longer = rows.new_empty([length, *rows.shape[1:]])
    longer[:len(rows)].copy_(rows)
    return longer


_contexts: list[SymmetricContext] = []


def _get_context() -> SymmetricContext:
    if not _contexts:
        raise RuntimeError("there is no context. Pass a context, or call shmem_torch_process_group_init() first")
    return _contexts[-1]


def _init_from_group(group: Any) -> None:
    """MORI's shmem_torch_process_group_init(). `group` is a process group of torch.distributed, or its name."""
    if isinstance(group, str):
        import torch.distributed.distributed_c10d as c10d
        group = c10d._resolve_process_group(group)
    ranks = adapt(group)
    _contexts.append(SymmetricContext.from_all_gather(ranks.all_gather, ranks.rank, ranks.size))


def _finalize() -> None:
    while _contexts:
        _contexts.pop().close()


# MORI's modules, whose names refer to the classes and functions above.
ops = types.SimpleNamespace(
    EpDispatchCombineConfig=EpDispatchCombineConfig, EpDispatchCombineKernelType=EpDispatchCombineKernelType,
    EpDispatchCombineOp=EpDispatchCombineOp, EpDispatchCombineQuantType=EpDispatchCombineQuantType)
shmem = types.SimpleNamespace(
    shmem_torch_process_group_init=_init_from_group, shmem_finalize=_finalize, shmem_mype=lambda: _get_context().rank,
    shmem_npes=lambda: _get_context().size)
