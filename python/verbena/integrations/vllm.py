"""The vLLM plug-in: replaces vLLM's CustomAllreduce (docs/inference.md).

    pip install verbena-*.whl
    export USE_VERBENA_COLLECTIVES=1
    vllm serve MODEL --tensor-parallel-size 4
"""
import functools
import importlib
import os
import warnings
from typing import Any

from verbena.integrations import vllm_experts
from verbena.integrations.engine import MAX_BYTES, EngineCollectives, switch_on_if_asked
from verbena.integrations.experts import switch_on_experts_if_asked

_MODULE = "vllm.distributed.device_communicators.custom_all_reduce"
_PASSES = "vllm.compilation.passes.pass_manager"
_FUSES = "AllReduceFusionPass"


class VerbenaAllreduce(EngineCollectives):
    """A class with the constructor and methods of vLLM 0.33's CustomAllreduce.

    vLLM passes the size limits of its own kernels. This class only stores the limits, so that vLLM can read them. With
    VLLM_BATCH_INVARIANT=1, this class sums tensors of all sizes and never quantises, so that results do not depend on the batch. Attributes
    whose names begin with mnnvl_ are 0, False or None, because there are no buffers of multi-node NVLink."""

    mnnvl_only = mnnvl_multimem_rs_supported = mnnvl_multimem_rs_initialized = False
    mnnvl_multicast_ptr = mnnvl_buffer_size = 0
    mnnvl_lamport_ag_local_ptr = mnnvl_lamport_ag_multicast_ptr = mnnvl_lamport_ag_epoch_ptr = 0
    mnnvl_lamport_rs_local_ptr = mnnvl_lamport_rs_epoch_ptr = 0
    mnnvl_multimem_rs_buffer_size = mnnvl_multimem_rs_local_ptr = mnnvl_multimem_rs_multicast_ptr = 0
    mnnvl_buffer = mnnvl_handle = mnnvl_peer_buffers = mnnvl_lamport_epochs = None
    mnnvl_multimem_rs_buffer = mnnvl_multimem_rs_handle = None

    def __init__(self, group: Any, device: Any, max_size: int = 0, max_all_gather_size: int = 0,
                 max_mnnvl_all_gather_size: int | None = None, max_reduce_scatter_size: int = 0,
                 max_mnnvl_reduce_scatter_size: int = 0, max_mnnvl_multimem_reduce_scatter_size: int = 0,
                 symm_mem_enabled: bool = False, *, register_graph_buffers: bool = True, **others: Any) -> None:
        self.batch_invariant = os.environ.get("VLLM_BATCH_INVARIANT", "0") == "1"
        self.max_all_gather_size = max_all_gather_size
        self.max_mnnvl_all_gather_size = max_mnnvl_all_gather_size or 0
        self.max_reduce_scatter_size = max_reduce_scatter_size
        self.max_mnnvl_reduce_scatter_size = max_mnnvl_reduce_scatter_size
        self.max_mnnvl_multimem_reduce_scatter_size = max_mnnvl_multimem_reduce_scatter_size
        super().__init__(group, _as_device(device), MAX_BYTES, self.batch_invariant)
        if others:
            warnings.warn(f"verbena: vLLM creates its custom all-reduce with arguments that Verbena does not know. Verbena ignores these "
                          f"arguments: {', '.join(sorted(others))}", stacklevel=2)
        if not self.disabled:
            join_compilation(self)

    def __getattr__(self, name: str) -> Any:
        """Python calls this method for attributes that the class does not have, which a newer vLLM may read. Returns 0 for mnnvl_
        attributes, which means that there is no such buffer. For all other attributes, raises AttributeError, because no value is safe."""
        if name.startswith("mnnvl_"):
            warnings.warn(f"verbena: vLLM reads the attribute {name} of its custom all-reduce, but Verbena does not know this attribute. "
                          "Its value is 0, which means that there is no multi-node NVLink buffer", stacklevel=2)
            setattr(self, name, 0)
            return 0
        raise AttributeError(f"verbena: vLLM reads the attribute {name!r} of its custom all-reduce, but Verbena's class does not have "
                             "this attribute. Start vLLM without USE_VERBENA_COLLECTIVES=1, or see docs/inference.md for the versions that "
                             "work")

    def all_reduce(self, inp: Any, *, out: Any = None, registered: bool = False) -> Any:
        return self.sum_up(inp, out)

    def should_custom_all_gather(self, inp: Any) -> bool:
        return self.takes(inp, is_reduced=False)

    def custom_all_gather(self, inp: Any, dim: int = 0) -> Any:
        return self.communicator.all_gather(inp, dim) if self.should_custom_all_gather(inp) else None

    def should_mnnvl_multimem_reduce_scatter(self, inp: Any) -> bool:
        return False

    def should_custom_reduce_scatter(self, inp: Any) -> bool:
        return self.takes(inp) and inp.shape[0] % self.world_size == 0

    def custom_reduce_scatter(self, inp: Any, dim: int = 0) -> Any:
        return self.communicator.reduce_scatter(inp, dim) if self.should_custom_reduce_scatter(inp) else None


