"""Dispatch and combine for mixture of experts between a group's ranks, with the method names of AITER's MoriAll2AllManager."""
from typing import TYPE_CHECKING, Any

from verbena.team import SymmetricTeam

if TYPE_CHECKING:
    from verbena.integrations.mori import EpDispatchCombineOp


class All2AllManager:
    """Creates and caches one EpDispatchCombineOp (op) for each configuration. `team` contains the group's ranks. `internode` is True if
    these ranks are on several hosts."""

    def __init__(self, team: SymmetricTeam) -> None:
        self._team = team
        self._handles: dict[Any, EpDispatchCombineOp] = {}
        self._last: EpDispatchCombineOp | None = None
        self.rank, self.world_size = team.rank, team.size
        near = team.context.lsa
        reached = {near.world_rank(member) for member in range(near.size)}
        self.internode = any(team.world_rank(member) not in reached for member in range(team.size))

    def get_handle(self, kwargs: dict[str, Any], index: int = 0) -> "EpDispatchCombineOp":
        """Returns the op of a configuration. Calls with the same `kwargs` and `index` return the same op. The first call for each
        combination of `kwargs` and `index` is collective over the context, and must not be captured in a CUDA graph. Dispatches and
        combines that overlap in time need ops with different values of `index`.

        `kwargs` has rank, num_ep_ranks, input_dtype, quant_dtype, token_hidden_size, scale_dim, scale_type_size,
        max_num_tokens_per_dp_rank, num_local_experts, num_experts_per_token, and optionally block_num, the maximum number of blocks of a
        kernel. gpu_per_node, quant_type and low_latency have no effect."""
        key = (index, *sorted(kwargs.items()))
        if key not in self._handles:
            self._handles[key] = self._make(**kwargs)
        self._last = self._handles[key]
        return self._last

    def _make(self, *, rank: int, num_ep_ranks: int, input_dtype: Any, quant_dtype: Any, token_hidden_size: int, scale_dim: int,
              scale_type_size: int, max_num_tokens_per_dp_rank: int, num_local_experts: int, num_experts_per_token: int,
              gpu_per_node: int = 8, quant_type: str = "none", low_latency: bool = False, block_num: int = 80) -> "EpDispatchCombineOp":
        from verbena.integrations.mori import EpDispatchCombineConfig, EpDispatchCombineOp
        config = EpDispatchCombineConfig(
            data_type=quant_dtype, rank=rank, world_size=num_ep_ranks, hidden_dim=token_hidden_size, scale_dim=scale_dim,
            scale_type_size=scale_type_size, max_token_type_size=_count_bytes(input_dtype),
            max_num_inp_token_per_rank=max_num_tokens_per_dp_rank, num_experts_per_rank=num_local_experts,
            num_experts_per_token=num_experts_per_token, block_num=block_num, gpu_per_node=gpu_per_node, quant_type=quant_type)
        return EpDispatchCombineOp(config, self._team.context, self._team)

    def dispatch(self, hidden_states: Any, topk_weights: Any, topk_ids: Any, scales: Any = None) -> tuple[Any, Any, Any, Any, Any]:
        """Sends tokens to the ranks of their experts, with the op that get_handle() returned last. Returns the received rows, their
        weights, scales and ids, and the number of received rows."""
        return self._get_last().dispatch(hidden_states, topk_weights, scales, topk_ids)

    def combine(self, hidden_states: Any, topk_ids: Any) -> Any:
        """Sends the rows of the experts back and returns one row for each token. The rows must already be weighted and added over the
        experts of this rank."""
        return self._get_last().combine(hidden_states, None, topk_ids)[0]

    def _get_last(self) -> "EpDispatchCombineOp":
        if self._last is None:
            raise RuntimeError("no op was chosen. Call get_handle() first")
        return self._last

    def destroy(self) -> None:
        """Frees all ops. Collective over the context, unless the context is already closed."""
        self._last = None
        for handle in self._handles.values():
            handle.free()
        self._handles.clear()


def _count_bytes(dtype: Any) -> int:
    """Returns the size of an element in bytes. PyTorch 1 has no attribute for this size."""
    import torch
    return int(torch.empty(0, dtype=dtype).element_size())
