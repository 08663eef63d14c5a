"""The SGLang plug-in: replaces SGLang's custom all-reduce (docs/inference.md).

    pip install verbena-*.whl
    export USE_VERBENA_COLLECTIVES=1
    python -m sglang.launch_server --model MODEL --tp 4
"""
import importlib
import os
import warnings
from typing import Any

from verbena.integrations import sglang_experts as _experts
from verbena.integrations.engine import MAX_BYTES, EngineCollectives, switch_on_if_asked
from verbena.integrations.experts import switch_on_experts_if_asked

_DISPATCH = "sglang.srt.distributed.device_communicators.custom_all_reduce.dispatch_custom_allreduce"
_FUSION = "sglang.srt.layers.flashinfer_comm_fusion"
_hooked: set[str] = set()
_resolve_group: list[Any] = []  # SGLang's function, saved when the first communicator is created


class VerbenaAllreduce(EngineCollectives):
    """A custom all-reduce class with the constructor and methods of the class that SGLang 0.5.23's dispatch_custom_allreduce()
    returns."""

    def __init__(self, group: Any, device: Any, max_size: int = MAX_BYTES) -> None:
        is_deterministic = os.environ.get("SGLANG_ENABLE_DETERMINISTIC_INFERENCE", "0").lower() in ("1", "true")
        super().__init__(group, device, max_size, is_deterministic)
        self.original_disabled = self.disabled
        if not self.disabled:
            join_fusion()

    def reduce_scatter(self, input: Any, output: Any, registered: bool = False) -> None:
        self.communicator.reduce_scatter(input, 0, out=output)

    def should_custom_ag(self, inp: Any) -> bool:
        return self.takes(inp, is_reduced=False)

    def all_gather_reg(self, inp: Any, out: Any = None, dim: int = 0) -> Any:
        return self.communicator.all_gather(inp, dim, out=out)

    def all_gather_unreg(self, inp: Any, out: Any = None, dim: int = 0) -> Any:
        return self.communicator.all_gather(inp, dim, out=out)


def dispatch(original: Any, *arguments: Any, **named: Any) -> type[VerbenaAllreduce]:
    """Wraps SGLang's dispatch_custom_allreduce(), which chooses a custom all-reduce class."""
    return VerbenaAllreduce


def fused_norm(original: Any, input_tensor: Any, residual: Any, weight: Any, eps: float = 1e-6, *arguments: Any, **named: Any) -> Any:
    """Wraps SGLang's call of FlashInfer's fused all-reduce and norm. SGLang makes this call if
    flashinfer_allreduce_fusion_backend is set."""
    communicator = _find_fusing(named.get("use_attn_tp_group", True))[1]
    if communicator is None or not communicator.should_fuse_norm(input_tensor, residual, weight):
        return original(input_tensor, residual, weight, eps, *arguments, **named)
    import torch
    return torch.ops.verbena.all_reduce_rms_norm(input_tensor, residual, weight, eps, communicator.group_name, 0.0, True, False,
                                                 communicator.fusion_codec or "")


def make_no_workspaces(original: Any, *arguments: Any, **named: Any) -> None:
    """Wraps the creation of FlashInfer's workspaces. Creates no workspaces for groups in which Verbena fuses all-reduces with norms.
    Without workspaces, SGLang sends all all-reduces of a group through the communicator."""
    groups = [_find_fusing(use_attn_tp_group) for use_attn_tp_group in (False, True)]
    if any(size > 1 and communicator is None for size, communicator in groups):
        original(*arguments, **named)


def _find_fusing(use_attn_tp_group: bool) -> tuple[int, VerbenaAllreduce | None]:
    """Returns the size of the group over which the fused kernel sums, and the group's communicator if it is Verbena's."""
    size, _, group = _resolve_group[0](use_attn_tp_group=use_attn_tp_group)
    communicator = getattr(group, "ca_comm", None)
    return size, communicator if isinstance(communicator, VerbenaAllreduce) and not communicator.disabled else None


def join_fusion() -> None:
    """Hooks SGLang's fused all-reduce and norm. Runs late, because the hooked module imports SGLang's layers."""
    try:
        _resolve_group[:] = [importlib.import_module(_FUSION).resolve_fusion_group]
        _hook(f"{_FUSION}.flashinfer_allreduce_residual_rmsnorm", fused_norm)
        _hook(f"{_FUSION}.pre_initialize_workspaces", make_no_workspaces)
        _find_registry().HookRegistry.apply_hooks()
    except Exception as error:
        warnings.warn(f"verbena: SGLang does not fuse all-reduce and norm: {type(error).__name__}: {error}", stacklevel=3)


def _find_registry() -> Any:
    return importlib.import_module("sglang.srt.plugins.hook_registry")


def _hook(target: str, hook: Any) -> None:
    if target not in _hooked:
        registry = _find_registry()
        registry.HookRegistry.register(target, hook, registry.HookType.AROUND)
        _hooked.add(target)


def register() -> None:
    """Entry point in SGLang's group sglang.srt.plugins. Does nothing unless USE_VERBENA_COLLECTIVES or USE_VERBENA_MOE is 1."""
    switch_on_if_asked("sglang", switch_on)
    switch_on_experts_if_asked("sglang", switch_on_experts)


def switch_on() -> None:
    """Makes communicators that SGLang creates later use Verbena. SGLang applies the hook after it has loaded all plug-ins."""
    _hook(_DISPATCH, dispatch)


def switch_on_experts() -> None:
    """Makes layers of experts that SGLang creates later use Verbena."""
    for target, hook in _experts.HOOKS.items():
        _hook(target, hook)
