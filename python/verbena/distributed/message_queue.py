"""One writer's messages to many readers: through shared memory on its host, over TCP elsewhere."""
import contextlib
import ctypes
import math
import pickle
import struct
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import Any, NamedTuple

from verbena.distributed.exchange import Exchange, adapt_exchange, gather_objects
from verbena.native import QueueHandle, QueueMessage, QueueOptions, QueuePart, Result, load_library

# How long a wait spins before it sleeps: more than it takes to wake up, less than anybody notices.
SPIN_US = 20
SPIN_FOREVER = -1

_ALIGNMENT = 64
_RAW, _PICKLE = 0, 1
_HEAD = struct.Struct("<BxxxIQ48x")  # kind, count of buffers, bytes of the pickle; buffers' lengths stand behind it
_RAW_HEAD = _HEAD.pack(_RAW, 0, 0)
# Up to this length a message is copied before it is taken apart: cheaper than views of it.
_SHORT_BYTES = 16384
_TIMEOUT = int(Result.TIMEOUT)
# How often a wait looks at the event that may cancel it.
_CANCEL_LOOK_S = 0.1


class Handle(NamedTuple):
    """By which readers find a queue. Can be pickled."""
    native: bytes
    reader_ranks: tuple[int, ...]


class MessageView:
    """A message as it lies in the queue: `buffer`, until release() or the end of the `with` block. Its chunk is not written
    before. What was made of the buffer (a slice, a NumPy array) goes first: otherwise release() raises BufferError."""

    def __init__(self, queue: "MessageQueue", message: QueueMessage, skip_bytes: int) -> None:
        self._queue = queue
        self._ticket = message.ticket
        self._is_held = True
        length = message.length - skip_bytes
        memory = (ctypes.c_char * length).from_address((message.data or 0) + skip_bytes)
        # Whatever is made of the buffer keeps the memory's object alive.
        self._memory = weakref.ref(memory)
        self.buffer = memoryview(memory).cast("B").toreadonly()

    def release(self) -> None:
        if not self._is_held:
            raise ValueError("this message was released before")
        self.buffer.release()
        memory = self._memory()
        if memory is not None:
            self.buffer = memoryview(memory).cast("B").toreadonly()
            raise BufferError("parts of this message's buffer are in use: release or delete them before")
        self._is_held = False
        self._queue._release(self._ticket)

    def __enter__(self) -> "MessageView":
        return self

    def __exit__(self, *_: object) -> None:
        if self._is_held:
            self.release()


