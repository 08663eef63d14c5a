"""Runs PyTorch's collectives on a communicator, or on the fallback group (NCCL, or Gloo without GPUs)."""
import collections
import contextlib
import datetime
import functools
import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

import verbena
from verbena.c10d.lane import Copies, CudaLane, HostLane, JoinedWork, VerbenaWork
from verbena.c10d.table import MAX_BYTES, find_refusal
from verbena.native import BackendUnavailable, load_ops_library
from verbena.ops import Algorithm, Communicator

# A function that enqueues the kernels of a call on the communicator, and returns the copies to make after the kernels.
Body = Callable[[Any], Copies]

# Kernels of several groups may run at the same time, in different orders on different ranks. To avoid a deadlock, the blocks of all groups
# (twice this number for large messages) and the blocks of NCCL must fit on a GPU together.
COMMUNICATOR_OPTIONS: dict[str, Any] = {"blocks": 32}
LIVE: "list[Calls]" = []  # keeps groups alive until their shutdown, because PyTorch keeps only the C++ part of a backend alive
_LIMITS = ("VERBENA_SYMM_TIMEOUT_MS", "VERBENA_BOOTSTRAP_TIMEOUT_MS")  # the library reads these settings only once
_EXPECTED_BYTES = 1 << 20  # the choice of the algorithm assumes this size for messages whose lengths differ among ranks
_MAX_COUNTS = 256  # maximum number of tensors of counts that a group caches


class Reduction(NamedTuple):
    name: str  # such as "SUM"; "" for calls without a reduction
    factor: Any = None  # the factor of PREMUL_SUM: a number or a tensor


_NO_REDUCTION = Reduction("")
# By the value of PyTorch's enumerator: in a training loop, hashing and comparing enumerators takes several microseconds.
_REDUCTIONS = {int(kind): Reduction(name) for name, kind in dist.ReduceOp.RedOpType.__members__.items()}


