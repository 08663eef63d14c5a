"""Messages from one writer to many readers: through shared memory on its host, over TCP to other hosts."""
import contextlib
import ctypes
import dataclasses
import json
import math
import pickle
import struct
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import Any

from verbena.distributed.exchange import LOOPBACK, Exchange, adapt_exchange, gather_bytes, in_the_same_node_as
from verbena.native import QueueHandle, QueueMessage, QueueOptions, QueuePart, Result, load_library, raise_interrupt

# How long a wait spins before it sleeps: more than it takes to wake up, less than anybody notices.
SPIN_US = 20
SPIN_FOREVER = -1

_ALIGNMENT = 64
_RAW, _PICKLE = 0, 1
_HEAD = struct.Struct("<BxxxIQ48x")  # kind, count of buffers, bytes of the pickle; buffers' lengths follow
_RAW_HEAD = _HEAD.pack(_RAW, 0, 0)
# Up to this length a message is copied before it is taken apart: cheaper than views of it.
_SHORT_BYTES = 16384
_TIMEOUT = int(Result.TIMEOUT)
_ADDRESS_BYTES = 80
# How often a wait looks at the event that may cancel it.
_CANCEL_LOOK_S = 0.1


# A rank: any reader without a rank.
ANY_READER = -1
_NATIVE_ANY = 0xFFFF_FFFF
_NATIVE_HANDLE_BYTES = 128


@dataclasses.dataclass(frozen=True)
class Handle:
    """The handle by which readers find a queue. It can be pickled; use to_bytes() where the receiver must not unpickle what
    it gets.

    `local_reader_ranks` and `remote_subscribe_addr` are those of vLLM's handle: the ranks that were declared to be on the
    writer's host and, if there are others, the address of the writer."""
    native: bytes
    reader_ranks: tuple[int, ...]  # ANY_READER: of a reader without a rank
    local_reader_ranks: list[int]
    remote_subscribe_addr: str | None

    def to_bytes(self) -> bytes:
        return self.native + json.dumps([self.reader_ranks, self.local_reader_ranks, self.remote_subscribe_addr]).encode()

    @staticmethod
    def from_bytes(given: bytes) -> "Handle":
        native, rest = given[:_NATIVE_HANDLE_BYTES], json.loads(given[_NATIVE_HANDLE_BYTES:])
        ranks, local, address = rest
        return Handle(native, tuple(int(rank) for rank in ranks), [int(rank) for rank in local], address and str(address))


class MessageView:
    """A message in the queue itself: `buffer`, valid until release() or the end of the `with` block. Its chunk is not
    overwritten before. Delete what was made of the buffer (a slice, a NumPy array) first: otherwise release() raises
    BufferError.

    If a block ends with an exception, that exception is raised. If its traceback still refers to the buffer, the queue's
    first call after the last reference is gone gives the chunk back. The same holds for a view that is dropped."""

    def __init__(self, queue: "MessageQueue", message: QueueMessage, skip_bytes: int) -> None:
        self._queue = queue
        self._ticket = message.ticket
        self._is_held = True
        length = message.length - skip_bytes
        memory = (ctypes.c_char * length).from_address((message.data or 0) + skip_bytes)
        memory.queue = queue  # whatever is made of the buffer keeps the queue's memory
        self._memory = weakref.ref(memory)
        queue._note_view(self._ticket, self._memory)
        self.buffer = memoryview(memory).cast("B").toreadonly()

    def release(self) -> None:
        if not self._is_held:
            raise ValueError("this message was already released")
        self.buffer.release()
        memory = self._memory()
        if memory is not None:
            self.buffer = memoryview(memory).cast("B").toreadonly()
            raise BufferError("parts of this message's buffer are still in use: release or delete them first")
        self._is_held = False
        self._queue._give_back_views()

    def __enter__(self) -> "MessageView":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if not self._is_held:
            return
        with contextlib.suppress(*([BufferError] if kind is not None else [])):
            self.release()


