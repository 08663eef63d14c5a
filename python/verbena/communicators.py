"""Adapters for communicators of the application. An adapter provides this process's rank, the number of ranks, an all-gather of bytes, and
the ncclComm_t."""
import warnings
from typing import Any, Protocol


class Communicator(Protocol):
    @property
    def rank(self) -> int: ...

    @property
    def size(self) -> int: ...

    @property
    def backend(self) -> str: ...

    def all_gather(self, mine: bytes) -> list[bytes]:
        """Returns the bytes of all ranks, in rank order. All ranks pass the same length. Collective."""

    def find_native_handle(self) -> int:
        """Returns the ncclComm_t as an integer. Raises an error if the ncclComm_t is not accessible."""


def adapt(communicator: Any) -> Communicator:
    """Wraps a TorchComms communicator or a process group of torch.distributed."""
    if hasattr(communicator, "rank") and hasattr(communicator, "size"):  # process groups have these methods in every version of PyTorch
        return ProcessGroupCommunicator(communicator)
    return TorchCommsCommunicator(communicator)


class TorchCommsCommunicator:
    """Adapter for a communicator that torchcomms.new_comm(...) returned, or that was split from such a communicator."""

    def __init__(self, comm: Any) -> None:
        self._comm = comm
        for name in ("get_backend", "get_rank", "get_size"):
            if not hasattr(comm, name):
                raise AttributeError(f"TorchComms communicator does not expose {name}(): {comm!r}")

    @property
    def rank(self) -> int:
        return int(self._comm.get_rank())

    @property
    def size(self) -> int:
        return int(self._comm.get_size())

    @property
    def backend(self) -> str:
        return str(self._comm.get_backend())

    def all_gather(self, mine: bytes) -> list[bytes]:
        import torch
        device = self._comm.get_device()
        given = torch.frombuffer(bytearray(mine), dtype=torch.uint8).to(device)
        gathered = torch.empty(self.size * len(mine), dtype=torch.uint8, device=device)
        self._comm.all_gather_single(gathered, given, False)
        # The copy to host memory waits for the all-gather on the current stream.
        everything = bytes(gathered.cpu().numpy().tobytes())
        return [everything[place:place + len(mine)] for place in range(0, len(everything), len(mine))]

    def find_native_handle(self) -> int:
        """Returns the ncclComm_t. Calls get_native_handle() if the communicator has this method, which was proposed but is in no release of
        TorchComms. Otherwise calls get_nccl_comm_ptr(), which the released NCCL and NCCLX backends have."""
        if hasattr(self._comm, "get_native_handle"):
            return int(self._comm.get_native_handle())
        implementation = self._find_implementation()
        if not hasattr(implementation, "get_nccl_comm_ptr"):
            raise AttributeError("TorchComms communicator exposes neither get_native_handle() nor "
                                 "get_backend_impl().get_nccl_comm_ptr(): this release of TorchComms gives no access to the ncclComm_t")
        return int(implementation.get_nccl_comm_ptr())

    def _find_implementation(self) -> Any:
        if hasattr(self._comm, "get_backend_impl"):
            return self._comm.get_backend_impl()
        if not hasattr(self._comm, "unsafe_get_backend"):
            return None
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            return self._comm.unsafe_get_backend()


class ProcessGroupCommunicator:
    """Adapter for a process group of torch.distributed, such as dist.group.WORLD."""

    def __init__(self, group: Any) -> None:
        self._group = group

    @property
    def rank(self) -> int:
        return int(self._group.rank())

    @property
    def size(self) -> int:
        return int(self._group.size())

    @property
    def backend(self) -> str:
        import torch.distributed as dist
        return str(dist.get_backend(self._group))

    def all_gather(self, mine: bytes) -> list[bytes]:
        import torch.distributed as dist
        gathered: list[Any] = [None] * self.size
        dist.all_gather_object(gathered, mine, group=self._group)
        return gathered

    def find_native_handle(self) -> int:
        import torch
        find_backend = getattr(self._group, "_get_backend", None)
        backend: Any = None if find_backend is None else find_backend(torch.device("cuda"))
        if not hasattr(backend, "_comm_ptr"):
            raise AttributeError("this PyTorch's process group does not expose its ncclComm_t. Use PyTorch 2.8 or newer")
        handle = int(backend._comm_ptr())
        if handle == 0:
            raise RuntimeError("the process group has no ncclComm_t yet. Make a collective call first, because this call creates the "
                               "ncclComm_t")
        return handle
