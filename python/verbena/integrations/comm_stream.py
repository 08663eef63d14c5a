"""The stream and the events of DeepEP's high-throughput calls."""
from collections.abc import Callable, Iterable
from typing import Any


class EventHandle:
    """A CUDA event that records all work enqueued so far on the current stream. Without CUDA, tensors are in host memory, and the handle
    does nothing."""

    def __init__(self) -> None:
        import torch
        self._event: Any = None
        if torch.cuda.is_available():
            self._event = torch.cuda.Event()
            self._event.record()

    def current_stream_wait(self) -> None:
        if self._event is not None:
            self._event.wait()


class EventOverlap:
    """An event, and tensors that stay alive until a stream has waited for the event. As a context manager, makes the current stream wait at
    the end of the block."""

    def __init__(self, event: EventHandle | None = None, extra_tensors: tuple[Any, ...] | None = None) -> None:
        self.event, self.extra_tensors, self._releases = event, extra_tensors, False

    def current_stream_wait(self, release_handle: bool = False) -> None:
        """Makes the current stream wait for the event. With `release_handle`, drops the event afterwards."""
        if self.event is None:
            raise ValueError("the call has no event. Pass async_finish=True")
        self.event.current_stream_wait()
        if release_handle:
            self.event = None

    def __call__(self, release_handle: bool = False) -> "EventOverlap":
        self._releases = release_handle
        return self

    def __enter__(self) -> "EventOverlap":
        return self

    def __exit__(self, *_: object) -> None:
        if self.event is not None:
            self.current_stream_wait(self._releases)


class CommStream:
    """A separate stream for communication. Without CUDA, tensors are in host memory, and there is no separate stream."""

    def __init__(self) -> None:
        self._stream: Any = None

    def find(self) -> Any:
        import torch
        if self._stream is None:
            self._stream = torch.cuda.Stream()
        return self._stream

    def run(self, body: Callable[[], tuple[Iterable[Any], Iterable[Any]]], inputs: Iterable[Any], previous_event: EventOverlap | EventHandle | None,
            is_async: bool) -> Any:
        """Calls `body` with the communication stream current, and returns the results of `body` and an event. The communication stream
        first waits for `previous_event` or, if it is None, for all earlier work of the current stream. `body` returns a pair: its results,
        and the tensors in the results. Unless `is_async`, the current stream then waits for the communication stream."""
        import torch
        previous = getattr(previous_event, "event", previous_event)
        if not torch.cuda.is_available():
            return *body()[0], EventOverlap(EventHandle() if is_async else None)
        current, stream = torch.cuda.current_stream(), self.find()
        if previous is None:
            stream.wait_stream(current)
        inputs = [one for one in inputs if one is not None]
        for one in inputs:
            one.record_stream(stream)
        with torch.cuda.stream(stream):
            if previous is not None:
                previous.current_stream_wait()
            results, outputs = body()
            event = EventHandle()
        if not is_async:
            event.current_stream_wait()
        for one in outputs:
            if one is not None:
                one.record_stream(current)
        return *results, EventOverlap(event, tuple(inputs)) if is_async else EventOverlap()
