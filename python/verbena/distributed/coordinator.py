"""One rank's part in one group. All groups share the connections between the world's ranks, and each group's messages have a separate tag.
So an additional group needs no new connections, and no communication when it is created."""
import contextlib
import dataclasses
import pickle
import sys
from collections.abc import Iterator, Sequence
from typing import Any

from verbena.distributed.exchange import Pairs
from verbena.distributed.experts import All2AllManager
from verbena.distributed.message_queue import MessageQueue
from verbena.team import SymmetricTeam


@dataclasses.dataclass
class GraphCaptureContext:
    stream: Any  # torch.cuda.Stream; None if there is no GPU


class GroupCoordinator:
    """One rank's part in a group of ranks.

    Ranks: `rank` and `ranks` are ranks of the world; `rank_in_group`, `src` and `dst` are ranks of the group.

    Calls: all methods are collective over the group, except the properties and destroy(). The send and recv methods involve only the sender
    and the receiver. On each rank, only one thread at a time may call methods. Failures raise VerbenaError, which names the missing or dead
    rank.

    Sums: elements are added in float32 or a wider type, in rank order, and the sum is rounded once, so all ranks get the same bits.

    GPU tensors: the methods copy GPU tensors through host memory, unless `device_communicator` is set. A device communicator is an object
    with all_reduce(x), all_gather(x, dim) and reduce_scatter(x, dim), such as verbena.ops.Communicator. If the object also has all_gatherv,
    reduce_scatterv, fused_allreduce_rmsnorm, broadcast or capture, the group uses these methods, too."""

    def __init__(self, name: str, number: int, ranks: list[int], rank: int, local_rank: int, pairs: Pairs | None) -> None:
        self.unique_name = f"{name}:0"
        self.rank = rank
        self.ranks = ranks
        self.world_size = len(ranks)
        self.local_rank = local_rank
        self.rank_in_group = ranks.index(rank)
        self.device_communicator: Any = None
        self.mq_broadcaster: MessageQueue | None = None
        # The members' team in the world's symmetric memory; set by enable_symmetric_memory().
        self.team: SymmetricTeam | None = None
        self._tag = number
        self._pairs = pairs  # None if the world has one rank
        self._cpu_group: Any = None
        self._all2all_manager: All2AllManager | None = None

    @property
    def all2all_manager(self) -> All2AllManager:
        """The All2AllManager for mixture-of-experts calls between the group's ranks. Call enable_symmetric_memory() first."""
        if self._all2all_manager is None:
            if self.team is None:
                raise RuntimeError(f"{self.unique_name} has no symmetric memory. Call enable_symmetric_memory() first, on all ranks of "
                                   f"the world")
            self._all2all_manager = All2AllManager(self.team)
        return self._all2all_manager

    @property
    def first_rank(self) -> int:
        return self.ranks[0]

    @property
    def last_rank(self) -> int:
        return self.ranks[-1]

    @property
    def is_first_rank(self) -> bool:
        return self.rank == self.first_rank

    @property
    def is_last_rank(self) -> bool:
        return self.rank == self.last_rank

    @property
    def next_rank(self) -> int:
        return self.ranks[(self.rank_in_group + 1) % self.world_size]

    @property
    def prev_rank(self) -> int:
        return self.ranks[(self.rank_in_group - 1) % self.world_size]

    @property
    def cpu_group(self) -> Any:
        """A process group of PyTorch over gloo with the same members. The application must have initialised
        torch.distributed with the same ranks. The first use creates the group and is collective over the members. gloo's
        connections are not authenticated by the job key."""
        if self._cpu_group is None:
            import torch
            import torch.distributed as dist
            if not dist.is_initialized():
                raise RuntimeError(f"{self.unique_name} has no process group, because torch.distributed is not initialized. Call "
                                   "torch.distributed.init_process_group() with the same ranks, or use the group's own methods")
            if dist.get_rank() != self.rank or dist.get_world_size() <= max(self.ranks):
                raise RuntimeError(f"{self.unique_name}: this process is rank {self.rank} in a group of ranks {self.ranks}, but "
                                   f"in torch.distributed it is rank {dist.get_rank()} of {dist.get_world_size()}")
            if int(torch.__version__.split(".")[0]) < 2:
                raise RuntimeError(f"a process group of {self.unique_name} alone needs PyTorch 2.0 or newer, not {torch.__version__}")
            self._cpu_group = dist.new_group(self.ranks, backend="gloo", use_local_synchronization=True)
        return self._cpu_group

    @property
    def device_group(self) -> Any:
        return self.cpu_group

    # -- Tensors --

    def all_reduce(self, input_: Any, ca_fp8_quant: bool = False) -> Any:
        """Returns the sum of the ranks' tensors as a new tensor; returns the input itself if the group has one rank. ca_fp8_quant (AITER's
        name) allows the device communicator to quantise messages to e4m3, which makes the sum less accurate. This argument has no effect if
        the communicator has no all_reduce_quantised()."""
        if not isinstance(ca_fp8_quant, bool):
            raise TypeError(f"ca_fp8_quant must be True or False, not {type(ca_fp8_quant).__name__}. A group's all_reduce() always "
                            "sums and takes no reduction")
        if self.world_size == 1:
            return input_
        if ca_fp8_quant and hasattr(self.device_communicator, "all_reduce_quantised"):
            return self.device_communicator.all_reduce_quantised(input_, "fp8")
        if self.device_communicator is not None:
            return self.device_communicator.all_reduce(input_)
        return self._sum(self._share(input_), input_.dtype).view(input_.shape)

    def all_gather(self, input_: Any, dim: int = -1) -> Any:
        _check_dim(dim)
        if self.world_size == 1:
            return input_
        if self.device_communicator is not None:
            return self.device_communicator.all_gather(input_, dim)
        import torch
        return torch.cat([part.view(input_.shape) for part in self._share(input_)], dim=dim)

    def reduce_scatter(self, input_: Any, dim: int = -1) -> Any:
        _check_dim(dim)
        if self.world_size == 1:
            return input_
        if self.device_communicator is not None:
            return self.device_communicator.reduce_scatter(input_, dim)
        if input_.shape[dim] % self.world_size != 0:
            raise ValueError(f"dimension {dim} of {tuple(input_.shape)} is not divisible by {self.world_size} ranks")
        pieces = input_.chunk(self.world_size, dim)
        return self._sum(self._exchange(list(pieces)), input_.dtype).view(pieces[0].shape)

    def all_gatherv(self, input_: Any, dim: int = 0, sizes: Sequence[int] | None = None) -> Any:
        """Concatenates tensors whose sizes along `dim` differ among ranks. `sizes` has each rank's size along `dim`, 0 or
        more; None means that all ranks have the same size."""
        if self.world_size == 1:
            return input_
        if sizes is None:
            return self.all_gather(input_, dim)
        _check_dim(dim)
        if hasattr(self.device_communicator, "all_gatherv"):
            return self.device_communicator.all_gatherv(input_, dim, sizes)
        import torch
        if len(sizes) != self.world_size or input_.shape[dim] != sizes[self.rank_in_group]:
            raise ValueError(f"sizes must have one entry for each of {self.world_size} ranks: {list(sizes)} does not fit rank "
                             f"{self.rank_in_group}'s tensor, whose size along dimension {dim} is {input_.shape[dim]}")
        likes = [input_.new_empty(_resize(input_.shape, dim, size)) for size in sizes]
        return torch.cat(self._exchange([input_] * self.world_size, likes), dim=dim)

    def reduce_scatterv(self, input_: Any, dim: int = -1, sizes: Sequence[int] | None = None) -> Any:
        """Sums the ranks' tensors, and returns this rank's part of the sum along `dim`. `sizes` has the size of each rank's
        part, 0 or more; None splits the sum into equal parts."""
        if self.world_size == 1:
            return input_
        if sizes is None:
            return self.reduce_scatter(input_, dim)
        _check_dim(dim)
        if hasattr(self.device_communicator, "reduce_scatterv"):
            return self.device_communicator.reduce_scatterv(input_, dim, sizes)
        if len(sizes) != self.world_size or sum(sizes) != input_.shape[dim]:
            raise ValueError(f"sizes must have one entry for each of {self.world_size} ranks and add up to {input_.shape[dim]}, "
                             f"the size of dimension {dim}, but sizes is {list(sizes)}")
        pieces = list(input_.split(list(sizes), dim))
        own = pieces[self.rank_in_group]
        return self._sum(self._exchange(pieces, [own] * self.world_size), input_.dtype).view(own.shape)

    def gather(self, input_: Any, dst: int = 0, dim: int = -1) -> Any:
        """Concatenates the tensors of all ranks along `dim`. Returns the result on rank `dst`, and None on other ranks."""
        _check_dim(dim)
        if self.world_size == 1:
            return input_
        if self.rank_in_group != dst:
            self._send(input_, dst)
            return None
        import torch
        return torch.cat([input_ if peer == dst else self._receive(input_, peer) for peer in range(self.world_size)], dim=dim)

    def fused_allreduce_rmsnorm(self, input_: Any, residual: Any, weight: Any, eps: float) -> tuple[Any, Any]:
        """Returns (RMSNorm of h, h), where h is the sum of the ranks' tensors plus the residual. h is rounded to the input's type. The norm
        is rounded once, at the end."""
        if self.device_communicator is not None and hasattr(self.device_communicator, "fused_allreduce_rmsnorm"):
            result: tuple[Any, Any] = self.device_communicator.fused_allreduce_rmsnorm(input_, residual, weight, eps)
            return result
        added = self.all_reduce(input_) + residual
        wide = added.float()
        scale = (wide.pow(2).mean(-1, keepdim=True) + eps).rsqrt()
        return (wide * scale * weight.float()).to(added.dtype), added

    def broadcast(self, input_: Any, src: int = 0) -> Any:
        """Overwrites every rank's tensor with the tensor of rank `src`, and returns the tensor. GPU tensors go through the device
        communicator if it has broadcast()."""
        if self.world_size == 1:
            return input_
        if input_.is_cuda and hasattr(self.device_communicator, "broadcast"):
            return self.device_communicator.broadcast(input_, src)
        if self.rank_in_group == src:
            for peer in self._others():
                self._send(input_, peer)
        else:
            input_.copy_(self._receive(input_, src))
        return input_

    def send(self, tensor: Any, dst: int | None = None) -> None:
        """Sends a tensor to rank `dst`, by default to the next rank. The receiver must know the tensor's shape and type."""
        self._send(tensor, self._find_peer(dst, 1))

    def recv(self, size: Any, dtype: Any, src: int | None = None, device: Any = "cpu") -> Any:
        """Receives a tensor of the given size and type from rank `src`, by default from the previous rank."""
        import torch
        return self._receive(torch.empty(size, dtype=dtype, device=device), self._find_peer(src, -1))

    def barrier(self) -> None:
        for peer in self._others():
            self._send_bytes(b"", peer)
        for peer in self._others():
            self._receive_bytes(peer)

    @contextlib.contextmanager
    def graph_capture(self, graph_capture_context: GraphCaptureContext | None = None) -> Iterator[GraphCaptureContext]:
        """Surrounds the capture of CUDA graphs. Makes a side stream current for the block, and calls the device communicator's method
        capture() if there is one. If the caller passes a context, the context's stream must already be current."""
        with contextlib.ExitStack() as stack:
            if self.device_communicator is not None and hasattr(self.device_communicator, "capture"):
                stack.enter_context(self.device_communicator.capture())
            if graph_capture_context is None:
                graph_capture_context = stack.enter_context(side_stream())
            yield graph_capture_context

    # -- Objects --

    def broadcast_object(self, obj: Any = None, src: int = 0) -> Any:
        """Sends an object of rank `src` to all ranks, and returns it. Uses the message queue if the group has one and `src`
        is 0."""
        if self.world_size == 1:
            return obj
        if self.mq_broadcaster is not None and src == 0:
            return self.mq_broadcaster.broadcast_object(obj)
        if self.rank_in_group != src:
            return self.recv_object(src)
        pickled = pickle.dumps(obj)
        for peer in self._others():
            self._send_bytes(pickled, peer)
        return obj

    def broadcast_object_list(self, obj_list: list[Any], src: int = 0) -> list[Any]:
        """Overwrites every rank's list with the list of rank `src`, and returns it."""
        obj_list[:] = self.broadcast_object(obj_list, src)
        return obj_list

    def send_object(self, obj: Any, dst: int) -> None:
        self._send_bytes(pickle.dumps(obj), dst)

    def recv_object(self, src: int) -> Any:
        return pickle.loads(self._receive_bytes(src))

    def broadcast_tensor_dict(self, tensor_dict: dict[str, Any] | None = None, src: int = 0) -> dict[str, Any] | None:
        """Sends a dictionary of rank `src` to all ranks, and returns it. The values are tensors or picklable objects."""
        if self.world_size == 1:
            return tensor_dict
        if self.rank_in_group != src:
            return self._receive_tensors(self.broadcast_object(None, src), src)
        described, tensors = _split_dict(tensor_dict or {})
        self.broadcast_object(described, src)
        for value in tensors:
            for peer in self._others():
                self._send(value, peer)
        return tensor_dict

    def send_tensor_dict(self, tensor_dict: dict[str, Any], dst: int | None = None) -> None:
        """Sends a dictionary of tensors and picklable objects to rank `dst`, by default to the next rank."""
        if self.world_size == 1:
            return
        peer = self._find_peer(dst, 1)
        described, tensors = _split_dict(tensor_dict)
        self.send_object(described, peer)
        for value in tensors:
            self._send(value, peer)

    def recv_tensor_dict(self, src: int | None = None) -> dict[str, Any] | None:
        """Receives a dictionary from rank `src`, by default from the previous rank. Returns None in a group of one rank."""
        if self.world_size == 1:
            return None
        peer = self._find_peer(src, -1)
        return self._receive_tensors(self.recv_object(peer), peer)

    def destroy(self) -> None:
        """Frees this rank's part of the group. Not collective."""
        if self.team is not None:
            self.team.free()
            self.team = None
        if self.mq_broadcaster is not None:
            self.mq_broadcaster.shutdown()
            self.mq_broadcaster = None
        if self._cpu_group is not None:
            import torch.distributed as dist
            dist.destroy_process_group(self._cpu_group)
            self._cpu_group = None

    # -- Between pairs --

    def _others(self) -> list[int]:
        return [peer for peer in range(self.world_size) if peer != self.rank_in_group]

    def _find_peer(self, named: int | None, step: int) -> int:
        return (self.rank_in_group + step) % self.world_size if named is None else named

    def _get_pairs(self) -> Pairs:
        if self._pairs is None:
            raise ValueError(f"the group {self.unique_name} has no other rank")
        return self._pairs

    def _send_bytes(self, given: bytes, peer: int) -> None:
        self._get_pairs().send(self.ranks[peer], self._tag, given, len(given))

    def _receive_bytes(self, peer: int) -> bytes:
        return self._get_pairs().receive(self.ranks[peer], self._tag)

    def _receive_tensors(self, described: Any, src: int) -> dict[str, Any]:
        shapes, others = described
        if any(shape is not None for shape in shapes.values()):
            import torch
            others = others | {name: self._receive(torch.empty(shape[0], dtype=shape[1], device=shape[2]), src)
                               for name, shape in shapes.items() if shape is not None}
        return {name: others[name] for name in shapes}

    def _send(self, tensor: Any, peer: int) -> None:
        flat = tensor.detach().resolve_conj().resolve_neg().cpu().contiguous()
        self._get_pairs().send(self.ranks[peer], self._tag, flat.data_ptr(), flat.numel() * flat.element_size())

    def _receive(self, like: Any, peer: int) -> Any:
        import torch
        received = torch.empty(like.shape, dtype=like.dtype)
        self._get_pairs().receive_into(self.ranks[peer], self._tag, received.data_ptr(), received.numel() * received.element_size())
        return received.to(like.device)

    def _share(self, tensor: Any) -> list[Any]:
        return self._exchange([tensor] * self.world_size)

    def _exchange(self, pieces: list[Any], likes: list[Any] | None = None) -> list[Any]:
        """Sends piece i to rank i, and returns the pieces from all ranks, including this rank's own piece. Received tensors have the shapes
        and types of `likes`, or of `pieces` if `likes` is None."""
        likes = likes or pieces
        for peer in self._others():
            self._send(pieces[peer], peer)
        return [pieces[peer] if peer == self.rank_in_group else self._receive(likes[peer], peer) for peer in range(self.world_size)]

    def _sum(self, parts: list[Any], dtype: Any) -> Any:
        import torch
        wide = torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype
        total = parts[0].to(wide, copy=True)
        for part in parts[1:]:
            total += part.to(wide)
        return total.to(dtype)


