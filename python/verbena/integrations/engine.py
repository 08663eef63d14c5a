"""Base class of the custom all-reduces for vLLM and SGLang."""
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

# Engines load every installed plug-in, so Verbena's plug-in does nothing unless this variable is 1.
SWITCH = "USE_VERBENA_COLLECTIVES"
MAX_RANKS = 16
MAX_RANKS_OVER_PCIE = 2  # the engines' own limit: without NVLink, NCCL is faster for three or more ranks
MAX_BYTES = 256 << 20  # the engine reduces larger tensors itself, unless it needs one algorithm for all sizes
# Ranks may wait for a rank that compiles kernels, loads a checkpoint or is in a debugger. Therefore the timeout is ten minutes, like
# PyTorch's timeout for NCCL. The library reads the variable when a process first uses the library.
_LIMIT = "VERBENA_SYMM_TIMEOUT_MS"
_LIMIT_MS = 600_000
_numbers = itertools.count()


def switch_on_if_asked(engine: str, switch_on: Callable[[], None], switch: str = SWITCH, what: str = "collectives") -> None:
    """Calls switch_on() if the variable `switch` is 1. Entry points call this function. An exception would end the server. So if the engine
    lacks the expected hooks, this function issues a warning instead, and the engine keeps its own functions."""
    settings.warn_about_unknown_names()
    if not settings.read_flag(switch):
        return
    try:
        switch_on()
    except Exception as error:
        warnings.warn(f"verbena: {engine} {_find_version(engine)} has no hook for Verbena's {what}, so the engine uses its own "
                      f"implementation: {type(error).__name__}: {error}; "
                      "docs/inference.md names the versions that were tested", stacklevel=3)


def _find_version(distribution: str) -> str:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return "(unknown version)"


def set_time_limit() -> None:
    """Sets the timeout of waits, unless the user has set it."""
    os.environ.setdefault(_LIMIT, str(_LIMIT_MS))


def read_host() -> bytes:
    """Returns an identifier of this host. Containers on one host have different host names but the same kernel, so the kernel identifies
    the host."""
    return pathlib.Path("/proc/sys/kernel/random/boot_id").read_bytes().strip()