class Calls:
    """One group's collectives on one rank. The methods have the names that PyTorch uses for backends and groups.

    The group connects at its first call that a kernel serves, or at once if it is bound to a device (device_id)."""

    rank: Callable[[], int]
    size: Callable[[], int]
    _host_group: Any = None  # serves tensors in host memory; None if the fallback group serves them

    def _begin(self, store: Any, rank: int, size: int, timeout: datetime.timedelta, name: str) -> None:
        self._store, self._timeout, self._group_name = store, timeout, name
        self._has_gpus = torch.cuda.is_available()
        self._server = self._fallback = _make_fallback(dist.PrefixStore("fallback/", store), rank, size, timeout, self._has_gpus)
        self._ops: Any = None  # a Communicator
        self._context: verbena.SymmetricContext | None = None
        self._lane: Any = None
        self._no_kernels = ""  # the reason why all calls go to the fallback group
        self._failure = ""     # the reason why all calls fail
        self._sequence = 0
        self._counts: collections.OrderedDict[tuple[int, ...], Any] = collections.OrderedDict()
        self._captured: list[Any] = []
        self._served: collections.Counter[tuple[str, str]] = collections.Counter()  # number of calls by (operation, server)
        self._pending: collections.deque[tuple[Any, list[Any]]] = collections.deque()  # (mark, tensors in use) of running calls
        self._used: list[Any] = []  # temporaries of the call that is being launched
        self._coalesced: list[tuple[list[Any], Body]] | None = None
        self._coalesced_works: list[Any] = []
        self._is_batch = False
        LIVE.append(self)

    # Connecting and disconnecting.

    def eager_connect_single_device(self, device: Any) -> None:
        if self._lane is None:  # PyTorch calls this method for a group that is bound to a device
            self._connect(device)

    def _connect(self, device: Any) -> None:
        """Connects the ranks. Collective. If a rank cannot connect, all ranks learn the reason, and the group uses only the fallback
        group."""
        own_ms = str(min(max(100, int(self._timeout.total_seconds() * 1000)), 86_400_000))  # the bounds of both settings
        limits = {os.environ.setdefault(name, own_ms) for name in _LIMITS}
        if limits != {own_ms}:
            warnings.warn(f"verbena: calls of this group time out after {' and '.join(sorted(limits))} ms, not after its timeout "
                          f"of {own_ms} ms, because all groups of a process share one limit. The limit is the value of "
                          f"{' and '.join(_LIMITS)} or, if these are not set, the timeout of the first group", stacklevel=2)
        waits = self._timeout, self._end_waits
        lane: CudaLane | HostLane = CudaLane(device, *waits) if device.type == "cuda" else HostLane(*waits)
        self._lane = lane
        # This exchange ends after the group's timeout. The connection below ends only after the process's time limit, and a peer without
        # the library would never connect.
        problems = self._exchange_text("here", self._try(load_ops_library))
        if not any(problems):
            problems = self._exchange_text("connected", self._try(lambda: lane.run(False, self._make_communicator)))
        if any(problems):
            rank, self._no_kernels = next((rank, text) for rank, text in enumerate(problems) if text)
            self._drop()
            warnings.warn(f"verbena: group {self._group_name!r}: all calls go to {self._fallback.name()}: rank {rank}: {self._no_kernels}",
                          stacklevel=2)

    def _make_communicator(self) -> Copies:
        if self.rank() == 0:
            self._store.set("id", verbena.make_unique_id())
        self._context = verbena.SymmetricContext(self._store.get("id"), self.rank(), self.size())
        self._ops = Communicator(self._context, **COMMUNICATOR_OPTIONS)
        return []

    def _try(self, step: Callable[[], Any]) -> str:
        """Runs a step. Returns "" if the step succeeds; otherwise returns the reason why the step failed."""
        try:
            step()
        except (verbena.VerbenaError, verbena.LibraryNotFound, BackendUnavailable, OSError, ValueError) as error:
            self._drop()  # ends the waits of peers in this context
            if self.rank() == 0:
                self._store.set("id", b"")
            return str(error) or repr(error)
        return ""

    def _exchange_text(self, step: str, mine: str) -> list[str]:
        """Exchanges a text over the store, and returns the texts of all ranks."""
        self._store.set(f"{step}/{self.rank()}", mine)
        texts = []
        for rank in range(self.size()):
            try:
                self._store.wait([f"{step}/{rank}"], self._timeout)
            except RuntimeError as error:
                self._failure = f"rank {rank} has not connected within {self._timeout.total_seconds():g} s, the group's timeout"
                raise dist.DistBackendError(f"verbena: group {self._group_name!r}, rank {self.rank()}: {self._failure}") from error
            texts.append(self._store.get(f"{step}/{rank}").decode())
        return texts

    def _end_waits(self) -> None:
        self._failure = f"a call took longer than {self._timeout.total_seconds():g} s, the group's timeout: a rank is late"
        if self._context is not None:
            self._context.abort()

    def _drop(self) -> None:
        """Aborts and closes the context at once. Peers that wait in the context get an error."""
        context, self._ops, self._context = self._context, None, None
        if context is not None and not context.is_closed:
            context.abort()
            if self._lane is None or self._lane.drain():  # otherwise a kernel still uses the memory, which then leaks
                with contextlib.suppress(verbena.VerbenaError):
                    context.close()

    def abort(self) -> None:
        self._failure = self._failure or "the group was aborted"
        self._drop()
        self._end_fallbacks("abort _abort shutdown")

    def _end_fallbacks(self, names: str) -> None:
        groups: list[Any] = [self._fallback, self._host_group]
        for group in groups:
            if group is not None:
                with contextlib.suppress(RuntimeError):  # not all groups have the method
                    _call(group, names)

    def shutdown(self) -> None:
        """Ends the group. Collective, like destroy_process_group(). Waits for a missing peer no longer than the group's timeout."""
        if self._ops is not None and self._context is not None and not self._failure:
            try:
                self._lane.synchronize()
                self._ops.free()
                self._context.close()
            except verbena.VerbenaError as error:
                warnings.warn(f"verbena: group {self._group_name!r}: shutdown: {error}", stacklevel=2)
        self._drop()
        self._pending.clear()
        self._failure = self._failure or "the group was destroyed"
        if self in LIVE:
            LIVE.remove(self)
        self._end_fallbacks("shutdown _shutdown")

    def set_timeout(self, timeout: datetime.timedelta) -> None:
        self._timeout = timeout
        _call(self._fallback, "set_timeout _set_default_timeout", timeout)

    def describe(self) -> str:
        state = f"fallback group only: {self._no_kernels}" if self._no_kernels else self._failure or \
            (self._describe_kernels() if self._ops is not None else "not connected yet")
        calls = ", ".join(f"{count} {operation} by {server}" for (operation, server), count in sorted(self._served.items())) or "no calls"
        return f"group {self._group_name!r}, rank {self.rank()} of {self.size()}: {state}; {calls}"

    def _describe_kernels(self) -> str:
        """Returns a text that says whether the kernels encode the largest bfloat16 tensors between hosts."""
        large = self._ops.choose("all_reduce", MAX_BYTES).algorithm
        return "kernels" if large != Algorithm.LOSSLESS else \
            f"kernels; all_reduce of {MAX_BYTES >> 20} MiB of bfloat16 is encoded between hosts (LOSSLESS)"

    # Running a call.

    def _has_kernel(self, operation: str, tensors: list[Any], length_bytes: int, reduction: Reduction = _NO_REDUCTION) -> bool:
        """Returns whether a kernel serves the call. The result is the same on all ranks. Connects the ranks before the first call that a
        kernel serves."""
        self._sequence += 1
        if self._failure:
            raise dist.DistBackendError(f"verbena: {operation}: {self._failure}")
        refusal = self._no_kernels
        for tensor in tensors:
            refusal = refusal or ("no kernel reads sparse tensors" if tensor.is_sparse else
                                  _find_refusal(operation, tensor.dtype, length_bytes, reduction.name))
        self._server = self._fallback
        if self._host_group is not None and tensors[0].is_cpu:
            refusal, self._server = "tensors in host memory", self._host_group
        if not refusal and self._lane is None:
            self._connect(tensors[0].device)
            refusal = self._no_kernels
        self._served[operation, "the fallback group" if refusal else "Verbena"] += 1
        return not refusal

    def _launch(self, options: Any, tensors: list[Any], bodies: list[Body], result: list[Any], is_barrier: bool = False) -> Any:
        """Launches calls together, or adds them to the open coalescing block. `tensors` are all tensors that the kernels read
        and write; `result` is the value of the work's future."""
        if self._coalesced is not None:
            self._coalesced.extend((tensors, body) for body in bodies)
            return JoinedWork([], result)
        return self._run(getattr(options, "asyncOp", True), tensors, bodies, result, is_barrier)

    def _run(self, is_async: bool, tensors: list[Any], bodies: list[Body], result: list[Any], is_barrier: bool = False) -> Any:
        lane = self._lane
        # The list of tensors is empty after the wait() of the call's work.
        while self._pending and (not self._pending[0][1] or (not lane.is_captured() and lane.is_done(self._pending[0][0]))):
            self._pending.popleft()
        self._used = []
        try:
            mark = lane.run(is_async, lambda: self._start(tensors, bodies))
            if lane.is_host:
                self._ops.check_error()
        except verbena.VerbenaError as error:
            raise self._fail(error) from error
        used, self._used = self._used, []
        held = [*tensors, *used] if lane.has_left(mark) else []
        if held:
            self._pending.append((mark, held))
        return VerbenaWork(lane, mark, result, held, self._check if is_barrier else None)

    def _start(self, tensors: list[Any], bodies: list[Body]) -> Copies:
        if len(bodies) == 1:
            return bodies[0](self._ops)
        with self._ops.group(tensors[0]):
            return [copy for body in bodies for copy in body(self._ops)]

    def _fall_back(self, names: str, *arguments: Any) -> Any:
        """Calls a method of the fallback group. `names` has the method's name in PyTorch 2.15, then its older names."""
        work = _call(self._server, names, *[one for one in arguments if one is not None])  # PyTorch may pass no options
        is_coalesced = self._server is self._fallback and _supports_coalescing(self._fallback)
        if self._coalesced is not None and not is_coalesced:
            self._coalesced_works.append(work)
        return work

    def start_coalescing(self) -> None:
        if self._coalesced:
            self._failure = "a coalescing block ended with an exception, and its calls are lost on this rank: create another group"
            raise dist.DistBackendError(f"verbena: group {self._group_name!r}, rank {self.rank()}: {self._failure}")
        self._coalesced, self._coalesced_works = [], []
        if _supports_coalescing(self._fallback):
            self._fallback._start_coalescing()

    def end_coalescing(self) -> Any:
        calls, works = self._coalesced or [], self._coalesced_works
        self._coalesced, self._coalesced_works = None, []
        if _supports_coalescing(self._fallback):
            works.append(self._fallback._end_coalescing())
        tensors = [tensor for call in calls for tensor in call[0]]
        if calls:
            works.append(self._run(True, tensors, [body for _, body in calls], tensors))
        return JoinedWork([work for work in works if work is not None], tensors)

    def _check(self) -> None:
        try:
            if self._ops is not None:
                self._ops.check_error()
        except verbena.VerbenaError as error:
            raise self._fail(error) from error

    def _fail(self, error: verbena.VerbenaError) -> Exception:
        """Returns the error as a DistBackendError, which PyTorch users expect. Every later call raises the same error."""
        self._failure = self._failure or str(error)
        told: Exception = dist.DistBackendError(f"verbena: group {self._group_name!r}, rank {self.rank()}: {self._failure}")
        return told

    # Reductions.

    def allreduce(self, tensors: list[Any], options: Any) -> Any:
        return self._reduce_all("allreduce", tensors, options)

    def allreduce_coalesced(self, tensors: list[Any], options: Any) -> Any:
        return self._reduce_all("allreduce_coalesced", tensors, options)

    def _reduce_all(self, name: str, tensors: list[Any], options: Any) -> Any:
        reduction = read_reduction(options.reduceOp)
        if not self._has_kernel("all_reduce", tensors, max(map(_count_bytes, tensors)), reduction):
            return self._fall_back(name, tensors, options)
        return self._launch(options, tensors, [self._reduce_one(tensor, reduction) for tensor in tensors], tensors)

    def allreduce_sparse(self, tensors: list[Any], options: Any) -> Any:
        self._has_kernel("all_reduce_sparse", tensors, 0)
        return self._fall_back("allreduce_sparse", tensors, options)

    def reduce(self, tensors: list[Any], options: Any) -> Any:
        reduction = read_reduction(options.reduceOp)
        if not self._has_kernel("reduce", tensors, _count_bytes(tensors[0]), reduction):
            return self._fall_back("reduce", tensors, options)
        keeps = options.rootRank == self.rank()
        return self._launch(options, tensors, [self._reduce_one(tensors[0], reduction, False, keeps)], tensors)

    def _reduce_one(self, tensor: Any, reduction: Reduction, is_in_place: bool = True, keeps: bool = True) -> Body:
        def body(ops: Any) -> Copies:
            source, name = _scale(tensor if tensor.is_contiguous() else _pack(tensor), reduction)
            if source.numel() == 0:
                return []
            out = ops.all_reduce(source, name, out=source if is_in_place else None)
            self._used += [source, out]
            return _copy_back(tensor, out) if keeps else []
        return body

    def reduce_scatter_single(self, output: Any, source: Any, options: Any) -> Any:
        return self.reduce_scatter_single_coalesced([output], [source], options)

    def reduce_scatter_single_coalesced(self, outputs: list[Any], sources: list[Any], options: Any) -> Any:
        reduction = read_reduction(options.reduceOp)
        if not self._has_kernel("reduce_scatter", sources, max(map(_count_bytes, outputs)), reduction):
            if len(outputs) == 1:
                return self._fall_back("reduce_scatter_single _reduce_scatter_base", outputs[0], sources[0], options)
            return self._fall_back("reduce_scatter_single_coalesced reduce_scatter_tensor_coalesced", outputs, sources, options)
        bodies = [self._scatter_one(*pair, reduction) for pair in zip(outputs, sources, strict=True)]
        return self._launch(options, [*outputs, *sources], bodies, outputs)

    def reduce_scatter(self, outputs: list[Any], source_lists: list[list[Any]], options: Any) -> Any:
        (output,), (sources,) = outputs, source_lists
        reduction = read_reduction(options.reduceOp)
        if not self._has_kernel("reduce_scatter", sources, max(map(_count_bytes, sources)), reduction):
            return self._fall_back("reduce_scatter", outputs, source_lists, options)

        def body(ops: Any) -> Copies:
            whole = _join(sources)
            if len({one.numel() for one in sources}) == 1:
                return self._scatter_one(output, whole, reduction)(ops)
            scaled, name = _scale(whole, reduction)
            out = ops.all_reduce(scaled, name, out=scaled)
            self._used.append(out)
            return [(output, out.split([one.numel() for one in sources])[self.rank()].view(output.shape))]
        return self._launch(options, [output, *sources], [body], outputs)

    def _scatter_one(self, output: Any, source: Any, reduction: Reduction) -> Body:
        def body(ops: Any) -> Copies:
            scaled, name = _scale(_pack(source), reduction)
            if scaled.numel() == 0:
                return []
            out = ops.reduce_scatter(scaled, 0, name, out=_pack(output))
            self._used += [scaled, out]
            return _copy_back(output, out)
        return body

    # Exchanges.

    def all_gather_single(self, output: Any, source: Any, options: Any = None) -> Any:
        return self.all_gather_single_coalesced([output], [source], options)

    def all_gather_single_coalesced(self, outputs: list[Any], sources: list[Any], options: Any = None) -> Any:
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

    def allgather(self, output_lists: list[list[Any]], sources: list[Any], options: Any = None) -> Any:
        if not self._has_kernel("all_gather", sources, max(map(_count_bytes, output_lists[0]))):
            return self._fall_back("allgather", output_lists, sources, options)
        (outputs,), (source,) = output_lists, sources
        return self._launch(options, [*outputs, source], [self._gather_list(outputs, source)], outputs)

    def allgather_coalesced(self, output_lists: list[list[Any]], sources: list[Any], options: Any = None) -> Any:
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

    def alltoall(self, outputs: list[Any], sources: list[Any], options: Any = None) -> Any:
        if not self._has_kernel("all_to_all", outputs, 0):
            return self._fall_back("alltoall", outputs, sources, options)
        return self._launch(options, [*outputs, *sources], [self._exchange(outputs, sources)], outputs)

    def all_to_all_single(self, output: Any, source: Any, output_sizes: list[int], source_sizes: list[int], options: Any = None) -> Any:
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
        """Sends sources[r] to rank r and receives outputs[r] from rank r; None stands for an empty message. `expected` is the
        number of elements of a typical message, the same on all ranks."""
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
        """Returns the counts in GPU memory. Caches them, because copying them from the host takes longer than an exchange."""
        if counts not in self._counts:
            if self._lane.is_captured():
                raise RuntimeError("verbena: an exchange with these split sizes cannot be captured before it has run once. Make "
                                   "this call once before the capture")
            on_host = torch.tensor(counts, dtype=torch.int64, pin_memory=device.type == "cuda")
            self._counts[counts] = on_host.to(device, non_blocking=True)
        self._counts.move_to_end(counts)
        if len(self._counts) > _MAX_COUNTS:
            self._counts.popitem(last=False)
        found = self._counts[counts]
        if self._lane.is_captured():
            self._captured.append(found)  # a graph reads the counts in each replay
        elif found.is_cuda:
            found.record_stream(torch.cuda.current_stream())
        return found

    def barrier(self, opts: Any = None) -> Any:
        token = torch.zeros(1, dtype=torch.int32, device=self._find_device(opts))
        if not self._has_kernel("barrier", [token], 0):
            return self._fall_back("barrier", opts)
        return self._launch(opts, [token], [self._reduce_one(token, Reduction("SUM"))], [token], is_barrier=True)

    def _find_device(self, options: Any) -> Any:
        if not self._has_gpus:
            return torch.device("cpu")
        if self._lane is not None:
            return self._lane.device
        ids = getattr(options, "device_ids", None)
        return torch.device("cuda", ids[0] if ids else torch.cuda.current_device())

    # Messages between two ranks.

    @contextlib.contextmanager
    def batch(self) -> Iterator[list[Any]]:
        """Coalesces the messages of the `with` block if PyTorch does not coalesce them. Yields a list, to which the works of these messages
        are added."""
        works: list[Any] = []
        self._is_batch = True
        try:
            yield works
        finally:
            self._is_batch = False
            if self._coalesced is not None:
                works[:] = [self.end_coalescing()]

    def send(self, tensors: list[Any], rank: int, tag: int) -> Any:
        return self._pass("send", tensors, rank, tag)

    def recv(self, tensors: list[Any], rank: int, tag: int) -> Any:
        return self._pass("recv", tensors, rank, tag)

    def _pass(self, operation: str, tensors: list[Any], rank: int, tag: int) -> Any:
        if self._is_batch and self._coalesced is None:
            self.start_coalescing()
        self._has_kernel(operation, tensors, 0)
        return self._fall_back(operation, tensors, rank, tag)

    def recv_anysource(self, tensors: list[Any], tag: int) -> Any:
        self._has_kernel("recv", tensors, 0)
        return self._fall_back("recv_anysource", tensors, tag)


