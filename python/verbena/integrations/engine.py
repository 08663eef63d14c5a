"""Common base of the engines' custom all-reduce classes."""
import contextlib
import importlib.metadata
import itertools
import os
import pathlib
import warnings
from collections.abc import Callable, Iterator
from typing import Any

from verbena import settings
from verbena.communicators import ProcessGroupCommunicator
from verbena.context import SymmetricContext
from verbena.integrations.quick_reduce import QuickReduce
from verbena.links import find_bus_id, has_nvlink
from verbena.ops.calls import Choice, find_data_type
from verbena.ops.communicator import Communicator
from verbena.ops.fused import CODECS, find_codec
from verbena.ops.torch_ops import set_group

# Plug-ins of an engine load wherever they are installed: they do nothing unless this variable is 1.
SWITCH = "USE_VERBENA_COLLECTIVES"
MAX_RANKS = 16
MAX_RANKS_OVER_PCIE = 2  # as the engines have it: NCCL is faster from three ranks on
MAX_BYTES = 256 << 20  # larger tensors are left to the engine, unless it wants one way for all sizes
# A rank of an engine may compile kernels, load a checkpoint or wait in a debugger while the others wait for it: ten minutes, as
# PyTorch gives NCCL. The library reads the variable when a process first uses it.
_LIMIT = "VERBENA_SYMM_TIMEOUT_MS"
_LIMIT_MS = 600_000
_numbers = itertools.count()


def switch_on_if_asked(engine: str, switch_on: Callable[[], None]) -> None:
    """Enables the collectives, for entry points, whose exceptions would end the server: an engine without the expected hooks
    keeps its own collectives."""
    settings.warn_about_unknown_names()
    if not settings.read_flag(SWITCH):
        return
    try:
        switch_on()
    except Exception as error:
        warnings.warn(f"verbena: {engine} {_find_version(engine)} has no hook for Verbena's collectives and keeps its own: "
                      f"{type(error).__name__}: {error}; docs/inference.md names the versions that were tested", stacklevel=3)


def _find_version(distribution: str) -> str:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return "(unknown version)"