class EngineCollectives:
    """An engine's custom all-reduce.

    Streams and graphs: calls run on the current stream and may be captured. Buffers need no registration, not even after a
    capture, because graphs contain the addresses of the engine's own tensors and of the workspace, which stay valid.

    Errors: if the collectives cannot be created, the constructor warns and sets `disabled`, and the engine uses its own
    collectives. A call raises VerbenaError if an earlier call timed out.

    Operators in compiled graphs find the communicator by `group_name`. The name is the same in each run of the engine, because
    compilers cache it."""

    def __init__(self, group: Any, device: Any, max_size: int = MAX_BYTES, is_batch_invariant: bool = False) -> None:
        """Creates the collectives. Collective over the group.

        Args:
            group: a process group over gloo, whose all-gather goes through the host.
            device: this rank's GPU.
            max_size: maximum size of a tensor in bytes.
            is_batch_invariant: True to use the collectives for all sizes and never to quantise.
        """
        set_time_limit()
        self.group = group
        self.device = device
        self.max_size = max_size
        self.is_batch_invariant = is_batch_invariant
        # A quantised element depends on the other elements that share its scale, and these elements differ from batch to batch.
        self.quick_reduce = QuickReduce() if is_batch_invariant else QuickReduce.from_environment()
        self.disabled = True
        self.fully_connected = False  # whether NVLink connects all pairs of GPUs
        self._IS_CAPTURING = False  # read by engines only
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
                raise RuntimeError(f"NVLink does not connect all pairs of the {self.world_size} GPUs, so NCCL is faster")
            self._communicator = Communicator(self._context)
        except Exception as error:  # the engine can use its own collectives
            warnings.warn(f"verbena: custom collectives are off: {error}", stacklevel=2)
            self.close()
            return
        set_group(self.group_name, self._communicator)
        self.disabled = False

    def _use_device(self) -> None:
        import torch
        if torch.device(self.device).type == "cuda":
            torch.cuda.set_device(self.device)
            torch.cuda.current_stream()  # initialises CUDA

    @property
    def communicator(self) -> Communicator:
        if self._communicator is None:
            raise RuntimeError("verbena: custom collectives are off; a warning at the start says why. Check the attribute `disabled` "
                               "before this call")
        return self._communicator

    def takes(self, tensor: Any, is_reduced: bool = True) -> bool:
        if self.disabled or tensor.numel() == 0 or (is_reduced and find_data_type(tensor) is None):
            return False
        return self.is_batch_invariant or tensor.numel() * tensor.element_size() <= self.max_size

    def should_custom_ar(self, inp: Any) -> bool:
        """Returns whether custom_all_reduce() accepts the tensor. The result depends only on type and size, so it is the same on all
        ranks."""
        return self.takes(inp)

    def custom_all_reduce(self, input: Any) -> Any:
        """Returns the ranks' sum as a new tensor, or None if the engine must use its own collective. Behaves the same in eager
        mode, in a warm-up and in a capture."""
        return self.sum_up(input) if self.should_custom_ar(input) else None

    def sum_up(self, input: Any, out: Any = None) -> Any:
        """Returns the ranks' sum. Quantises the messages if the settings allow this and quantised messages are faster."""
        dtype = str(input.dtype).removeprefix("torch.")
        found = self.quick_reduce.find_codec(dtype, input.numel() * input.element_size(), self.world_size)
        if found is None:
            return self.communicator.all_reduce(input, out=out)
        codec, is_forced = found
        return self.communicator.all_reduce_quantised(input, codec, out=out, choice=Choice(find_codec(codec)) if is_forced else None)

    def fused_allreduce_rmsnorm(self, x: Any, residual: Any, weight: Any, eps: float) -> tuple[Any, Any]:
        """Returns (RMSNorm of h, h), where h is the ranks' sum plus the residual. Rows may have any length."""
        return self.communicator.fused_allreduce_rmsnorm(x, residual, weight, eps)

    def should_fuse_norm(self, x: Any, residual: Any, weight: Any) -> bool:
        """Returns whether the fused kernel supports these tensors. The result is the same on all ranks."""
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
        """The codec for quantised sums in fused operators, or None. The operators quantise only tensors of sizes for which quantised sums
        are faster."""
        regime = self.quick_reduce.regime.lower()
        return regime if regime in CODECS and self.quick_reduce.min_sizes == "measured" else None

    @contextlib.contextmanager
    def capture(self) -> Iterator[None]:
        """Sets _IS_CAPTURING for the engine during a capture. Verbena itself does not need this attribute."""
        self._IS_CAPTURING = True
        try:
            yield
        finally:
            self._IS_CAPTURING = False

    def register_graph_buffers(self) -> None:
        """Does nothing, because buffers need no registration."""

    def close(self) -> None:
        """Frees the collectives. Collective. A process may also end without this call."""
        communicator, context = self._communicator, self._context
        self._communicator = self._context = None
        self.disabled = True
        if communicator is not None:
            set_group(self.group_name, None)
            communicator.free()
        if context is not None:
            context.close()


def are_all_linked(ranks: ProcessGroupCommunicator) -> bool:
    """Returns whether NVLink connects all ranks' GPUs. Collective. Checks only pairs of GPUs on the same host. Pairs of GPUs on different
    hosts count as connected."""
    width = 128
    mine = read_host() + f" {find_bus_id()}".encode()
    places = [part.decode().strip("\0").split(" ") for part in ranks.all_gather(mine.ljust(width, b"\0"))]
    host, bus_id = places[ranks.rank]
    peers = [one for rank, (where, one) in enumerate(places) if where == host and rank != ranks.rank]
    answers = ranks.all_gather(b"1" if has_nvlink(bus_id, peers) else b"0")
    return all(answer == b"1" for answer in answers)