# Method names of older PyTorch releases.
for _old, _new in (("_allgather_base", "all_gather_single"), ("_reduce_scatter_base", "reduce_scatter_single"),
                   ("alltoall_base", "all_to_all_single"), ("allgather_into_tensor_coalesced", "all_gather_single_coalesced"),
                   ("reduce_scatter_tensor_coalesced", "reduce_scatter_single_coalesced")):
    setattr(Calls, _old, getattr(Calls, _new))


def _call(group: Any, names: str, *arguments: Any) -> Any:
    for name in names.split():
        if hasattr(group, name):
            return getattr(group, name)(*arguments)
    raise NotImplementedError(f"verbena: {group.name()} of PyTorch {torch.__version__} has no {names.split()[0]}, and no kernel serves it")


def _supports_coalescing(group: Any) -> bool:
    return bool(getattr(group, "supports_coalescing", False))


def _join(tensors: list[Any]) -> Any:
    return _pack(tensors[0]) if len(tensors) == 1 else torch.cat([one.detach().reshape(-1) for one in tensors])


def _copy_back(tensor: Any, flat: Any) -> Copies:
    """Returns the copies of a contiguous result into the caller's tensor; none if the result is already there."""
    return [] if flat.data_ptr() == tensor.data_ptr() else [(tensor, flat.view(tensor.shape))]