@contextlib.contextmanager
def side_stream(device: Any = None) -> Iterator[GraphCaptureContext]:
    """Makes a new side stream current for the block. The side stream first waits for all earlier work of the current stream."""
    import torch
    if not torch.cuda.is_available():
        yield GraphCaptureContext(None)
        return
    stream = torch.cuda.Stream(device=device)
    stream.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(stream):
        yield GraphCaptureContext(stream)


def _check_dim(dim: Any) -> None:
    """Raises TypeError if `dim` is not an integer. The engines' own methods have a different argument in this position (use_custom in
    AITER, an output tensor in SGLang), and taking this argument as a dimension would give wrong results."""
    if isinstance(dim, bool) or not isinstance(dim, int):
        raise TypeError(f"dim must be an integer, not {type(dim).__name__}. Other arguments of the engine's method are not supported here")


def _split_dict(given: dict[str, Any]) -> tuple[Any, list[Any]]:
    """Returns (description, tensors) of a dictionary. The description has the shapes of the tensors, and all other values."""
    torch = sys.modules.get("torch")  # a caller that has tensors has imported torch
    tensors = {name: value for name, value in given.items() if torch is not None and isinstance(value, torch.Tensor)}
    shapes = {name: (tuple(value.shape), value.dtype, value.device.type) if name in tensors else None
              for name, value in given.items()}
    return (shapes, {name: value for name, value in given.items() if name not in tensors}), list(tensors.values())


def _resize(shape: Any, dim: int, size: int) -> list[int]:
    sizes = list(shape)
    sizes[dim] = size
    return sizes