class MessageQueue:
    """One end of a message queue. The constructor makes the writer, create_from_handle() a reader; then all call
    wait_until_ready().

    Timeouts are in seconds, None for none, and raise TimeoutError. If a peer is dead or has shut the queue down, a call
    raises VerbenaError, which names it. One thread at a time uses a queue; any thread may call shutdown() and cancel()."""

    def __init__(self, n_reader: int, n_local_reader: int | None = None, local_reader_ranks: Sequence[int] | None = None,
                 max_chunk_bytes: int = 24 << 20, max_chunks: int = 10, connect_ip: str | None = None,
                 enable_shm_tensor_arena: bool = False, *, reader_ranks: Sequence[int] | None = None,
                 spin_us: int = SPIN_US) -> None:
        """Creates the writer.

        Args:
            n_reader: number of readers.
            reader_ranks: the ranks by which readers attach. Without them, as in vLLM, `local_reader_ranks` are those of the
                readers on this host (default: 0 and up), and readers on other hosts have any rank.
            n_local_reader: readers on this host, as vLLM declares them. Which readers share the host is detected; if all
                are declared to, the queue can be reached from this host only.
            connect_ip: an address of this host, for readers on other hosts.
            enable_shm_tensor_arena: no effect: buffers go through the ring and need no separate memory.
            spin_us: how long a wait spins before it sleeps, microseconds.
        """
        local, ranks = _name_readers(n_reader, n_local_reader, local_reader_ranks, reader_ranks)
        is_all_local = n_local_reader == n_reader
        address = LOOPBACK if is_all_local else connect_ip
        options = QueueOptions(n_reader, max_chunks, max_chunk_bytes, spin_us, address.encode() if address else None,
                               (ctypes.c_uint32 * n_reader)(*(rank % (1 << 32) for rank in ranks)))
        self._adopt(load_library().make("queue_create", ctypes.byref(options)), is_writer=True)
        native = QueueHandle()
        self._check(self._library.queue_get_handle(self._queue, ctypes.byref(native)))
        where = None if is_all_local else self._find_address()
        self._handle = Handle(bytes(native.bytes), ranks, local, where and f"tcp://{where}")
        self._chunk_bytes = max_chunk_bytes

    def _adopt(self, queue: int | None, is_writer: bool) -> None:
        self._library = load_library()
        self._check = self._library.check
        self._queue = queue
        self.is_writer = is_writer
        self._views: dict[int, weakref.ref[Any]] = {}  # of those that are not given back, by ticket
        # Made once: the interpreter takes longer over these than the queue over a short message.
        self._message = QueueMessage()
        self._message_place = ctypes.byref(self._message)
        self._parts = (QueuePart * 2)()
        self._head, self._body = self._parts
        self._head.length = _HEAD.size

    def _find_address(self) -> str:
        text = ctypes.create_string_buffer(_ADDRESS_BYTES)
        self._check(self._library.queue_get_address(self._queue, text, _ADDRESS_BYTES))
        return text.value.decode()

    @property
    def is_reader(self) -> bool:
        return not self.is_writer

    # -- How it is made --

    def export_handle(self) -> Handle:
        return self._handle

    @staticmethod
    def create_from_handle(handle: Handle, rank: int, spin_us: int = SPIN_US) -> "MessageQueue":
        """Creates the reader of a rank; ANY_READER, or a rank that is not among the queue's, for a reader without a rank.
        Returns before it is connected."""
        has_place = rank in handle.reader_ranks or rank == ANY_READER or ANY_READER in handle.reader_ranks
        if not has_place:
            raise ValueError(f"rank {rank} is not a reader of this queue; its readers are {list(handle.reader_ranks)}")
        native = QueueHandle.from_buffer_copy(handle.native)
        queue = MessageQueue.__new__(MessageQueue)
        is_named = rank != ANY_READER and rank in handle.reader_ranks
        number = handle.reader_ranks.index(rank) if is_named else _NATIVE_ANY
        queue._adopt(load_library().make("queue_attach", ctypes.byref(native), number, spin_us), is_writer=False)
        queue._handle = handle
        return queue

    @staticmethod
    def create_from_process_group(pg: Any, max_chunk_bytes: int = 4 << 20, max_chunks: int = 6, writer_rank: int = 0,
                                  external_writer_handle: Handle | None = None, blocking: bool = True,
                                  spin_us: int = SPIN_US) -> "MessageQueue":
        """Creates a queue among the members of a process group of torch, or of any Exchange. Collective. Member
        `writer_rank` writes and the others read; or all read from a writer outside the group, whose handle member
        `writer_rank` has and passes on. `blocking`: the queue is ready when the call returns."""
        group = adapt_exchange(pg)
        here = in_the_same_node_as(group, writer_rank)
        queue = None
        if external_writer_handle is None and group.rank == writer_rank:
            readers = [rank for rank in range(group.size) if rank != writer_rank]
            queue = MessageQueue(len(readers), len(readers) if all(here) else None, max_chunk_bytes=max_chunk_bytes,
                                 max_chunks=max_chunks, reader_ranks=readers, spin_us=spin_us)
        own = queue.export_handle() if queue is not None else external_writer_handle
        handles = gather_bytes(group, b"" if own is None else own.to_bytes())
        if queue is None:
            queue = MessageQueue.create_from_handle(Handle.from_bytes(handles[writer_rank]), group.rank, spin_us)
        if blocking:
            queue.wait_until_ready()
        return queue

    @staticmethod
    def create_from_process_group_single_reader(pg: Any, max_chunk_bytes: int, max_chunks: int, reader_rank: int = 0,
                                                blocking: bool = False) -> "tuple[MessageQueue, list[Handle]]":
        """Creates a queue from each member to the reader that attaches to it as rank `reader_rank`. Returns this member's
        queue, and the handles of all. Collective. `blocking`: that reader has attached to this member's queue when the
        call returns."""
        group = adapt_exchange(pg)
        is_local = in_the_same_node_as(group, reader_rank)[group.rank]
        queue = MessageQueue(1, 1 if is_local else 0, [reader_rank] if is_local else [], max_chunk_bytes, max_chunks)
        handles = [Handle.from_bytes(one) for one in gather_bytes(group, queue.export_handle().to_bytes())]
        if blocking:
            queue.wait_until_ready()
        return queue, handles

    def wait_until_ready(self, timeout: float | None = None) -> None:
        """Waits until the writer and all readers are connected; by default for VERBENA_BOOTSTRAP_TIMEOUT_MS."""
        result = self._library.queue_wait_until_ready(self._queue, -1 if timeout is None else math.ceil(timeout * 1000))
        raise_interrupt()
        if result == Result.TIMEOUT:
            raise TimeoutError(self._last_error())
        self._check(result)

    def shutdown(self) -> None:
        """Ends the queue on this side; any thread may call it. Calls in progress in other threads raise before this one
        returns, and so do all later calls. Readers reach the end after the messages that were written before. A reader
        that still has views of messages leaves when the last of them is released."""
        self._give_back_views()
        self._check(self._library.queue_shutdown(self._queue))

    close = shutdown

    def __enter__(self) -> "MessageQueue":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.shutdown()

    def __del__(self) -> None:
        # What could not be made has nothing to be freed. Nobody has a view any more: it would have this object.
        if getattr(self, "_queue", None) is not None:
            self._give_back_views()
            self._library.queue_destroy(self._queue)

    @property
    def is_local(self) -> bool:
        """Whether this reader shares memory with the writer; on the writer, whether all readers do."""
        return bool(self._library.queue_is_local(self._queue))

    def pin(self) -> None:
        """Pins the ring for direct copies between messages and the current GPU."""
        self._check(self._library.queue_pin(self._queue))

    def cancel(self) -> None:
        """Ends the wait in progress, or the next one, with an exception. Any thread may call it."""
        self._library.queue_cancel(self._queue)

    # -- The writer --

    def enqueue(self, obj: Any, timeout: float | None = None) -> None:
        """Writes an object that can be pickled. Its buffers (NumPy arrays, PickleBuffer) are copied once, into the queue. A
        bytes-like object arrives as bytes, or as a view."""
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
        """Yields the next chunk, which the block fills in place. At the end of the block its first `length` bytes, by
        default all, become a message for acquire_read(), unless the block raises."""
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
        """Continues without a reader that is dead."""
        self._check(self._library.queue_drop_reader(self._queue, self.export_handle().reader_ranks.index(rank)))

    # -- A reader --

    def dequeue(self, timeout: float | None = None, indefinite: bool = False, *, cancel: Any = None) -> Any:
        """Returns the next message's object. `cancel`: an event that ends the wait with RuntimeError once it is set.
        `indefinite` has no effect: a wait without a timeout lasts until a message comes, and uses no CPU time."""
        message = self._receive(timeout, cancel)
        if message.length <= _SHORT_BYTES:
            copy = ctypes.string_at(message.data, message.length)
            self._release(message.ticket)
            return _take_apart(memoryview(copy))
        try:
            return _take_apart(memoryview((ctypes.c_char * message.length).from_address(message.data or 0)).cast("B"))
        finally:
            self._release(message.ticket)

    def dequeue_view(self, timeout: float | None = None, *, cancel: Any = None) -> MessageView:
        """Returns a view of the next message, which must be bytes-like, without a copy if it is in one chunk."""
        message = self._receive(timeout, cancel)
        head = ctypes.string_at(message.data, _HEAD.size) if message.length >= _HEAD.size else b""
        if not head or _HEAD.unpack(head)[0] != _RAW:
            self._release(message.ticket)
            raise TypeError("the message is an object, not bytes: receive it with dequeue(); this message is lost")
        return MessageView(self, message, _HEAD.size)

    @contextlib.contextmanager
    def acquire_read(self, timeout: float | None = None, indefinite: bool = False, *,
                     cancel: Any = None) -> Iterator[memoryview]:
        """Yields the next chunk that acquire_write() has filled. The chunk may be read in place until the block ends."""
        with MessageView(self, self._receive(timeout, cancel), 0) as view:
            yield view.buffer

    def broadcast_object(self, obj: Any = None) -> Any:
        """Writes the object on the writer, and returns it on all."""
        if not self.is_writer:
            return self.dequeue()
        self.enqueue(obj)
        return obj

    def _receive(self, timeout: float | None, cancel: Any) -> QueueMessage:
        """Receives a message, which is valid until the next call."""
        if self._views:
            self._give_back_views()
        self._wait(self._library.queue_dequeue, (), (self._message_place,), timeout, cancel)
        return self._message

    def _release(self, ticket: int) -> None:
        self._check(self._library.queue_release(self._queue, ticket))

    def _note_view(self, ticket: int, memory: "weakref.ref[Any]") -> None:
        self._views[ticket] = memory

    def _give_back_views(self) -> None:
        """Releases the messages of views whose memory is no longer referenced."""
        for ticket in [ticket for ticket, memory in self._views.copy().items() if memory() is None]:
            if self._views.pop(ticket, None) is not None:  # another thread may have been here before
                self._release(ticket)

    # -- Waiting --

    def _wait(self, call: Callable[..., int], before: tuple[Any, ...], after: tuple[Any, ...], timeout: float | None,
              cancel: Any) -> None:
        """Calls with the queue, `before`, a time-out in milliseconds, and `after`. A call that a signal ends early is made
        again, after the interpreter has handled it."""
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
            raise_interrupt()
            if end is not None and time.monotonic() >= end:
                raise TimeoutError(self._last_error() if self.is_writer else f"no message arrived within {timeout} s")

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


def _name_readers(count: int, count_local: int | None, local: Sequence[int] | None,
                  ranks: Sequence[int] | None) -> tuple[list[int], tuple[int, ...]]:
    """(the ranks that are said to be local, the ranks of all readers)."""
    if count_local is not None and not 0 <= count_local <= count:
        raise ValueError(f"{count_local} local readers of {count}")
    if local is None:
        local = range(count_local or 0)
    elif count_local is not None and len(local) != count_local:
        raise ValueError(f"{count_local} local readers, but local_reader_ranks names {list(local)}")
    if ranks is None:
        others = range(count) if count_local is None and not local else [ANY_READER] * (count - len(local))
        ranks = [*local, *others]
    elif count_local is not None:
        local = list(ranks)[:count_local]
    named = [rank for rank in ranks if rank != ANY_READER]
    if len(ranks) != count or len(set(named)) != len(named):
        raise ValueError(f"{count} readers, but reader_ranks names {tuple(ranks)}")
    return list(local), tuple(ranks)


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


__all__ = ["ANY_READER", "SPIN_FOREVER", "SPIN_US", "Exchange", "Handle", "MessageQueue", "MessageView"]
