"""Contains the lanes of a process group and the class of its Work handles. A lane runs calls on a GPU, one after the other."""
import ctypes
import datetime
import time
from collections.abc import Callable
from typing import Any

import torch
from torch._C._distributed_c10d import Work

Copies = list[tuple[Any, Any]]  # (destination, source), copied after the kernels


_MAX_STREAMS = 64  # stream objects that a lane caches
_PAUSE_S = 50e-6
_DRAIN = datetime.timedelta(seconds=10)
_GRACE_S = 1  # lets a kernel's own timeout expire first, because the kernel's error names the late rank


def _poll(is_done: Callable[[], bool], timeout: datetime.timedelta, end: Callable[[], None] = lambda: None) -> bool:
    """Polls until is_done() is true, and returns True. After the timeout, calls end() and returns False."""
    deadline = time.monotonic() + timeout.total_seconds() + _GRACE_S
    while not is_done():
        if time.monotonic() > deadline:
            end()
            return False
        time.sleep(_PAUSE_S)
    return True


def _copy(copies: Copies) -> None:
    for destination, source in copies:
        destination.detach().copy_(source)  # the destination may be a leaf that requires gradients


def find_current(index: int) -> int:
    """Returns the current stream of a GPU as an integer; creating a torch.cuda.Stream takes ten times as long."""
    find_raw = getattr(torch._C, "_cuda_getCurrentRawStream", None)
    return int(torch.cuda.current_stream(index).cuda_stream if find_raw is None else find_raw(index))


class Mark:
    """The end of a call: a stream, and an event that is recorded on this stream when the event is first needed."""

    __slots__ = ("event", "stream")

    def __init__(self, stream: int, event: Any = None) -> None:
        self.stream, self.event = stream, event


class CudaLane:
    """Runs a group's calls one after the other, as the group's communicator requires.

    A call with async_op=True runs on the group's own stream, after all earlier work of the caller's stream. All other calls,
    and all calls captured into a graph, run on the caller's stream. run() does not wait for the GPU."""

    is_host = False

    def __init__(self, device: Any, timeout: datetime.timedelta, end: Callable[[], None]) -> None:
        """Creates the lane. If the host has waited for a call longer than `timeout`, the lane calls `end`, which aborts the waits of all
        kernels."""
        self._index = torch.cuda.current_device() if device.index is None else device.index
        self.device = torch.device("cuda", self._index)
        self._timeout, self._end = timeout, end
        self._own = torch.cuda.Stream(self.device)
        self._own_raw = int(self._own.cuda_stream)
        # ExternalStream(0) would not be the default stream.
        self._streams = {self._own_raw: self._own, 0: torch.cuda.default_stream(self.device)}
        self._between = torch.cuda.Event()
        self._last: int | None = None  # the stream of the previous call

    def run(self, is_async: bool, launch: Callable[[], Copies]) -> Mark:
        """Calls launch(), makes the copies that launch() returned, and returns a mark of the end of these copies."""
        if torch.cuda.current_device() != self._index:
            with torch.cuda.device(self.device):
                return self.run(is_async, launch)
        caller = find_current(self._index)
        if self.is_captured():
            self._last, stream = None, caller
        else:
            stream = self._own_raw if is_async else caller
            if self._last is not None and self._last != stream:
                self._follow(stream, self._last)
            self._last = stream
        if stream == caller:
            _copy(launch())
            return Mark(stream)
        self._follow(stream, caller)
        torch.cuda.set_stream(self._own)
        try:
            _copy(launch())
            return Mark(stream, self._own.record_event())
        finally:
            torch.cuda.set_stream(self._as_stream(caller))

    def _follow(self, later: int, earlier: int) -> None:
        """Makes the stream `later` wait for all earlier work of the stream `earlier`."""
        self._between.record(self._as_stream(earlier))
        self._as_stream(later).wait_event(self._between)

    def _as_stream(self, raw: int) -> Any:
        if raw not in self._streams:
            if len(self._streams) == _MAX_STREAMS:
                self._streams.popitem()
            self._streams[raw] = torch.cuda.ExternalStream(raw, self.device)
        return self._streams[raw]

    def _find_event(self, mark: Mark) -> Any:
        if mark.event is None:
            mark.event = self._as_stream(mark.stream).record_event()
        return mark.event

    def make_future(self, mark: Mark, result: list[Any]) -> Any:
        if torch.cuda.current_device() != self._index:
            with torch.cuda.device(self.device):
                return self.make_future(mark, result)
        future = torch.futures.Future(devices=[self.device])
        caller = find_current(self._index)
        torch.cuda.set_stream(self._as_stream(mark.stream))  # faster than torch.cuda.stream()
        try:
            future.set_result(result)  # waiters of the future wait for the current stream
        finally:
            torch.cuda.set_stream(self._as_stream(caller))
        return future

    def is_captured(self) -> bool:
        return bool(torch.cuda.is_current_stream_capturing())

    def is_done(self, mark: Mark) -> bool:
        return bool(self._find_event(mark).query())

    def has_left(self, mark: Mark) -> bool:
        """Returns True if the call runs on the lane's own stream, and False if it runs on the caller's stream."""
        return mark.event is not None

    def order(self, mark: Mark) -> None:
        """Makes the current stream wait for the call."""
        current = find_current(self._index)
        if current != mark.stream:
            self._as_stream(current).wait_event(self._find_event(mark))

    def block(self, mark: Mark) -> None:
        """Makes the host wait for the call."""
        event = self._find_event(mark)
        _poll(event.query, self._timeout, self._end)
        event.synchronize()

    def synchronize(self) -> None:
        torch.cuda.synchronize(self.device)

    def drain(self) -> bool:
        """Waits for the end of all calls, after abort() ended their waits. Returns False if a call does not end in time."""
        try:
            events = [self._as_stream(raw).record_event() for raw in (self._own_raw, self._last) if raw is not None]
            return _poll(lambda: all(event.query() for event in events), _DRAIN)
        except RuntimeError:  # a stream that is being captured, or a GPU that has failed
            return False


