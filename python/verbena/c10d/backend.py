"""The backend: PyTorch's collectives as calls of a communicator, or of the fallback group."""
import collections
import contextlib
import datetime
import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch._C._distributed_c10d as c10d
import torch.distributed as dist

import verbena
from verbena.c10d.lane import Copies, CudaLane, HostLane, JoinedWork, VerbenaWork
from verbena.c10d.table import find_refusal, format_table
from verbena.ops import Communicator

# What a call does with the communicator; it returns what is to be copied when the kernels have ended.
Body = Callable[[Any], Copies]

_Backend: Any = getattr(c10d, "Backend", object)
_communicator_options: dict[str, Any] = {}
_backends: "list[VerbenaBackend]" = []  # until their shutdown: PyTorch keeps the C++ half of a wrapped backend alone alive
_LIMITS = ("VERBENA_SYMM_TIMEOUT_MS", "VERBENA_BOOTSTRAP_TIMEOUT_MS")  # the library reads them once
_EXPECTED_BYTES = 1 << 20  # of a message whose length differs among ranks, by which the algorithm is chosen
_MAX_COUNTS = 256  # tensors of counts that a group keeps


def register(devices: Sequence[str] = ("cuda",), **communicator_options: Any) -> None:
    """Registers the backend "verbena" for types of devices. The entry point and the import of verbena.c10d call it for CUDA.

    Args:
        communicator_options: of verbena.ops.Communicator, for groups that connect from now on; the same on all ranks.
    """
    if not _runs_methods():
        raise RuntimeError(f"PyTorch {torch.__version__} does not call backends that are written in Python; 2.15 does")
    _communicator_options.update(communicator_options)
    dist.Backend.register_backend("verbena", _create, extended_api=True, devices=list(devices))


def _runs_methods() -> bool:
    """Whether this PyTorch calls the methods of a subclass of Backend."""
    class Probe(_Backend):
        def getBackendName(self) -> str:
            return "probe"

    try:
        return bool(Probe(0, 1).name() == "probe")
    except (AttributeError, RuntimeError, TypeError):
        return False


def _create(options: Any, _: Any) -> "VerbenaBackend":
    bound = getattr(getattr(options, "process_group", None), "bound_device_id", None)
    backend = VerbenaBackend(options.store, options.group_rank, options.group_size, options.timeout, options.group_id)
    if bound is not None:
        backend.eager_connect_single_device(bound)
    return backend


def explain(operation: str | None = None, dtype: Any = torch.float32, length_bytes: int = 0, reduction: Any = None) -> str:
    """Returns who serves which call, and why; with an operation, who serves that call. The second part has this process's
    groups: whether they use kernels, and how many calls went where."""
    if operation is not None:
        name = _name_type(dtype)
        refusal = find_refusal(operation, name, length_bytes, "" if reduction is None else _name_reduction(reduction))
        server = f"the fallback group, because: {refusal}" if refusal else "Verbena"
        return f"{operation} of {length_bytes} bytes of {name}: {server}"
    lines = format_table()
    lines.append("All else: NCCL for CUDA tensors, Gloo for tensors of the host, in a group of the same ranks.")
    lines += [backend.describe() for backend in _backends]
    return "\n".join(lines)


