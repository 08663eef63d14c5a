"""The order of a group's calls on a GPU, and the handles that PyTorch gives to its users."""
import contextlib
import ctypes
import datetime
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch._C._distributed_c10d import Work

Copies = list[tuple[Any, Any]]  # destination and source, after the kernels


_PAUSE_S = 50e-6
_DRAIN = datetime.timedelta(seconds=10)
_GRACE_S = 1  # a kernel that ends by the process's limit names the rank that is late


def _poll(is_done: Callable[[], bool], timeout: datetime.timedelta, end: Callable[[], None] = lambda: None) -> bool:
    """Waits until `is_done`, and returns True; calls `end` and returns False once the time is over."""
    deadline = time.monotonic() + timeout.total_seconds() + _GRACE_S
    while not is_done():
        if time.monotonic() > deadline:
            end()
            return False
        time.sleep(_PAUSE_S)
    return True


class CudaLane:
    """Runs a group's calls one after the other, as its communicator needs it.

    A call with async_op=True runs in the group's stream, after what the caller's stream holds so far; any other call, and
    every call that is captured into a graph, runs in the caller's stream. Nothing waits for the GPU."""

    is_host = False

    def __init__(self, device: Any, timeout: datetime.timedelta, end: Callable[[], None]) -> None:
        """`end` ends all kernels' waits: where the host waits for a call, it does so after `timeout`."""
        self.device = device
        self._timeout, self._end = timeout, end
        self._own = torch.cuda.Stream(device)
        self._last: Any = None  # the stream of the call before

    @contextlib.contextmanager
    def enter(self, is_async: bool) -> Iterator[None]:
        with torch.cuda.device(self.device):
            caller = torch.cuda.current_stream()
            is_captured = torch.cuda.is_current_stream_capturing()
            stream = self._own if is_async and not is_captured else caller
            for earlier in (caller, self._last):
                if earlier is not None and earlier != stream and not is_captured:
                    stream.wait_stream(earlier)
            self._last = None if is_captured else stream
            with torch.cuda.stream(stream):
                yield

    def finish(self, copies: Copies) -> Any:
        """Called within enter(): enqueues the copies; returns a mark of their end."""
        for destination, source in copies:
            destination.copy_(source)
        event = torch.cuda.Event()
        event.record()
        return event, torch.cuda.current_stream()

    def make_future(self, mark: Any, result: list[Any]) -> Any:
        future = torch.futures.Future(devices=[self.device])
        with torch.cuda.stream(mark[1]):  # whose waiters wait for what this stream has
            future.set_result(result)
        return future

    def is_captured(self) -> bool:
        return bool(torch.cuda.is_current_stream_capturing())

    def is_done(self, mark: Any) -> bool:
        return bool(mark[0].query())

    def order(self, mark: Any) -> None:
        """Makes the current stream wait."""
        torch.cuda.current_stream(self.device).wait_event(mark[0])

    def block(self, mark: Any) -> None:
        """Makes the host wait."""
        _poll(mark[0].query, self._timeout, self._end)
        mark[0].synchronize()

    def synchronize(self) -> None:
        torch.cuda.synchronize(self.device)

    def drain(self) -> bool:
        """Whether all calls end within a bounded time, after the context's end has ended their waits."""
        try:
            events = [stream.record_event() for stream in (self._own, self._last) if stream is not None]
            return _poll(lambda: all(event.query() for event in events), _DRAIN)
        except RuntimeError:  # a stream that is being captured, or a GPU that has failed
            return False


class HostLane:
    """The same for tensors in host memory, which only emulated GPUs take: each call waits for its end, as PyTorch's own
    operations on such tensors know no streams."""

    is_host = True

    def __init__(self, timeout: datetime.timedelta, end: Callable[[], None]) -> None:
        self._timeout, self._end = timeout, end
        self._driver = ctypes.CDLL("libcuda.so.1")
        self._gpu = ctypes.c_void_p()
        self._driver.cuCtxGetCurrent(ctypes.byref(self._gpu))

    @contextlib.contextmanager
    def enter(self, is_async: bool) -> Iterator[None]:
        self._driver.cuCtxSetCurrent(self._gpu)  # backward() runs in another thread
        yield

    def finish(self, copies: Copies) -> Any:
        _poll(lambda: bool(self._driver.cuStreamQuery(None) == 0), self._timeout, self._end)
        self.synchronize()  # a copy would not wait for the kernels
        for destination, source in copies:
            destination.copy_(source)
        return None

    def make_future(self, mark: Any, result: list[Any]) -> Any:
        future: Any = torch.futures.Future()
        future.set_result(result)
        return future

    def is_captured(self) -> bool:
        return False

    def is_done(self, mark: Any) -> bool:
        return True

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
    """A call that has been launched. wait() orders the caller's current stream after it, as NCCL's works do; the tensors stay
    alive until then, or until the call has ended."""

    def __init__(self, lane: Any, mark: Any, result: list[Any], held: list[Any], check: Callable[[], None] | None = None) -> None:
        """Takes what the call holds until it has ended, and, if wait() is to make the host wait, what then looks for errors."""
        super().__init__()
        self._lane, self._mark, self._result, self._held, self._check = lane, mark, result, held, check

    def wait(self, timeout: datetime.timedelta | None = None) -> bool:
        self._lane.order(self._mark)
        self._held.clear()  # memory that is freed now is reused after the call
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
    """Several works as one; without any, a call whose end is that of the block that coalesces it."""

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
