"""A communication backend "verbena" for FlashInfer's mixture-of-experts layers (flashinfer.moe_ep, since FlashInfer 0.7):

    verbena.integrations.flashinfer.register()
    flashinfer.moe_ep.SplitConfig(comm="verbena", ...)

Ranks are on one host, or evenly distributed over several hosts. Received rows are sorted by source rank. Each token appears at most once,
with the ids of this rank's experts."""
import functools
import importlib
from typing import Any

from verbena.integrations.experts import find_exchanges, list_sizes
from verbena.moe import Dispatched, ExpertExchange, Order
from verbena.native import load_ops_library

NAME = "verbena"
_COMMUNICATION = "flashinfer.moe_ep.core.comm.communication"


def register() -> Any:
    """Registers the backend and returns its class. Raises ImportError if this version of FlashInfer has no registry of backends."""
    return _make_class()


@functools.cache
def _make_class() -> Any:
    comm: Any = importlib.import_module(_COMMUNICATION)

    @comm.register_communication(NAME)
    class VerbenaCommunication(comm.MoEEpCommunication):  # type: ignore[misc]
        """FlashInfer's MoEEpCommunication over Verbena's exchanges. Creating an object is collective over the group. Calls allocate only
        their results, and do not synchronise with the GPU."""

        def __init__(self, bootstrap: Any, params: Any, config: Any = None) -> None:
            super().__init__(bootstrap, params)
            import torch
            group = bootstrap.process_group
            exchanges = find_exchanges(torch.distributed.group.WORLD if group is None else group)
            if exchanges is None:
                raise RuntimeError("no exchanges could be created between these ranks. An earlier warning gives the reason")
            if (exchanges.rank, exchanges.size) != (self.ep_rank, self.ep_size):
                raise ValueError(f"this process is rank {exchanges.rank} of {exchanges.size} in the process group, but rank {self.ep_rank} of "
                                 f"{self.ep_size} in the bootstrap configuration")
            self._exchanges = [one[0] for one in exchanges.get_sizes(
                list_sizes(params.max_tokens_per_rank, exchanges.size), in_windows=False, experts=params.num_experts, top_k=params.top_k,
                hidden=params.hidden_size, max_scale_bytes=4 * -(-params.hidden_size // 64))]
            self._sent: tuple[ExpertExchange, Dispatched] | None = None

        @classmethod
        def is_platform_supported(cls) -> bool:
            try:
                load_ops_library()
            except Exception:
                return False
            return True

        def dispatch(self, hidden_states: Any, topk_ids: Any, topk_weights: Any = None, *, hidden_states_scale: Any = None,
                     max_tokens_per_rank: int | None = None, runtime_max_tokens_per_rank: int | None = None,
                     eplb_local_stats: Any = None) -> Any:
            """FlashInfer 0.7.2 passes the size of the largest batch of any rank as max_tokens_per_rank, FlashInfer 0.7.4 as
            runtime_max_tokens_per_rank."""
            if self._sent is not None:
                raise RuntimeError("call combine() before the next dispatch()")
            if eplb_local_stats is not None:
                raise ValueError("statistics of the experts' load are not sent with the tokens. Gather the statistics separately")
            import torch
            sizes = max_tokens_per_rank, runtime_max_tokens_per_rank, self.params.max_tokens_per_rank
            tokens = next(one for one in sizes if one is not None)
            exchange = next((one for one in self._exchanges if one.max_tokens >= tokens), None)
            if exchange is None:
                raise ValueError(f"a rank has {tokens} tokens, more than max_tokens_per_rank, {self.params.max_tokens_per_rank}")
            weights = None if topk_weights is None else topk_weights.to(torch.float32)
            scales = None if hidden_states_scale is None else hidden_states_scale.contiguous()
            sent = exchange.dispatch(hidden_states, topk_ids, weights, scales=scales)
            self._sent = exchange, sent
            first, invalid = self.ep_rank * self.num_local_experts, self.params.invalid_expert_id
            ids = torch.where(sent.ids < 0, invalid, sent.ids + first).to(torch.int32)  # FlashInfer's kernels take no other type
            return comm.MoEEpDispatchResult(
                hidden_states=sent.rows.flatten(0, 1), topk_ids=ids.flatten(0, 1),
                topk_weights=None if topk_weights is None else sent.weights.flatten(0, 1), tokens_per_rank=exchange.max_tokens,
                hidden_states_scale=None if sent.scales is None else sent.scales.flatten(0, 1))

        def combine(self, expert_output: Any, *, output: Any = None) -> Any:
            if self._sent is None:
                raise RuntimeError("combine() was called without dispatch()")
            (exchange, sent), self._sent = self._sent, None
            rows = expert_output.view(exchange.ranks, exchange.max_tokens, exchange.hidden)
            return exchange.combine(rows, sent, Order.ROWS, out=output)

        def destroy(self) -> None:
            """Does nothing, because exchanges are shared. verbena.integrations.experts.close_exchanges() frees them."""

    return VerbenaCommunication