class HostLane:
    """A lane for tensors in host memory, which only emulated GPUs accept. run() waits for the end of each call, because PyTorch's own
    operations on such tensors use no streams."""

    is_host = True

    def __init__(self, timeout: datetime.timedelta, end: Callable[[], None]) -> None:
        self._timeout, self._end = timeout, end
        self._driver = ctypes.CDLL("libcuda.so.1")
        self._gpu = ctypes.c_void_p()
        self._driver.cuCtxGetCurrent(ctypes.byref(self._gpu))

    def run(self, is_async: bool, launch: Callable[[], Copies]) -> Any:
        self._driver.cuCtxSetCurrent(self._gpu)  # backward() runs in another thread
        copies = launch()
        _poll(lambda: bool(self._driver.cuStreamQuery(None) == 0), self._timeout, self._end)
        self.synchronize()  # a copy would not wait for the kernels
        _copy(copies)
        return None

    def make_future(self, mark: Any, result: list[Any]) -> Any:
        future: Any = torch.futures.Future()
        future.set_result(result)
        return future

    def is_captured(self) -> bool:
        return False

    def is_done(self, mark: Any) -> bool:
        return True

    def has_left(self, mark: Any) -> bool:
        return False

    def order(self, mark: Any) -> None:
        pass

    def block(self, mark: Any) -> None:
        pass

    def synchronize(self) -> None:
        self._driver.cuStreamSynchronize(None)

    def drain(self) -> bool:
        self._driver.cuCtxSetCurrent(self._gpu)
        return _poll(lambda: bool(self._driver.cuStreamQuery(None) == 0), _DRAIN)


class VerbenaWork(Work):
    """The Work of a launched call. wait() makes the caller's current stream wait for the call, as NCCL's works do. The Work
    keeps the call's tensors alive until wait(), or until the call has ended."""

    def __init__(self, lane: Any, mark: Any, result: list[Any], held: list[Any], check: Callable[[], None] | None = None) -> None:
        """Creates the Work. `held` are tensors to keep alive. If `check` is given, wait() makes the host wait for the call and
        then calls check(), which raises the call's error."""
        super().__init__()
        self._lane, self._mark, self._result, self._held, self._check = lane, mark, result, held, check

    def wait(self, timeout: datetime.timedelta | None = None) -> bool:
        self._lane.order(self._mark)
        self._held.clear()  # from here on, the allocator reuses the freed memory only after the call
        if self._check is not None:
            self._lane.block(self._mark)
            self._check()
        return True

    def synchronize(self) -> None:
        self._lane.order(self._mark)

    def block_current_stream(self) -> None:
        self._lane.order(self._mark)

    def is_completed(self) -> bool:
        return bool(self._lane.is_done(self._mark))

    def is_success(self) -> bool:
        return self.is_completed()

    def get_future(self) -> Any:
        return self._lane.make_future(self._mark, self._result)

    def result(self) -> list[Any]:
        return self._result


class JoinedWork(Work):
    """Joins several works into one. A JoinedWork without works represents a call in a coalescing block; the block's own work then tracks
    the call."""

    def __init__(self, works: list[Any], result: list[Any]) -> None:
        super().__init__()
        self._works, self._result = works, result

    def wait(self, timeout: datetime.timedelta | None = None) -> bool:
        for work in self._works:
            work.wait()
        return True

    def synchronize(self) -> None:
        self.wait()

    def block_current_stream(self) -> None:
        self.wait()

    def is_completed(self) -> bool:
        return all(work.is_completed() for work in self._works)

    def get_future(self) -> Any:
        self.wait()
        future: Any = torch.futures.Future(devices=sorted({one.device for one in self._result if one.is_cuda}, key=str))
        future.set_result(self._result)
        return future

    def result(self) -> list[Any]:
        return self._result
