"""Verbena in SGLang, in the place of its custom all-reduce (docs/inference.md).

    pip install verbena-*.whl
    export USE_VERBENA_COLLECTIVES=1
    python -m sglang.launch_server --model MODEL --tp 4
"""
import importlib
import os
from typing import Any

from verbena.integrations.engine import MOST_BYTES, EngineCollectives, is_switched_on

_DISPATCH = "sglang.srt.distributed.device_communicators.custom_all_reduce.dispatch_custom_allreduce"
_hooked: list[str] = []


class VerbenaAllreduce(EngineCollectives):
    """As SGLang 0.5.23 makes and calls what its dispatch_custom_allreduce() returns."""

    def __init__(self, group: Any, device: Any, max_size: int = MOST_BYTES) -> None:
        is_deterministic = os.environ.get("SGLANG_ENABLE_DETERMINISTIC_INFERENCE", "0").lower() in ("1", "true")
        super().__init__(group, device, max_size, is_deterministic)

    def reduce_scatter(self, input: Any, output: Any, registered: bool = False) -> None:
        self.communicator.reduce_scatter(input, 0, out=output)

    def should_custom_ag(self, inp: Any) -> bool:
        return self.takes(inp, is_reduced=False)

    def all_gather_reg(self, inp: Any, out: Any = None, dim: int = 0) -> Any:
        return self.communicator.all_gather(inp, dim, out=out)

    def all_gather_unreg(self, inp: Any, out: Any = None, dim: int = 0) -> Any:
        return self.communicator.all_gather(inp, dim, out=out)


def dispatch(original: Any, *arguments: Any, **named: Any) -> type[VerbenaAllreduce]:
    """Around SGLang's choice of a class."""
    return VerbenaAllreduce


def register() -> None:
    """The entry point of SGLang's group sglang.srt.plugins: does nothing unless USE_VERBENA_COLLECTIVES is 1."""
    if is_switched_on():
        switch_on()


def switch_on() -> None:
    """SGLang's communicators that are made from now on use Verbena."""
    if _hooked:
        return
    plugins: Any = importlib.import_module("sglang.srt.plugins")
    plugins.HookRegistry.register(_DISPATCH, dispatch, plugins.HookType.AROUND)
    _hooked.append(_DISPATCH)
