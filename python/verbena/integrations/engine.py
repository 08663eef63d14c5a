"""What engines' classes of custom all-reduces have in common."""
import contextlib
import os
import warnings
from collections.abc import Iterator
from typing import Any

from verbena.communicators import ProcessGroupCommunicator
from verbena.context import SymmetricContext
from verbena.integrations.quick_reduce import QuickReduce
from verbena.ops.calls import Choice, find_data_type
from verbena.ops.communicator import Communicator
from verbena.ops.fused import find_codec

# Plug-ins of an engine load wherever they are installed: they do nothing unless this variable is 1.
SWITCH = "USE_VERBENA_COLLECTIVES"
MOST_RANKS = 16
MOST_BYTES = 256 << 20  # larger tensors are left to the engine, unless it wants one way for all sizes


def is_switched_on() -> bool:
    return os.environ.get(SWITCH) == "1"


class EngineCollectives:
    """Made by all ranks of `group`, a process group whose all-gather goes through the host (gloo), each with the GPU `device`.
    Nothing is registered, and nothing happens at the end of a capture: addresses in graphs are the engine's own tensors, and
    the workspace's, which stay. Where it cannot be made, `disabled` is set and the engine goes its own way."""

    def __init__(self, group: Any, device: Any, max_size: int = MOST_BYTES, is_batch_invariant: bool = False) -> None:
        """Collective."""
        self.group = group
        self.device = device
        self.max_size = max_size
        self.is_batch_invariant = is_batch_invariant
        # A number in few bits depends on its neighbours, and another batch has others.
        self.quick_reduce = QuickReduce() if is_batch_invariant else QuickReduce.from_environment()
        self.disabled = True
        self.fully_connected = False
        ranks = ProcessGroupCommunicator(group)
        self.rank, self.world_size = ranks.rank, ranks.size
        self._context: SymmetricContext | None = None
        self._communicator: Communicator | None = None
        if not 2 <= self.world_size <= MOST_RANKS:
            return
        try:
            self._use_device()
            self._context = SymmetricContext.from_all_gather(ranks.all_gather, self.rank, self.world_size)
            self._communicator = Communicator(self._context)
        except Exception as error:  # as engines do: they have another way
            warnings.warn(f"verbena: custom collectives are off: {error}", stacklevel=2)
            self.close()
            return
        self.disabled = False
        self.fully_connected = True

    def _use_device(self) -> None:
        import torch
        if torch.device(self.device).type == "cuda":
            torch.cuda.set_device(self.device)
            torch.cuda.current_stream()  # CUDA is initialised

    @property
    def communicator(self) -> Communicator:
        if self._communicator is None:
            raise RuntimeError("verbena: custom collectives are off")
        return self._communicator

    def takes(self, tensor: Any, is_reduced: bool = True) -> bool:
        if self.disabled or tensor.numel() == 0 or (is_reduced and find_data_type(tensor) is None):
            return False
        return self.is_batch_invariant or tensor.numel() * tensor.element_size() <= self.max_size

    def should_custom_ar(self, inp: Any) -> bool:
        """Of any number of bytes, at any address; the answer is the same on all ranks."""
        return self.takes(inp)

    def custom_all_reduce(self, input: Any) -> Any:
        """A new tensor, or None where the engine shall go its own way. Eager, in a warm-up and under capture alike."""
        return self.sum_up(input) if self.should_custom_ar(input) else None

    def sum_up(self, input: Any, out: Any = None) -> Any:
        """In few bits where the settings allow them and they are faster, or exactly."""
        dtype = str(input.dtype).removeprefix("torch.")
        found = self.quick_reduce.find_codec(dtype, input.numel() * input.element_size(), self.world_size)
        if found is None:
            return self.communicator.all_reduce(input, out=out)
        codec, is_forced = found
        return self.communicator.all_reduce_coded(input, codec, out=out, choice=Choice(find_codec(codec)) if is_forced else None)

    def fused_allreduce_rmsnorm(self, x: Any, residual: Any, weight: Any, eps: float) -> tuple[Any, Any]:
        """(norm of the sum and the residual, their sum), of any row length."""
        return self.communicator.fused_allreduce_rmsnorm(x, residual, weight, eps)

    def custom_fused_ar_rms(self, input: Any, residual_inp: Any, weight: Any, eps: float,
                            use_1stage: bool = False) -> tuple[Any, Any] | None:
        """The same, or None where the engine shall go its own way. How many kernels it takes is the library's choice."""
        is_taken = (self.should_custom_ar(input) and str(input.dtype) in ("torch.float16", "torch.bfloat16")
                    and residual_inp.dtype == weight.dtype == input.dtype)
        return self.fused_allreduce_rmsnorm(input, residual_inp, weight, eps) if is_taken else None

    @contextlib.contextmanager
    def capture(self) -> Iterator[None]:
        """Nothing needs to be known about a capture."""
        yield

    def register_graph_buffers(self) -> None:
        """Nothing is registered."""

    def close(self) -> None:
        """Collective. When the process ends without it, the system takes everything back."""
        communicator, context = self._communicator, self._context
        self._communicator = self._context = None
        self.disabled = True
        if communicator is not None:
            communicator.free()
        if context is not None:
            context.close()