class VerbenaBackend(_Backend):
    """One group's backend on one rank.

    It connects at the first call that a kernel serves, or at once if the group is bound to a device (device_id)."""

    def __init__(self, store: Any, rank: int, size: int, timeout: datetime.timedelta, name: str = "") -> None:
        super().__init__(rank, size)
        self._store, self._timeout, self._group_name = store, timeout, name
        self._has_gpus = torch.cuda.is_available()
        self._fallback = _make_fallback(dist.PrefixStore("fallback/", store), rank, size, timeout, self._has_gpus)
        self._ops: Communicator | None = None
        self._context: verbena.SymmetricContext | None = None
        self._lane: Any = None
        self._no_kernels = ""  # why the whole group is the fallback group's
        self._failure = ""     # why no call is possible any more
        self._sequence = 0
        self._counts: collections.OrderedDict[tuple[int, ...], Any] = collections.OrderedDict()
        self._served: collections.Counter[str] = collections.Counter()
        self._pending: collections.deque[tuple[Any, list[Any]]] = collections.deque()  # marks, and the tensors that calls use
        self._used: list[Any] = []  # temporaries of the call that is being launched
        self._coalesced: list[tuple[list[Any], Body]] | None = None
        self._coalesced_works: list[Any] = []
        _backends.append(self)

    # Connecting, and what is left of it.

    def eager_connect_single_device(self, device: Any) -> None:
        self._connect(device)

    def _connect(self, device: Any) -> None:
        """Collective. Every rank learns whether all have succeeded: if one has not, the group uses no kernels."""
        own_ms = str(min(max(100, int(self._timeout.total_seconds() * 1000)), 86_400_000))  # the parameters' bounds
        limits = {os.environ.setdefault(name, own_ms) for name in _LIMITS}
        if limits != {own_ms}:
            warnings.warn(f"verbena: calls of a group end after {' and '.join(sorted(limits))} ms, not after its timeout of {own_ms} ms: a "
                          f"process has one limit: {' and '.join(_LIMITS)}, or else the timeout of its first group", stacklevel=2)
        lane: CudaLane | HostLane = CudaLane(device) if device.type == "cuda" else HostLane()
        self._lane = lane
        problem = ""
        with lane.enter(False):
            try:
                if self.rank() == 0:
                    self._store.set("id", verbena.make_unique_id())
                unique_id = self._store.get("id")
                self._context = verbena.SymmetricContext(unique_id, self.rank(), self.size())
                self._ops = Communicator(self._context, **_communicator_options)
            except (verbena.VerbenaError, verbena.LibraryNotFound, OSError, ValueError) as error:
                problem = str(error) or repr(error)
                if self.rank() == 0:
                    self._store.set("id", b"")
        self._store.set(f"connected/{self.rank()}", problem)
        problems = [self._store.get(f"connected/{rank}").decode() for rank in range(self.size())]
        if any(problems):
            rank, self._no_kernels = next((rank, text) for rank, text in enumerate(problems) if text)
            self._drop()
            warnings.warn(f"verbena: group {self._group_name!r}: all calls go to {self._fallback.name()}: rank {rank}: {self._no_kernels}",
                          stacklevel=2)

    def _drop(self) -> None:
        if self._context is not None:
            self._context.abort()
        self._ops = self._context = None

    def abort(self) -> None:
        self._failure = self._failure or "the group was aborted"
        self._drop()
        with contextlib.suppress(RuntimeError):
            self._fallback.abort()

    def shutdown(self) -> None:
        """Collective, as destroy_process_group() is. A peer that is gone costs at most the group's timeout."""
        ops, context = self._ops, self._context
        self._ops = self._context = None
        if ops is not None and context is not None:
            try:
                self._lane.synchronize()
                self._pending.clear()
                if self._failure:
                    context.abort()
                else:
                    ops.free()
                    context.close()
            except verbena.VerbenaError as error:
                context.abort()
                warnings.warn(f"verbena: group {self._group_name!r}: shutdown: {error}", stacklevel=2)
        self._failure = self._failure or "the group was destroyed"
        if self in _backends:
            _backends.remove(self)
        with contextlib.suppress(RuntimeError):
            self._fallback.shutdown()

    # What PyTorch asks about a backend.

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
            raise RuntimeError(f"split_group of backend verbena: rank {self.rank()} is in none of the new groups; name a group for "
                               "each rank")
        timeout = self._timeout if options is None else options._timeout
        return VerbenaBackend(store, sorted(ranks).index(self.rank()), len(ranks), timeout, f"{self._group_name}/split")

    def perform_nocolor_split(self, device: Any) -> None:
        """A new group concerns its members alone."""

    def set_timeout(self, timeout: datetime.timedelta) -> None:
        self._timeout = timeout
        self._fallback.set_timeout(timeout)

    def _set_default_timeout(self, timeout: datetime.timedelta) -> None:
        self.set_timeout(timeout)

    def _set_sequence_number_for_group(self) -> None:
        self._sequence = 0

    def _get_sequence_number_for_group(self) -> int:
        return self._sequence

    def describe(self) -> str:
        state = f"fallback group only: {self._no_kernels}" if self._no_kernels else self._failure or \
            ("kernels" if self._ops is not None else "not connected yet")
        calls = ", ".join(f"{count} {name}" for name, count in sorted(self._served.items())) or "no calls"
        return f"group {self._group_name!r}, rank {self.rank()} of {self.size()}: {state}; {calls}"

    # How a call runs.

    def _has_kernel(self, operation: str, tensors: list[Any], length_bytes: int, reduction: Any = None) -> bool:
        """Chooses, alike on all ranks; connects at the first call that a kernel serves."""
        self._sequence += 1
        if self._failure:
            raise dist.DistBackendError(f"verbena: {operation}: {self._failure}")
        name = "" if reduction is None else _name_reduction(reduction)
        refusals = [find_refusal(operation, _name_type(tensor.dtype), length_bytes, name) for tensor in tensors]
        refusal = self._no_kernels or next(filter(None, refusals), "")
        if not refusal and self._lane is None:
            self._connect(tensors[0].device)
            refusal = self._no_kernels
        self._served[f"{operation} by {'the fallback group' if refusal else 'Verbena'}"] += 1
        return not refusal

    def _launch(self, options: Any, tensors: list[Any], bodies: list[Body], result: list[Any], is_barrier: bool = False) -> Any:
        """Launches calls together. `tensors`: what the kernels read and write; `result`: of the future."""
        if self._coalesced is not None:
            self._coalesced.extend((tensors, body) for body in bodies)
            return JoinedWork([], result)
        return self._run(getattr(options, "asyncOp", True), tensors, bodies, result, is_barrier)

    def _run(self, is_async: bool, tensors: list[Any], bodies: list[Body], result: list[Any], is_barrier: bool = False) -> Any:
        ops, lane = self._ops, self._lane
        assert ops is not None
        if not lane.is_captured():
            while self._pending and lane.is_done(self._pending[0][0]):
                self._pending.popleft()
        with lane.enter(is_async), self._tells_as_torch():
            self._used = []
            with contextlib.nullcontext() if len(bodies) == 1 else ops.group(tensors[0]):
                copies = [copy for body in bodies for copy in body(ops)]
            mark = lane.finish(copies)
            if lane.is_host:
                ops.check_error()
        held = [*tensors, *self._used] if is_async and not lane.is_host else []
        if held:
            self._pending.append((mark, held))
        return VerbenaWork(lane, mark, result, held, self._check if is_barrier else None)

    def _fall_back(self, names: str, *arguments: Any) -> Any:
        """Calls the fallback group. `names`: the name in PyTorch 2.15, and those in older ones."""
        method = next(getattr(self._fallback, name) for name in names.split() if hasattr(self._fallback, name))
        work = method(*arguments)
        if self._coalesced is not None:
            self._coalesced_works.append(work)
        return work

    def start_coalescing(self) -> None:
        self._coalesced, self._coalesced_works = [], []
        if self._fallback.supports_coalescing:
            self._fallback._start_coalescing()

    def end_coalescing(self) -> Any:
        calls, works = self._coalesced or [], self._coalesced_works
        self._coalesced, self._coalesced_works = None, []
        if self._fallback.supports_coalescing:
            works = [self._fallback._end_coalescing()] if works else works
        tensors = [tensor for call in calls for tensor in call[0]]
        if calls:
            works.append(self._run(True, tensors, [body for _, body in calls], tensors))
        return JoinedWork([work for work in works if work is not None], tensors)

    def _check(self) -> None:
        with self._tells_as_torch():
            if self._ops is not None:
                self._ops.check_error()

    @contextlib.contextmanager
    def _tells_as_torch(self) -> Iterator[None]:
        """Raises what users of PyTorch expect, and from then on with every call."""
        try:
            yield
        except verbena.VerbenaError as error:
            self._failure = str(error)
            raise dist.DistBackendError(f"verbena: group {self._group_name!r}, rank {self.rank()}: {error}") from error

    # Reductions.

    def allreduce(self, tensors: list[Any], options: Any) -> Any:
        if not self._has_kernel("all_reduce", tensors, max(map(_count_bytes, tensors)), options.reduceOp):
            return self._fall_back("allreduce", tensors, options)
        return self._launch(options, tensors, [self._reduce_one(tensor, options.reduceOp) for tensor in tensors], tensors)

    def allreduce_coalesced(self, tensors: list[Any], options: Any) -> Any:
        if not self._has_kernel("all_reduce", tensors, max(map(_count_bytes, tensors)), options.reduceOp):
            return self._fall_back("allreduce_coalesced", tensors, options)
        return self._launch(options, tensors, [self._reduce_one(tensor, options.reduceOp) for tensor in tensors], tensors)

    def allreduce_sparse(self, tensors: list[Any], options: Any) -> Any:
        self._has_kernel("all_reduce_sparse", tensors, 0)
        return self._fall_back("allreduce_sparse", tensors, options)

    def reduce(self, tensors: list[Any], options: Any) -> Any:
        if not self._has_kernel("reduce", tensors, _count_bytes(tensors[0]), options.reduceOp):
            return self._fall_back("reduce", tensors, options)
        keeps = options.rootRank == self.rank()
        return self._launch(options, tensors, [self._reduce_one(tensors[0], options.reduceOp, False, keeps)], tensors)

    def _reduce_one(self, tensor: Any, op: Any, is_in_place: bool = True, keeps: bool = True) -> Body:
        def body(ops: Any) -> Copies:
            source, name = _scale(_pack(tensor), op)
            if source.numel() == 0:
                return []
            out = ops.all_reduce(source, name, out=source if is_in_place else None)
            self._used += [source, out]
            return _copy_back(tensor, out) if keeps else []
        return body

    def reduce_scatter_single(self, output: Any, source: Any, options: Any) -> Any:
        return self.reduce_scatter_single_coalesced([output], [source], options)

    def reduce_scatter_single_coalesced(self, outputs: list[Any], sources: list[Any], options: Any) -> Any:
        if not self._has_kernel("reduce_scatter", sources, max(map(_count_bytes, outputs)), options.reduceOp):
            if len(outputs) == 1:
                return self._fall_back("reduce_scatter_single _reduce_scatter_base", outputs[0], sources[0], options)
            return self._fall_back("reduce_scatter_single_coalesced reduce_scatter_tensor_coalesced", outputs, sources, options)
        bodies = [self._scatter_one(*pair, options.reduceOp) for pair in zip(outputs, sources, strict=True)]
        return self._launch(options, [*outputs, *sources], bodies, outputs)

    def reduce_scatter(self, outputs: list[Any], source_lists: list[list[Any]], options: Any) -> Any:
        (output,), (sources,) = outputs, source_lists
        if not self._has_kernel("reduce_scatter", sources, max(map(_count_bytes, sources)), options.reduceOp):
            return self._fall_back("reduce_scatter", outputs, source_lists, options)

        def body(ops: Any) -> Copies:
            whole = _join(sources)
            if len({one.numel() for one in sources}) == 1:
                return self._scatter_one(output, whole, options.reduceOp)(ops)
            scaled, name = _scale(whole, options.reduceOp)
            out = ops.all_reduce(scaled, name, out=scaled)
            self._used.append(out)
            return [(output, out.split([one.numel() for one in sources])[self.rank()].view(output.shape))]
        return self._launch(options, [output, *sources], [body], outputs)

    def _scatter_one(self, output: Any, source: Any, op: Any) -> Body:
        def body(ops: Any) -> Copies:
            scaled, name = _scale(_pack(source), op)
            if scaled.numel() == 0:
                return []
            out = ops.reduce_scatter(scaled, 0, name, out=_pack(output))
            self._used += [scaled, out]
            return _copy_back(output, out)
        return body

    # Exchanges.

    def all_gather_single(self, output: Any, source: Any, options: Any) -> Any:
        return self.all_gather_single_coalesced([output], [source], options)

    def all_gather_single_coalesced(self, outputs: list[Any], sources: list[Any], options: Any) -> Any:
        if not self._has_kernel("all_gather", sources, max(map(_count_bytes, sources))):
            if len(outputs) == 1:
                return self._fall_back("all_gather_single _allgather_base", outputs[0], sources[0], options)
            return self._fall_back("all_gather_single_coalesced allgather_into_tensor_coalesced", outputs, sources, options)
        bodies = [self._gather_one(*pair) for pair in zip(outputs, sources, strict=True)]
        return self._launch(options, [*outputs, *sources], bodies, outputs)

    def _gather_one(self, output: Any, source: Any) -> Body:
        def body(ops: Any) -> Copies:
            part = _pack(source)
            if part.numel() == 0:
                return []
            out = ops.all_gather(part, 0, out=_pack(output))
            self._used += [part, out]
            return _copy_back(output, out)
        return body

    def allgather(self, output_lists: list[list[Any]], sources: list[Any], options: Any) -> Any:
        if not self._has_kernel("all_gather", sources, max(map(_count_bytes, output_lists[0]))):
            return self._fall_back("allgather", output_lists, sources, options)
        (outputs,), (source,) = output_lists, sources
        return self._launch(options, [*outputs, source], [self._gather_list(outputs, source)], outputs)

    def allgather_coalesced(self, output_lists: list[list[Any]], sources: list[Any], options: Any) -> Any:
        outputs = [one for every in output_lists for one in every]
        if not self._has_kernel("all_gather", sources, max(map(_count_bytes, outputs))):
            return self._fall_back("allgather_coalesced", output_lists, sources, options)
        bodies = [self._gather_list(*pair) for pair in zip(zip(*output_lists, strict=True), sources, strict=True)]
        return self._launch(options, [*outputs, *sources], bodies, outputs)

    def _gather_list(self, outputs: Sequence[Any], source: Any) -> Body:
        def body(ops: Any) -> Copies:
            if len({one.numel() for one in outputs}) > 1:
                return [copy for root, one in enumerate(outputs) for copy in self._broadcast_one(one, root, source)(ops)]
            part = _pack(source)
            if part.numel() == 0:
                return []
            whole = ops.all_gather(part, 0)
            self._used += [part, whole]
            return [(one, got.view(one.shape)) for one, got in zip(outputs, whole.chunk(self.size()), strict=True)]
        return body

    def broadcast(self, tensors: list[Any], options: Any) -> Any:
        if not self._has_kernel("broadcast", tensors, _count_bytes(tensors[0])):
            return self._fall_back("broadcast", tensors, options)
        return self._launch(options, tensors, [self._broadcast_one(tensors[0], options.rootRank, tensors[0])], tensors)

    def _broadcast_one(self, tensor: Any, root: int, source: Any) -> Body:
        def body(ops: Any) -> Copies:
            out = _pack(source if root == self.rank() else tensor)
            if out.numel() == 0:
                return []
            ops.broadcast(out, root)
            self._used.append(out)
            return _copy_back(tensor, out)
        return body

    def gather(self, output_lists: list[list[Any]], sources: list[Any], options: Any) -> Any:
        (source,), root = sources, options.rootRank
        if not self._has_kernel("gather", sources, _count_bytes(source)):
            return self._fall_back("gather", output_lists, sources, options)
        outputs = output_lists[0] if root == self.rank() else []
        sent = [source if rank == root else None for rank in range(self.size())]
        body = self._exchange(outputs or [None] * self.size(), sent, source.numel())
        return self._launch(options, [*outputs, source], [body], outputs)

    def scatter(self, outputs: list[Any], source_lists: list[list[Any]], options: Any) -> Any:
        (output,), root = outputs, options.rootRank
        if not self._has_kernel("scatter", outputs, _count_bytes(output)):
            return self._fall_back("scatter", outputs, source_lists, options)
        sources = source_lists[0] if root == self.rank() else []
        received = [output if rank == root else None for rank in range(self.size())]
        body = self._exchange(received, sources or [None] * self.size(), output.numel())
        return self._launch(options, [output, *sources], [body], outputs)

    def alltoall(self, outputs: list[Any], sources: list[Any], options: Any) -> Any:
        if not self._has_kernel("all_to_all", outputs, 0):
            return self._fall_back("alltoall", outputs, sources, options)
        return self._launch(options, [*outputs, *sources], [self._exchange(outputs, sources)], outputs)

    def all_to_all_single(self, output: Any, source: Any, output_sizes: list[int], source_sizes: list[int], options: Any) -> Any:
        has_sizes = bool(output_sizes or source_sizes)
        if not self._has_kernel("all_to_all", [output], 0 if has_sizes else _count_bytes(source) // self.size()):
            return self._fall_back("all_to_all_single alltoall_base", output, source, output_sizes, source_sizes, options)

        def body(ops: Any) -> Copies:
            if has_sizes:
                received, given = (list(one.split(sizes or one.shape[0] // self.size()))
                                   for one, sizes in ((output, output_sizes), (source, source_sizes)))
                return self._exchange(received, given)(ops)
            sent = _pack(source)
            if sent.numel() == 0:
                return []
            out = ops.all_to_all(sent, out=_pack(output))
            self._used += [sent, out]
            return _copy_back(output, out)
        return self._launch(options, [output, source], [body], [output])

    def _exchange(self, outputs: list[Any], sources: list[Any], expected: int = 0) -> Body:
        """Sends sources[r] to rank r and receives outputs[r] from it; None: nothing. `expected`: elements of a typical message,
        the same on all ranks."""
        def body(ops: Any) -> Copies:
            like = next(one for one in (*outputs, *sources) if one is not None)
            counts = [[0 if one is None else one.numel() for one in every] for every in (sources, outputs)]
            given = _join([one for one in sources if one is not None and one.numel() > 0] or [like.new_empty(1)])
            got = like.new_empty(max(1, sum(counts[1])))
            rows = expected or max(1, _EXPECTED_BYTES // like.element_size())
            on_gpu = [self._find_counts(tuple(one), like.device) for one in counts]
            ops.all_to_all_v(given, on_gpu[0], on_gpu[1], got, expected_rows=rows)
            self._used += [given, got, *on_gpu]
            parts = got[:sum(counts[1])].split(counts[1])
            return [(one, part.view(one.shape)) for one, part in zip(outputs, parts, strict=True) if one is not None]
        return body

    def _find_counts(self, counts: tuple[int, ...], device: Any) -> Any:
        """Counts in GPU memory. They are kept, since a copy from the host takes longer than an exchange."""
        if counts not in self._counts:
            self._counts[counts] = torch.tensor(counts, dtype=torch.int64, device=device)
        self._counts.move_to_end(counts)
        if len(self._counts) > _MAX_COUNTS:
            self._counts.popitem(last=False)
        return self._counts[counts]

    def barrier(self, options: Any) -> Any:
        token = torch.zeros(1, dtype=torch.int32, device=self._find_device(options))
        if not self._has_kernel("barrier", [token], 0):
            return self._fall_back("barrier", options)
        return self._launch(options, [token], [self._reduce_one(token, "SUM")], [token], is_barrier=True)

    def _find_device(self, options: Any) -> Any:
        if not self._has_gpus:
            return torch.device("cpu")
        if self._lane is not None:
            return self._lane.device
        ids = getattr(options, "device_ids", None)
        return torch.device("cuda", ids[0] if ids else torch.cuda.current_device())

    # Messages between two ranks.

    def send(self, tensors: list[Any], rank: int, tag: int) -> Any:
        self._has_kernel("send", tensors, 0)
        return self._fall_back("send", tensors, rank, tag)

    def recv(self, tensors: list[Any], rank: int, tag: int) -> Any:
        self._has_kernel("recv", tensors, 0)
        return self._fall_back("recv", tensors, rank, tag)

    def recv_anysource(self, tensors: list[Any], tag: int) -> Any:
        self._has_kernel("recv", tensors, 0)
        return self._fall_back("recv_anysource", tensors, tag)


# Names of older releases, which 2.15 forwards to the new ones.
for _old, _new in (("_allgather_base", "all_gather_single"), ("_reduce_scatter_base", "reduce_scatter_single"),
                   ("alltoall_base", "all_to_all_single"), ("allgather_into_tensor_coalesced", "all_gather_single_coalesced"),
                   ("reduce_scatter_tensor_coalesced", "reduce_scatter_single_coalesced")):
    setattr(VerbenaBackend, _old, getattr(VerbenaBackend, _new))


def _join(tensors: list[Any]) -> Any:
    return _pack(tensors[0]) if len(tensors) == 1 else torch.cat([one.detach().reshape(-1) for one in tensors])


def _copy_back(tensor: Any, flat: Any) -> Copies:
    """Copies a result to where the caller has it, unless it lies there."""
    return [] if flat.data_ptr() == tensor.data_ptr() else [(tensor, flat.view(tensor.shape))]


def _scale(tensor: Any, op: Any) -> tuple[Any, str]:
    """The tensor, multiplied where the reduction is a sum of products, and the kernel's reduction."""
    name = _name_reduction(op)
    if name != "PREMUL_SUM":
        return tensor, name.lower()
    return tensor * op.__getstate__()[1], "sum"


def _pack(tensor: Any) -> Any:
    """The elements in the order of their indices, contiguous: ranks may differ in strides."""
    return tensor.detach().contiguous().view(-1)


def _count_bytes(tensor: Any) -> int:
    return int(tensor.numel() * tensor.element_size())


def _name_type(dtype: Any) -> str:
    return str(dtype).removeprefix("torch.")


def _name_reduction(op: Any) -> str:
    return str(getattr(getattr(op, "op", op), "name", op)).removeprefix("RedOpType.")


def _make_fallback(store: Any, rank: int, size: int, timeout: datetime.timedelta, has_gpus: bool) -> Any:
    if has_gpus and dist.is_nccl_available():
        options = dist.ProcessGroupNCCL.Options()
        options._timeout = timeout
        return dist.ProcessGroupNCCL(store, rank, size, options)
    return dist.ProcessGroupGloo(store, rank, size, timeout=timeout)