def _scale(tensor: Any, reduction: Reduction) -> tuple[Any, str]:
    """Returns the tensor, multiplied by the factor for PREMUL_SUM, and the name of the kernel's reduction."""
    if reduction.factor is None:
        return tensor, reduction.name.lower()
    return tensor.detach() * reduction.factor, "sum"


def _pack(tensor: Any) -> Any:
    """Returns the tensor as a contiguous tensor of one dimension, because strides may differ between ranks."""
    if tensor.dim() == 1 and tensor.is_contiguous():
        return tensor
    return tensor.detach().contiguous().view(-1)


def _count_bytes(tensor: Any) -> int:
    return 0 if tensor.is_sparse else int(tensor.numel() * tensor.element_size())


def name_type(dtype: Any) -> str:
    return str(dtype).removeprefix("torch.")


@functools.lru_cache(maxsize=4096)
def _find_refusal(operation: str, dtype: Any, length_bytes: int, reduction: str) -> str:
    return find_refusal(operation, name_type(dtype), length_bytes, reduction)


def read_reduction(op: Any) -> Reduction:
    """Converts a ReduceOp of torch.distributed. Reads few of its attributes, because each access is slow."""
    kind = getattr(op, "op", op)
    found = _REDUCTIONS[int(kind)]
    return Reduction(found.name, op.__getstate__()[1]) if found.name == "PREMUL_SUM" and kind is not op else found


def _make_fallback(store: Any, rank: int, size: int, timeout: datetime.timedelta, has_gpus: bool) -> Any:
    if has_gpus and dist.is_nccl_available():
        options = dist.ProcessGroupNCCL.Options()
        options._timeout = timeout
        return dist.ProcessGroupNCCL(store, rank, size, options)
    return dist.ProcessGroupGloo(store, rank, size, timeout=timeout)