class EngineCollectives:
    """An engine's custom all-reduce. All ranks of `group` create it, a process group whose all-gather goes through the host
    (gloo), each with the GPU `device`.

    Nothing is registered, and nothing happens at the end of a capture: graphs contain addresses of the engine's own tensors
    and of the workspace, which stay valid. If it cannot be created, `disabled` is set and the engine uses its own
    collectives. A call raises VerbenaError if an earlier one ended without its result. Operators in compiled graphs find it
    by `group_name`, which is the same in each start of the engine: compilers cache it."""

    def __init__(self, group: Any, device: Any, max_size: int = MAX_BYTES, is_batch_invariant: bool = False) -> None:
        """Creates the collectives. Collective."""
        os.environ.setdefault(_LIMIT, str(_LIMIT_MS))
        self.group = group
        self.device = device
        self.max_size = max_size
        self.is_batch_invariant = is_batch_invariant
        # A quantised element depends on its neighbours, and another batch has others.
        self.quick_reduce = QuickReduce() if is_batch_invariant else QuickReduce.from_environment()
        self.disabled = True
        self.fully_connected = False  # by NVLink
        self._IS_CAPTURING = False  # engines read it; nothing here depends on it
        self.group_name = f"verbena_engine_{next(_numbers)}"
        ranks = ProcessGroupCommunicator(group)
        self.rank, self.world_size = ranks.rank, ranks.size
        self._context: SymmetricContext | None = None
        self._communicator: Communicator | None = None
        if not 2 <= self.world_size <= MAX_RANKS:
            return
        try:
            self._use_device()
            self._context = SymmetricContext.from_all_gather(ranks.all_gather, self.rank, self.world_size)
            self.fully_connected = are_all_linked(ranks)
            if not self.fully_connected and self.world_size > MAX_RANKS_OVER_PCIE and not is_batch_invariant:
                raise RuntimeError(f"{self.world_size} GPUs of which not all pairs have NVLink: NCCL is faster")
            self._communicator = Communicator(self._context)
        except Exception as error:  # as engines do: they have another way
            warnings.warn(f"verbena: custom collectives are off: {error}", stacklevel=2)
            self.close()
            return
        set_group(self.group_name, self._communicator)
        self.disabled = False

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
        """Returns whether Verbena all-reduces the tensor, of any length and at any address; the same on all ranks."""
        return self.takes(inp)

    def custom_all_reduce(self, input: Any) -> Any:
        """Returns a new tensor, or None if the engine must use its own collective. The same in eager mode, in a warm-up and
        in a capture."""
        return self.sum_up(input) if self.should_custom_ar(input) else None

    def sum_up(self, input: Any, out: Any = None) -> Any:
        """Sums across ranks: quantised if the settings allow it and it is faster, otherwise exactly."""
        dtype = str(input.dtype).removeprefix("torch.")
        found = self.quick_reduce.find_codec(dtype, input.numel() * input.element_size(), self.world_size)
        if found is None:
            return self.communicator.all_reduce(input, out=out)
        codec, is_forced = found
        return self.communicator.all_reduce_quantised(input, codec, out=out, choice=Choice(find_codec(codec)) if is_forced else None)

    def fused_allreduce_rmsnorm(self, x: Any, residual: Any, weight: Any, eps: float) -> tuple[Any, Any]:
        """Returns the norm of (sum + residual), and that sum. Any row length."""
        return self.communicator.fused_allreduce_rmsnorm(x, residual, weight, eps)

    def should_fuse_norm(self, x: Any, residual: Any, weight: Any) -> bool:
        """Returns whether the fused kernel has these types; the same on all ranks."""
        return (self.should_custom_ar(x) and str(x.dtype) in ("torch.float16", "torch.bfloat16")
                and residual.dtype == weight.dtype == x.dtype)

    def custom_fused_ar_rms(self, input: Any, residual_inp: Any, weight: Any, eps: float,
                            use_1stage: bool = False) -> tuple[Any, Any] | None:
        """Returns the result of fused_allreduce_rmsnorm(), or None if the engine must use its own kernels. The library
        chooses the number of kernels."""
        is_taken = self.should_fuse_norm(input, residual_inp, weight)
        return self.fused_allreduce_rmsnorm(input, residual_inp, weight, eps) if is_taken else None

    @property
    def fusion_codec(self) -> str | None:
        """The codec of quantised sums in fused operators, which use it for sizes at which it is faster."""
        regime = self.quick_reduce.regime.lower()
        return regime if regime in CODECS and self.quick_reduce.min_sizes == "measured" else None

    @contextlib.contextmanager
    def capture(self) -> Iterator[None]:
        """Marks a capture. Sets only _IS_CAPTURING: Verbena needs to know nothing about a capture."""
        self._IS_CAPTURING = True
        try:
            yield
        finally:
            self._IS_CAPTURING = False

    def register_graph_buffers(self) -> None:
        """Does nothing: buffers need no registration."""

    def close(self) -> None:
        """Frees the collectives. Collective. If the process ends without it, the system frees everything."""
        communicator, context = self._communicator, self._context
        self._communicator = self._context = None
        self.disabled = True
        if communicator is not None:
            set_group(self.group_name, None)
            communicator.free()
        if context is not None:
            context.close()


def are_all_linked(ranks: ProcessGroupCommunicator) -> bool:
    """Returns whether NVLink connects all ranks' GPUs. Ranks of several hosts are connected as far as loads and stores
    reach (multi-node NVLink); for those of one host the driver is asked. Collective."""
    width = 128
    # Containers of one host have its kernel, whatever they are called.
    mine = f"{pathlib.Path('/proc/sys/kernel/random/boot_id').read_text().strip()} {find_bus_id()}".encode()
    places = [part.decode().strip("\0").split(" ") for part in ranks.all_gather(mine.ljust(width, b"\0"))]
    host, bus_id = places[ranks.rank]
    peers = [one for rank, (where, one) in enumerate(places) if where == host and rank != ranks.rank]
    answers = ranks.all_gather(b"1" if has_nvlink(bus_id, peers) else b"0")
    return all(answer == b"1" for answer in answers)