class MessageQueue:
    """The writer is made by the constructor, each reader from the writer's export_handle(); then all call
    wait_until_ready(). Time-outs are in seconds, None for none, and raise TimeoutError; a peer that is dead, or has shut
    the queue down, raises VerbenaError, which names it. One thread at a time uses a queue."""

    def __init__(self, n_reader: int, n_local_reader: int | None = None, local_reader_ranks: Sequence[int] | None = None,
                 max_chunk_bytes: int = 24 << 20, max_chunks: int = 10, connect_ip: str | None = None,
                 enable_shm_tensor_arena: bool = False, *, reader_ranks: Sequence[int] | None = None,
                 spin_us: int = SPIN_US) -> None:
        """`reader_ranks` are the ranks by which readers attach; without them `local_reader_ranks` if all are local, or else 0
        and up. Who shares the writer's host is found out; `n_local_reader` is only checked. `connect_ip` is an address of this
        host. Buffers need no arena of their own (`enable_shm_tensor_arena`): they go through the ring as they are."""
        if n_local_reader is not None and not 0 <= n_local_reader <= n_reader:
            raise ValueError(f"{n_local_reader} local readers of {n_reader}")
        if reader_ranks is None and local_reader_ranks is not None and len(local_reader_ranks) == n_reader:
            reader_ranks = local_reader_ranks
        ranks = tuple(range(n_reader) if reader_ranks is None else reader_ranks)
        if len(set(ranks)) != n_reader:
            raise ValueError(f"{n_reader} readers, but reader_ranks names {ranks}")
        options = QueueOptions(n_reader, max_chunks, max_chunk_bytes, spin_us, connect_ip.encode() if connect_ip else None,
                               (ctypes.c_uint32 * n_reader)(*ranks))
        self._adopt(load_library().make("queue_create", ctypes.byref(options)), is_writer=True)
        native = QueueHandle()
        self._check(self._library.queue_get_handle(self._queue, ctypes.byref(native)))
        self._handle: Handle | None = Handle(bytes(native.bytes), ranks)
        self._chunk_bytes = max_chunk_bytes

    def _adopt(self, queue: int | None, is_writer: bool) -> None:
        self._library = load_library()
        self._check = self._library.check
        self._queue = queue
        self.is_writer = is_writer
        # Made once: the interpreter takes longer over these than the queue over a short message.
        self._message = QueueMessage()
        self._message_place = ctypes.byref(self._message)
        self._parts = (QueuePart * 2)()
        self._head, self._body = self._parts
        self._head.length = _HEAD.size

    @property
    def is_reader(self) -> bool:
        return not self.is_writer

    # -- How it is made --

    def export_handle(self) -> Handle:
        if self._handle is None:
            raise RuntimeError("only the writer has the queue's handle")
        return self._handle

    @staticmethod
    def create_from_handle(handle: Handle, rank: int, spin_us: int = SPIN_US) -> "MessageQueue":
        """The reader of that rank. Returns before it is connected."""
        if rank not in handle.reader_ranks:
            raise ValueError(f"rank {rank} is no reader of this queue: its readers are {list(handle.reader_ranks)}")
        native = QueueHandle.from_buffer_copy(handle.native)
        queue = MessageQueue.__new__(MessageQueue)
        number = handle.reader_ranks.index(rank)
        queue._adopt(load_library().make("queue_attach", ctypes.byref(native), number, spin_us), is_writer=False)
        queue._handle = None
        return queue

    @staticmethod
    def create_from_process_group(pg: Any, max_chunk_bytes: int = 4 << 20, max_chunks: int = 6, writer_rank: int = 0,
                                  external_writer_handle: Handle | None = None, blocking: bool = True,
                                  spin_us: int = SPIN_US) -> "MessageQueue":
        """Collective over a process group of torch's, or any Exchange: its member `writer_rank` writes and the others read, or
        all read what a writer outside has the handle of. `blocking`: ready when it returns."""
        group = adapt_exchange(pg)
        readers = [rank for rank in range(group.size) if external_writer_handle is not None or rank != writer_rank]
        queue = None
        if external_writer_handle is None and group.rank == writer_rank:
            queue = MessageQueue(len(readers), max_chunk_bytes=max_chunk_bytes, max_chunks=max_chunks, reader_ranks=readers,
                                 spin_us=spin_us)
        handle = external_writer_handle
        if handle is None:
            handle = gather_objects(group, queue and queue.export_handle())[writer_rank]
        if queue is None:
            queue = MessageQueue.create_from_handle(handle, group.rank, spin_us)
        if blocking:
            queue.wait_until_ready()
        return queue

    @staticmethod
    def create_from_process_group_single_reader(pg: Any, max_chunk_bytes: int, max_chunks: int, reader_rank: int = 0,
                                                blocking: bool = False) -> "tuple[MessageQueue, list[Handle]]":
        """Collective: a queue from each member to whoever attaches to it as rank `reader_rank`; this member's, and the handles
        of all. `blocking`: that reader has attached to this member's when it returns."""
        group = adapt_exchange(pg)
        queue = MessageQueue(1, max_chunk_bytes=max_chunk_bytes, max_chunks=max_chunks, reader_ranks=[reader_rank])
        handles = gather_objects(group, queue.export_handle())
        if blocking:
            queue.wait_until_ready()
        return queue, handles

    def wait_until_ready(self, timeout: float | None = None) -> None:
        """Until the writer and all readers are here; by default VERBENA_BOOTSTRAP_TIMEOUT_MS."""
        result = self._library.queue_wait_until_ready(self._queue, -1 if timeout is None else math.ceil(timeout * 1000))
        self._raise_unless_done(result)

    def shutdown(self) -> None:
        """Readers find the end behind what was written. Raises BufferError while views of messages are held."""
        if self._queue is None:
            return
        result = self._library.queue_destroy(self._queue)
        if result == Result.INVALID_USAGE:
            raise BufferError(self._last_error())
        self._check(result)
        self._queue = None

    close = shutdown

    def __enter__(self) -> "MessageQueue":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.shutdown()

    def __del__(self) -> None:
        # What could not be made has nothing to be freed; what is viewed is not pulled away.
        if getattr(self, "_queue", None) is not None:
            with contextlib.suppress(BufferError):
                self.shutdown()

    @property
    def is_local(self) -> bool:
        """Of a reader: it shares memory with the writer. Of the writer: all readers do."""
        return bool(self._library.queue_is_local(self._queue))

    def pin(self) -> None:
        """For direct copies between messages and the current GPU."""
        self._check(self._library.queue_pin(self._queue))

    def cancel(self) -> None:
        """From any thread: the wait under way, or the next one, raises."""
        self._library.queue_cancel(self._queue)

    # -- The writer --

    def enqueue(self, obj: Any, timeout: float | None = None) -> None:
        """Any object that can be pickled; its buffers (NumPy arrays, PickleBuffer) are copied once, into the queue. What is
        bytes-like itself arrives as bytes, or as a view."""
        if isinstance(obj, bytes):
            return self._enqueue_short(_RAW_HEAD, obj, timeout)
        keep: list[Any] = []
        parts: list[tuple[int, int]] = []

        def add(buffer: Any) -> int:
            address, length = _find_memory(buffer, keep)
            parts.append((address, length))
            return length

        if isinstance(obj, (bytearray, memoryview)):
            add(_RAW_HEAD)
            add(obj)
        else:
            buffers: list[pickle.PickleBuffer] = []
            pickled = pickle.dumps(obj, protocol=5, buffer_callback=buffers.append)
            if not buffers:
                return self._enqueue_short(_HEAD.pack(_PICKLE, 0, len(pickled)), pickled, timeout)
            raw = [buffer.raw() for buffer in buffers]
            lengths = struct.pack(f"<{len(raw)}Q", *(view.nbytes for view in raw))
            add(_HEAD.pack(_PICKLE, len(raw), len(pickled)) + lengths)
            place = _HEAD.size + len(lengths) + add(pickled)
            for view in raw:
                place += add(bytes(-place % _ALIGNMENT))
                place += add(view)
        native = (QueuePart * len(parts))()
        for part, (address, length) in zip(native, parts, strict=True):
            part.data, part.length = address, length
        self._wait(self._library.queue_enqueue, (native, len(parts)), (), timeout, None)

    def _enqueue_short(self, head: bytes, body: bytes, timeout: float | None) -> None:
        self._head.bytes = head
        self._body.bytes = body
        self._body.length = len(body)
        self._wait(self._library.queue_enqueue, (self._parts, 2), (), timeout, None)
        self._body.bytes = None  # not kept longer than needed

    @contextlib.contextmanager
    def acquire_write(self, timeout: float | None = None, length: int | None = None) -> Iterator[memoryview]:
        """The next chunk, to be filled in place; its first `length` bytes, all without, become a message for acquire_read()
        when the block ends, unless by an exception."""
        address = ctypes.c_void_p()
        self._wait(self._library.queue_reserve, (), (ctypes.byref(address),), timeout, None)
        count = self._chunk_bytes if length is None else length
        if count > self._chunk_bytes:
            raise ValueError(f"{count} bytes do not fit a chunk of {self._chunk_bytes}")
        view = memoryview((ctypes.c_char * count).from_address(address.value or 0)).cast("B")
        try:
            yield view
        finally:
            view.release()
        self._check(self._library.queue_commit(self._queue, count))

    def drop_reader(self, rank: int) -> None:
        """Goes on without a reader that is dead."""
        self._check(self._library.queue_drop_reader(self._queue, self.export_handle().reader_ranks.index(rank)))

    # -- A reader --

    def dequeue(self, timeout: float | None = None, cancel: Any = None, indefinite: bool = False) -> Any:
        """The next message's object. `cancel`: an event that, once set, ends the wait with RuntimeError. `indefinite` changes
        nothing: without a time-out the wait lasts, and takes no processor time."""
        message = self._receive(timeout, cancel)
        if message.length <= _SHORT_BYTES:
            copy = ctypes.string_at(message.data, message.length)
            self._release(message.ticket)
            return _take_apart(memoryview(copy))
        try:
            return _take_apart(memoryview((ctypes.c_char * message.length).from_address(message.data or 0)).cast("B"))
        finally:
            self._release(message.ticket)

    def dequeue_view(self, timeout: float | None = None, cancel: Any = None) -> MessageView:
        """The next message, which must be bytes-like, without a copy if one chunk holds it."""
        message = self._receive(timeout, cancel)
        head = ctypes.string_at(message.data, _HEAD.size) if message.length >= _HEAD.size else b""
        if not head or _HEAD.unpack(head)[0] != _RAW:
            self._release(message.ticket)
            raise TypeError("the message is an object: dequeue() returns it, and it is lost now")
        return MessageView(self, message, _HEAD.size)

    @contextlib.contextmanager
    def acquire_read(self, timeout: float | None = None, cancel: Any = None,
                     indefinite: bool = False) -> Iterator[memoryview]:
        """What acquire_write() filled, in place, until the block ends."""
        with MessageView(self, self._receive(timeout, cancel), 0) as view:
            yield view.buffer

    def broadcast_object(self, obj: Any = None) -> Any:
        """The writer's object, on all."""
        if not self.is_writer:
            return self.dequeue()
        self.enqueue(obj)
        return obj

    def _receive(self, timeout: float | None, cancel: Any) -> QueueMessage:
        """Valid until the next call."""
        self._wait(self._library.queue_dequeue, (), (self._message_place,), timeout, cancel)
        return self._message

    def _release(self, ticket: int) -> None:
        self._check(self._library.queue_release(self._queue, ticket))

    # -- Waiting --

    def _wait(self, call: Callable[..., int], before: tuple[Any, ...], after: tuple[Any, ...], timeout: float | None,
              cancel: Any) -> None:
        """Calls with the queue, `before`, a time-out in milliseconds, and `after`. A call that a signal ends early is made
        again, after the interpreter has handled it."""
        if self._queue is None:
            raise ValueError("this queue was shut down")
        end = None if timeout is None else time.monotonic() + timeout
        while True:
            milliseconds = -1
            if end is not None or cancel is not None:
                if cancel is not None and cancel.is_set():
                    raise RuntimeError("cancelled")
                left = math.inf if end is None else max(0.0, end - time.monotonic())
                milliseconds = math.ceil(min(left, math.inf if cancel is None else _CANCEL_LOOK_S) * 1000)
            result = call(self._queue, *before, milliseconds, *after)
            if result != _TIMEOUT:
                return self._check(result) if result else None
            if end is not None and time.monotonic() >= end:
                raise TimeoutError(self._last_error() if self.is_writer else f"no message came in {timeout} s")

    def _raise_unless_done(self, result: int) -> None:
        if result == Result.TIMEOUT:
            raise TimeoutError(self._last_error())
        self._check(result)

    def _last_error(self) -> str:
        return str(self._library.last_error().decode())


