"""The backend "verbena" of torch.distributed."""
import datetime
import functools
from collections.abc import Sequence
from typing import Any

import torch
import torch._C._distributed_c10d as c10d
import torch.distributed as dist

from verbena.c10d.calls import COMMUNICATOR_OPTIONS, LIVE, Calls, name_type, read_reduction
from verbena.c10d.table import find_refusal, format_table

_Backend: Any = getattr(c10d, "Backend", object)


def runs_methods() -> bool:
    """Returns True if this PyTorch can call the methods of a backend that is written in Python. PyTorch 2.15 can."""
    class Probe(_Backend):
        def getBackendName(self) -> str:
            return "probe"

    try:
        return bool(Probe(0, 1).name() == "probe")
    except (AttributeError, RuntimeError, TypeError):
        return False


def register(devices: Sequence[str] = ("cuda",), **communicator_options: Any) -> None:
    """Registers the backend "verbena". PyTorch's entry point, or the import of verbena.c10d, calls this function for CUDA.

    Args:
        devices: the device types of PyTorch for which the backend is registered.
        communicator_options: keyword arguments of verbena.ops.Communicator(), the same on all ranks. The options apply to groups that
            connect after this call.
    """
    COMMUNICATOR_OPTIONS.update(communicator_options)
    if not runs_methods():
        _batch_as_block()
    dist.Backend.register_backend("verbena", _create, extended_api=True, devices=list(devices))


def _batch_as_block() -> None:
    """Replaces dist.batch_isend_irecv. PyTorch 2.11 passes the messages of a batch to a Python group one by one, but NCCL must know all
    messages of the batch before it starts the first message."""
    begin = dist.batch_isend_irecv
    if hasattr(begin, "__wrapped__"):
        return

    @functools.wraps(begin)
    def batch_isend_irecv(p2p_op_list: list[Any]) -> list[Any]:
        group = (p2p_op_list[0].group or dist.group.WORLD) if p2p_op_list else None
        if not isinstance(group, VerbenaGroup):
            return list(begin(p2p_op_list))
        with group.batch() as works:
            works += begin(p2p_op_list)
        return works

    distributed: Any = dist
    distributed.batch_isend_irecv = distributed.distributed_c10d.batch_isend_irecv = batch_isend_irecv


def _create(options: Any, _: Any) -> Any:
    group = getattr(options, "process_group", None)
    kind = VerbenaBackend if runs_methods() else VerbenaGroup
    made = kind(options.store, options.group_rank, options.group_size, options.timeout, options.group_id)
    bound = getattr(group, "bound_device_id", None)
    if bound is not None:
        made.eager_connect_single_device(bound)
    return made


def explain(operation: str | None = None, dtype: Any = torch.float32, length_bytes: int = 0, reduction: Any = None) -> str:
    """Returns a text that says, for each operation, whether Verbena's kernels or the fallback group (NCCL or Gloo) serves it, and why. The
    second part lists this process's groups, with the number of calls that Verbena and the fallback group served.

    Args:
        operation: the name of one operation, such as "all_reduce", to explain it alone; None for all.
        dtype: the tensor's type.
        length_bytes: size of the tensor, or of one rank's message, in bytes.
        reduction: a ReduceOp of torch.distributed, or None.
    """
    if operation is not None:
        name = name_type(dtype)
        refusal = find_refusal(operation, name, length_bytes, "" if reduction is None else read_reduction(reduction).name)
        server = f"the fallback group, because: {refusal}" if refusal else "Verbena"
        return f"{operation} of {length_bytes} bytes of {name}: {server}"
    lines = format_table()
    lines.append("All other calls: NCCL for CUDA tensors, Gloo for tensors in host memory, in a group of the same ranks.")
    lines += [backend.describe() for backend in LIVE]
    return "\n".join(lines)


class VerbenaBackend(Calls, _Backend):
    """Verbena as a backend of a process group, for PyTorch versions that call backends written in Python."""

    def __init__(self, store: Any, rank: int, size: int, timeout: datetime.timedelta, name: str = "") -> None:
        _Backend.__init__(self, rank, size)
        self._begin(store, rank, size, timeout, name)

    def getBackendName(self) -> str:
        return "verbena"

    @property
    def options(self) -> Any:
        return _Backend.Options("verbena", self._timeout)

    @property
    def supports_splitting(self) -> bool:
        return True

    @property
    def supports_coalescing(self) -> bool:
        return True

    def split(self, store: Any, ranks: list[int], options: Any) -> "VerbenaBackend":
        if self.rank() not in ranks:
            raise RuntimeError(f"split_group of backend verbena: rank {self.rank()} is not in any of the new groups. Each "
                               "rank must be in one of the groups")
        timeout = self._timeout if options is None else options._timeout
        return VerbenaBackend(store, ranks.index(self.rank()), len(ranks), timeout, f"{self._group_name}/split")

    def perform_nocolor_split(self, device: Any) -> None:
        """Does nothing, because only the members of a group take part in its creation."""

    def _set_sequence_number_for_group(self) -> None:
        self._sequence = 0

    def _get_sequence_number_for_group(self) -> int:
        return self._sequence


class VerbenaGroup(Calls, dist.ProcessGroup):
    """Verbena as a whole process group, for PyTorch versions that call groups but not backends written in Python. This group serves
    "cpu:gloo,cuda:verbena", and passes tensors in host memory to a separate Gloo group."""

    supports_splitting = False
    supports_coalescing = True

    def __init__(self, store: Any, rank: int, size: int, timeout: datetime.timedelta, name: str = "") -> None:
        dist.ProcessGroup.__init__(self, rank, size)
        self._begin(store, rank, size, timeout, name)
        types = dist.ProcessGroup.BackendType
        self._set_default_backend(types.NCCL if self._has_gpus else types.GLOO)
        if self._has_gpus:
            self._host_group = dist.ProcessGroupGloo(dist.PrefixStore("host/", store), rank, size, timeout=timeout)
            self._register_backend(torch.device("cuda"), types.NCCL, self._fallback)
        # PyTorch reads the group's name and similar properties directly, not through the methods below.
        self._register_backend(torch.device("cpu"), types.GLOO, self._host_group or self._fallback)

    def getBackendName(self) -> str:
        return "verbena"

    def name(self) -> str:
        return "verbena"

    def _get_backend(self, device: Any) -> Any:
        return self

    def _start_coalescing(self, device: Any = None) -> None:
        self.start_coalescing()

    def _end_coalescing(self, device: Any = None) -> Any:
        return self.end_coalescing()
