"""Verbena in vLLM, in the place of its CustomAllreduce (docs/inference.md).

    pip install verbena-*.whl
    export USE_VERBENA_COLLECTIVES=1 VLLM_ALLREDUCE_USE_FLASHINFER=0
    vllm serve MODEL --tensor-parallel-size 4
"""
import importlib
import os
from typing import Any

from verbena.integrations.engine import MOST_BYTES, EngineCollectives, is_switched_on

_MODULE = "vllm.distributed.device_communicators.custom_all_reduce"


class VerbenaAllreduce(EngineCollectives):
    """As vLLM 0.33 makes and calls its CustomAllreduce. The sizes that vLLM gives are those of its own kernels, and do not
    count here. Results do not change with the batch, whatever VLLM_BATCH_INVARIANT says; with it no size is left to NCCL."""

    def __init__(self, group: Any, device: Any, max_size: int = 0, max_all_gather_size: int = 0,
                 max_mnnvl_all_gather_size: int | None = None, max_reduce_scatter_size: int = 0,
                 max_mnnvl_reduce_scatter_size: int = 0, max_mnnvl_multimem_reduce_scatter_size: int = 0,
                 symm_mem_enabled: bool = False, *, register_graph_buffers: bool = True) -> None:
        super().__init__(group, _as_device(device), MOST_BYTES, os.environ.get("VLLM_BATCH_INVARIANT", "0") == "1")

    def all_reduce(self, inp: Any, *, out: Any = None, registered: bool = False) -> Any:
        return self.sum_up(inp, out)

    def should_custom_all_gather(self, inp: Any) -> bool:
        return self.takes(inp, is_reduced=False)

    def custom_all_gather(self, inp: Any, dim: int = 0) -> Any:
        return self.communicator.all_gather(inp, dim) if self.should_custom_all_gather(inp) else None

    def should_custom_reduce_scatter(self, inp: Any) -> bool:
        return self.takes(inp) and inp.shape[0] % self.world_size == 0

    def custom_reduce_scatter(self, inp: Any, dim: int = 0) -> Any:
        return self.communicator.reduce_scatter(inp, dim) if self.should_custom_reduce_scatter(inp) else None


def _as_device(device: Any) -> Any:
    return f"cuda:{device}" if isinstance(device, int) else device


def register() -> None:
    """The entry point of vLLM's group vllm.general_plugins, which every process of an engine calls, some several times: does
    nothing unless USE_VERBENA_COLLECTIVES is 1."""
    if is_switched_on():
        switch_on()


def switch_on() -> None:
    """vLLM's communicators that are made from now on use Verbena."""
    # FlashInfer's kernels stand before the custom ones, unless they are told not to.
    os.environ.setdefault("VLLM_ALLREDUCE_USE_FLASHINFER", "0")
    importlib.import_module(_MODULE).__dict__["CustomAllreduce"] = VerbenaAllreduce