def _as_device(device: Any) -> Any:
    return f"cuda:{device}" if isinstance(device, int) else device


def register() -> None:
    """Entry point in vLLM's group vllm.general_plugins. Every process of an engine calls this function, and some processes call it several
    times. Does nothing unless USE_VERBENA_COLLECTIVES or USE_VERBENA_MOE is 1."""
    switch_on_if_asked("vllm", switch_on)
    switch_on_experts_if_asked("vllm", vllm_experts.switch_on)


def switch_on() -> None:
    """Makes communicators that vLLM creates later use Verbena."""
    module: Any = importlib.import_module(_MODULE)
    if not hasattr(module, "CustomAllreduce"):
        raise AttributeError(f"{_MODULE} has no CustomAllreduce")
    module.CustomAllreduce = VerbenaAllreduce
    # Without this setting, vLLM prefers FlashInfer's kernels to the custom all-reduce.
    os.environ.setdefault("VLLM_ALLREDUCE_USE_FLASHINFER", "0")


def join_compilation(communicator: VerbenaAllreduce) -> None:
    """Makes vLLM's compiler fuse this communicator's all-reduces with the norms that follow them. The pass replaces vLLM's own pass, which
    fuses for FlashInfer's kernels. Ignores fuse_allreduce_rms, because with this communicator the fused operator is never slower than separate operators."""
    try:
        manager: Any = importlib.import_module(_PASSES)
        make_pass = _make_pass_class()
        configure = getattr(manager.PostGradPassManager.configure, "without_verbena", manager.PostGradPassManager.configure)

        def configure_with_verbena(self: Any, config: Any) -> None:
            if communicator.disabled:
                configure(self, config)
                return
            count, theirs = len(self.passes), getattr(manager, _FUSES, None)
            setattr(manager, _FUSES, lambda config: make_pass(communicator))
            try:
                configure(self, config)
            finally:
                setattr(manager, _FUSES, theirs)
            added = self.passes[count:]
            if not any(isinstance(one, make_pass) for one in added):
                # The position is after the pass that removes no-ops, and before the passes that would fuse the norms with other operators.
                place = next((i + 1 for i, one in enumerate(added) if type(one).__name__ == "NoOpEliminationPass"), 0)
                self.passes.insert(count + place, make_pass(communicator))

        configure_with_verbena.without_verbena = configure  # type: ignore[attr-defined]
        manager.PostGradPassManager.configure = configure_with_verbena
    except Exception as error:
        warnings.warn(f"verbena: vLLM's compiler does not fuse all-reduce and norm: {type(error).__name__}: {error}", stacklevel=3)


@functools.cache
def _make_pass_class() -> Any:
    inductor_pass: Any = importlib.import_module("vllm.compilation.passes.inductor_pass")
    fusion: Any = importlib.import_module("verbena.ops.fusion")

    class VerbenaFusionPass(inductor_pass.InductorPass):
        """Runs verbena.ops.fusion.FusionPass as a vLLM pass, for all shapes."""

        def __init__(self, communicator: VerbenaAllreduce) -> None:
            state: Any = importlib.import_module("vllm.distributed.parallel_state")
            self._fuse = fusion.FusionPass(communicator.group_name, [state.get_tp_group().unique_name], communicator.fusion_codec)

        def __call__(self, graph: Any) -> None:
            self._fuse(graph)

        def uuid(self) -> str:
            return str(self._fuse.uuid())

    return VerbenaFusionPass
