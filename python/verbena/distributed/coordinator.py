"""One rank's part in one group. Objects and tensors travel between pairs of the world's ranks, each group's with a separate
tag: a further group opens no connection and needs no agreement."""
import contextlib
import dataclasses
import pickle
import sys
from collections.abc import Iterator, Sequence
from typing import Any

from verbena.distributed.exchange import Pairs
from verbena.distributed.message_queue import MessageQueue
from verbena.team import SymmetricTeam


@dataclasses.dataclass
class GraphCaptureContext:
    stream: Any  # torch.cuda.Stream; None where there is no GPU


class GroupCoordinator:
    """One rank's part in a group of ranks.

    `rank` and `ranks` count in the world; `rank_in_group`, `src` and `dst` count in the group. Every method but the
    accessors is collective over the group (send and recv: over the pair); one thread of each rank calls at a time. Sums are
    in float32 or wider, in rank order, rounded once, so that all ranks have the same bits.

    GPU tensors go through host memory, unless a `device_communicator` was set: an object with all_reduce(x), all_gather(x,
    dim) and reduce_scatter(x, dim), such as verbena.ops.Communicator. Its all_gatherv, reduce_scatterv,
    fused_allreduce_rmsnorm and capture are used if it has them."""

    def __init__(self, name: str, number: int, ranks: list[int], rank: int, local_rank: int, pairs: Pairs | None) -> None:
        self.unique_name = f"{name}:0"
        self.rank = rank
        self.ranks = ranks
        self.world_size = len(ranks)
        self.local_rank = local_rank
        self.rank_in_group = ranks.index(rank)
        self.device_communicator: Any = None
        self.mq_broadcaster: MessageQueue | None = None
        # The members in the world's symmetric memory, once enable_symmetric_memory() was called.
        self.team: SymmetricTeam | None = None
        self._tag = number
        self._pairs = pairs  # None: the world has one rank
        self._cpu_group: Any = None

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
        """A process group of PyTorch over gloo with the same members, if the application has initialised torch.distributed
        with the world's ranks. The first use creates it, collectively over the members. gloo's connections prove no job
        key."""
        if self._cpu_group is None:
            import torch
            import torch.distributed as dist
            if not dist.is_initialized():
                raise RuntimeError(f"{self.unique_name} has no process group: torch.distributed is not initialized; call "
                                   "torch.distributed.init_process_group() with the same ranks, or use the group's own calls")
            if dist.get_rank() != self.rank or dist.get_world_size() <= max(self.ranks):
                raise RuntimeError(f"{self.unique_name} has ranks {self.ranks}, of which this is {self.rank}; torch.distributed has rank "
                                   f"{dist.get_rank()} of {dist.get_world_size()}")
            if int(torch.__version__.split(".")[0]) < 2:
                raise RuntimeError(f"a process group of {self.unique_name} alone needs PyTorch 2.0 or newer, not {torch.__version__}")
            self._cpu_group = dist.new_group(self.ranks, backend="gloo", use_local_synchronization=True)
        return self._cpu_group

    @property
    def device_group(self) -> Any:
        return self.cpu_group

    # -- Tensors --

    def all_reduce(self, input_: Any, ca_fp8_quant: bool = False) -> Any:
        """Returns the sum as a new tensor; the input if the group has one rank. ca_fp8_quant (the name is AITER's): if the
        device communicator has all_reduce_quantised(), it may send e4m3 elements, which changes the sum."""
        if not isinstance(ca_fp8_quant, bool):
            raise TypeError(f"ca_fp8_quant is True or False, not {type(ca_fp8_quant).__name__}: a group's all_reduce() only sums")
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
        """Gathers tensors of different sizes. `sizes`: the size of each rank's dimension `dim`, 0 or more; None: all are as
        this rank's."""
        if self.world_size == 1:
            return input_
        if sizes is None:
            return self.all_gather(input_, dim)
        _check_dim(dim)
        if hasattr(self.device_communicator, "all_gatherv"):
            return self.device_communicator.all_gatherv(input_, dim, sizes)
        import torch
        if len(sizes) != self.world_size or input_.shape[dim] != sizes[self.rank_in_group]:
            raise ValueError(f"sizes {list(sizes)} for {self.world_size} ranks, of which this one, {self.rank_in_group}, gives "
                             f"{input_.shape[dim]} of dimension {dim}")
        likes = [input_.new_empty(_resize(input_.shape, dim, size)) for size in sizes]
        return torch.cat(self._exchange([input_] * self.world_size, likes), dim=dim)

    def reduce_scatterv(self, input_: Any, dim: int = -1, sizes: Sequence[int] | None = None) -> Any:
        """Reduces tensors, and scatters parts of different sizes. `sizes`: the size of each rank's part of dimension `dim`,
        0 or more; None: all are equal."""
        if self.world_size == 1:
            return input_
        if sizes is None:
            return self.reduce_scatter(input_, dim)
        _check_dim(dim)
        if hasattr(self.device_communicator, "reduce_scatterv"):
            return self.device_communicator.reduce_scatterv(input_, dim, sizes)
        if len(sizes) != self.world_size or sum(sizes) != input_.shape[dim]:
            raise ValueError(f"sizes {list(sizes)} for {self.world_size} ranks and {input_.shape[dim]} of dimension {dim}")
        pieces = list(input_.split(list(sizes), dim))
        own = pieces[self.rank_in_group]
        return self._sum(self._exchange(pieces, [own] * self.world_size), input_.dtype).view(own.shape)

    def gather(self, input_: Any, dst: int = 0, dim: int = -1) -> Any:
        """Returns the concatenated tensors of all ranks on `dst`, None on other ranks."""
        _check_dim(dim)
        if self.world_size == 1:
            return input_
        if self.rank_in_group != dst:
            self._send(input_, dst)
            return None
        import torch
        return torch.cat([input_ if peer == dst else self._receive(input_, peer) for peer in range(self.world_size)], dim=dim)

    def fused_allreduce_rmsnorm(self, input_: Any, residual: Any, weight: Any, eps: float) -> tuple[Any, Any]:
        """Returns the norm of the sum and the residual, and their sum. The sum is rounded to the input's type, the norm
        once at its end."""
        if self.device_communicator is not None and hasattr(self.device_communicator, "fused_allreduce_rmsnorm"):
            result: tuple[Any, Any] = self.device_communicator.fused_allreduce_rmsnorm(input_, residual, weight, eps)
            return result
        added = self.all_reduce(input_) + residual
        wide = added.float()
        scale = (wide.pow(2).mean(-1, keepdim=True) + eps).rsqrt()
        return (wide * scale * weight.float()).to(added.dtype), added

    def broadcast(self, input_: Any, src: int = 0) -> Any:
        """Copies the tensor of rank `src` to all ranks, in place. Tensors on GPUs go through the device communicator if it
        has a broadcast()."""
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
        """Sends a tensor; by default to the next rank."""
        self._send(tensor, self._find_peer(dst, 1))

    def recv(self, size: Any, dtype: Any, src: int | None = None, device: Any = "cpu") -> Any:
        """Receives a tensor; by default from the rank before."""
        import torch
        return self._receive(torch.empty(size, dtype=dtype, device=device), self._find_peer(src, -1))

    def barrier(self) -> None:
        for peer in self._others():
            self._send_bytes(b"", peer)
        for peer in self._others():
            self._receive_bytes(peer)

    @contextlib.contextmanager
    def graph_capture(self, graph_capture_context: GraphCaptureContext | None = None) -> Iterator[GraphCaptureContext]:
        """Makes a side stream current for the block, in which graphs are captured, and lets the device communicator
        register what they use, if it has a capture(). With a context, the context's stream must be the current one
        already."""
        with contextlib.ExitStack() as stack:
            if self.device_communicator is not None and hasattr(self.device_communicator, "capture"):
                stack.enter_context(self.device_communicator.capture())
            if graph_capture_context is None:
                graph_capture_context = stack.enter_context(side_stream())
            yield graph_capture_context

    # -- Objects --

    def broadcast_object(self, obj: Any = None, src: int = 0) -> Any:
        """Sends an object to all ranks: through the message queue if the group has one and its first rank sends."""
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
        """Copies the list of rank `src` to all ranks, in place."""
        obj_list[:] = self.broadcast_object(obj_list, src)
        return obj_list

    def send_object(self, obj: Any, dst: int) -> None:
        self._send_bytes(pickle.dumps(obj), dst)

    def recv_object(self, src: int) -> Any:
        return pickle.loads(self._receive_bytes(src))

    def broadcast_tensor_dict(self, tensor_dict: dict[str, Any] | None = None, src: int = 0) -> dict[str, Any] | None:
        """Sends a dictionary of tensors and objects that can be pickled to all ranks."""
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
        """Sends a dictionary of tensors and objects; by default to the next rank."""
        if self.world_size == 1:
            return
        peer = self._find_peer(dst, 1)
        described, tensors = _split_dict(tensor_dict)
        self.send_object(described, peer)
        for value in tensors:
            self._send(value, peer)

    def recv_tensor_dict(self, src: int | None = None) -> dict[str, Any] | None:
        """Receives a dictionary of tensors and objects; by default from the rank before. None in a group of one."""
        if self.world_size == 1:
            return None
        peer = self._find_peer(src, -1)
        return self._receive_tensors(self.recv_object(peer), peer)

    def destroy(self) -> None:
        """Frees this rank's part. Not collective."""
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
        """Piece i goes to rank i; what came from each, our own included. `likes`: what comes looks like these, not the pieces."""
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
    """Makes a side stream the current one for the block; it starts after all earlier work of the current stream."""
    import torch
    if not torch.cuda.is_available():
        yield GraphCaptureContext(None)
        return
    stream = torch.cuda.Stream(device=device)
    stream.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(stream):
        yield GraphCaptureContext(stream)


def _check_dim(dim: Any) -> None:
    """Refuses a `dim` that is not an integer: AITER's second argument is use_custom, SGLang's an output, and either would
    give wrong results as a dimension."""
    if isinstance(dim, bool) or not isinstance(dim, int):
        raise TypeError(f"dim must be an integer, not {type(dim).__name__}: other arguments of the engine's method are not supported here")


def _split_dict(given: dict[str, Any]) -> tuple[Any, list[Any]]:
    """What describes it, and its tensors: by name a tensor's shape, or None; and what is no tensor."""
    torch = sys.modules.get("torch")  # a caller with tensors has imported it
    tensors = {name: value for name, value in given.items() if torch is not None and isinstance(value, torch.Tensor)}
    shapes = {name: (tuple(value.shape), value.dtype, value.device.type) if name in tensors else None
              for name, value in given.items()}
    return (shapes, {name: value for name, value in given.items() if name not in tensors}), list(tensors.values())


def _resize(shape: Any, dim: int, size: int) -> list[int]:
    sizes = list(shape)
    sizes[dim] = size
    return sizes