class _Buffer(ctypes.Structure):
    """Py_buffer of CPython's stable interface."""
    _fields_ = [("data", ctypes.c_void_p), ("owner", ctypes.py_object), ("length", ctypes.c_ssize_t),
                ("item_bytes", ctypes.c_ssize_t), ("is_readonly", ctypes.c_int), ("dimensions", ctypes.c_int),
                ("format", ctypes.c_char_p), ("shape", ctypes.c_void_p), ("strides", ctypes.c_void_p),
                ("suboffsets", ctypes.c_void_p), ("internal", ctypes.c_void_p)]


class _Exported:
    """A contiguous buffer's memory, as long as this lives. A read-only one has no other way to its address."""

    def __init__(self, owner: Any) -> None:
        self.buffer = _Buffer()
        ctypes.pythonapi.PyObject_GetBuffer(ctypes.py_object(owner), ctypes.byref(self.buffer), 0)

    def __del__(self) -> None:
        ctypes.pythonapi.PyBuffer_Release(ctypes.byref(self.buffer))


def _take_apart(whole: memoryview) -> Any:
    """A message's object. Nothing of it lies in `whole`."""
    kind, count, pickled_bytes = _HEAD.unpack_from(whole)
    if kind == _RAW:
        return bytes(whole[_HEAD.size:])
    place = _HEAD.size + 8 * count
    lengths = struct.unpack_from(f"<{count}Q", whole, _HEAD.size)
    pickled = whole[place:place + pickled_bytes]
    place += pickled_bytes
    buffers = []
    for length in lengths:
        place += -place % _ALIGNMENT
        buffers.append(bytearray(whole[place:place + length]))  # they outlive the chunk
        place += length
    return pickle.loads(pickled, buffers=buffers)


def _find_memory(buffer: Any, keep: list[Any]) -> tuple[int, int]:
    """Address and length, valid as long as `keep`."""
    if isinstance(buffer, bytes):
        pointer = ctypes.c_char_p(buffer)
        keep.append(pointer)
        return ctypes.cast(pointer, ctypes.c_void_p).value or 0, len(buffer)
    if isinstance(buffer, memoryview) and not buffer.c_contiguous:
        return _find_memory(buffer.tobytes(), keep)
    exported = _Exported(buffer)
    keep.append(exported)
    return exported.buffer.data or 0, exported.buffer.length


__all__ = ["SPIN_FOREVER", "SPIN_US", "Exchange", "Handle", "MessageQueue", "MessageView"]
