"""Sends messages from one writer to many readers, through shared memory on the writer's host and over TCP to other hosts."""
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

SPIN_FOREVER = -1
# Same value as VERBENA_QUEUE_SPIN_ADAPTIVE.
SPIN_ADAPTIVE = -2

_ALIGNMENT = 64
_RAW, _PICKLE = 0, 1
_HEAD = struct.Struct("<BxxxIQ48x")  # kind, number of buffers, length of the pickle in bytes; the lengths of the buffers follow
_RAW_HEAD = _HEAD.pack(_RAW, 0, 0)
# Messages of up to this length are copied before they are parsed, because copying is cheaper than creating views.
_SHORT_BYTES = 16384
_TIMEOUT = int(Result.TIMEOUT)
_ADDRESS_BYTES = 80
# Interval at which a wait polls the event that can cancel the wait.
_CANCEL_LOOK_S = 0.1


# Stands for any reader that has no rank.
ANY_READER = -1
_NATIVE_ANY = 0xFFFF_FFFF
_NATIVE_HANDLE_BYTES = 128


@dataclasses.dataclass(frozen=True)
class Handle:
    """The handle by which readers find a queue. Handles are picklable. Use to_bytes() if the receiver must not unpickle untrusted data.

    `local_reader_ranks` lists the ranks that were declared to be on the writer's host. `remote_subscribe_addr` is the writer's address, or
    None if all readers were declared to be on the writer's host. Both names are from vLLM's handle."""
    native: bytes
    reader_ranks: tuple[int, ...]  # ANY_READER for a reader that has no rank
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
    """A view of a message in the queue's own memory, without a copy. `buffer` is valid until release() is called or the `with` block ends.
    Until then the writer does not overwrite the message.

    Before release(), delete every object made from the buffer, such as a slice or a NumPy array; otherwise release() raises BufferError. A
    `with` block cannot release the message if the block ends with an exception whose traceback still refers to the buffer. In this case, or
    if a view is dropped without release(), the queue's first call after the last reference is gone releases the message."""

    def __init__(self, queue: "MessageQueue", message: QueueMessage, skip_bytes: int) -> None:
        self._queue = queue
        self._ticket = message.ticket
        self._is_held = True
        length = message.length - skip_bytes
        memory = (ctypes.c_char * length).from_address((message.data or 0) + skip_bytes)
        memory.queue = queue  # objects made from the buffer keep the queue's memory alive
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
            raise BufferError("objects made from this message's buffer still exist. Delete these objects before release()")
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
    """One end of a message queue. The constructor creates the writer, and create_from_handle() creates a reader. Then every
    end calls wait_until_ready().

    Timeouts are in seconds; with None, a call waits without limit. A call that times out raises TimeoutError. If a peer is dead or has
    shut the queue down, calls raise VerbenaError, which names the peer. Only one thread at a time may use a queue, except that any thread
    may call shutdown() and cancel() at any time."""

    def __init__(self, n_reader: int, n_local_reader: int | None = None, local_reader_ranks: Sequence[int] | None = None,
                 max_chunk_bytes: int = 24 << 20, max_chunks: int = 10, connect_ip: str | None = None,
                 enable_shm_tensor_arena: bool = False, *, reader_ranks: Sequence[int] | None = None,
                 spin_us: int = SPIN_ADAPTIVE) -> None:
        """Creates the writer.

        Args:
            n_reader: number of readers.
            reader_ranks: the ranks of all readers. If None, vLLM's rules apply: `local_reader_ranks` are the ranks of the
                readers on this host (default: 0 and up), and readers on other hosts may have any rank.
            n_local_reader: number of readers that the caller declares to be on this host. The queue itself detects which readers are on
                this host. But if all readers are declared to be on this host, the queue accepts connections from this host only.
            connect_ip: an address of this host that readers on other hosts can reach.
            enable_shm_tensor_arena: has no effect, because buffers are sent through the queue's own memory.
            spin_us: how long a wait spins before it sleeps, in microseconds. With SPIN_FOREVER, a wait never sleeps. With SPIN_ADAPTIVE, a
                reader whose messages arrive at regular intervals sleeps until shortly before the next message is expected, and spins until
                shortly after; all other waits spin for 20 us.
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
        self._views: dict[int, weakref.ref[Any]] = {}  # views that are not released yet, by ticket
        # These objects are created only once, because creating them in Python takes longer than sending a short message.
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

    # -- Creation --

    def export_handle(self) -> Handle:
        return self._handle

    @staticmethod
    def create_from_handle(handle: Handle, rank: int, spin_us: int = SPIN_ADAPTIVE) -> "MessageQueue":
        """Creates the reader with rank `rank`. To become a reader that has no rank, pass ANY_READER, or a rank that is not in `handle`.
        Returns before the reader is connected: call wait_until_ready()."""
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
                                  spin_us: int = SPIN_ADAPTIVE) -> "MessageQueue":
        """Creates a queue between the members of a process group of torch.distributed, or of any Exchange. Collective.

        Member `writer_rank` writes and the other members read. If the writer is outside the group (`external_writer_handle`), all members
        read, and member `writer_rank` distributes the writer's handle to the members. With `blocking`, the queue is ready when the call
        returns."""
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
        """Creates one queue for each member. The member is the writer of its queue, and rank `reader_rank` is the reader. Returns this
        member's queue and the handles of all queues. Collective. With `blocking`, the reader has attached to this member's queue when the
        call returns."""
        group = adapt_exchange(pg)
        is_local = in_the_same_node_as(group, reader_rank)[group.rank]
        queue = MessageQueue(1, 1 if is_local else 0, [reader_rank] if is_local else [], max_chunk_bytes, max_chunks)
        handles = [Handle.from_bytes(one) for one in gather_bytes(group, queue.export_handle().to_bytes())]
        if blocking:
            queue.wait_until_ready()
        return queue, handles

    def wait_until_ready(self, timeout: float | None = None) -> None:
        """Waits until the writer and all readers are connected. The timeout is VERBENA_BOOTSTRAP_TIMEOUT_MS by default."""
        result = self._library.queue_wait_until_ready(self._queue, -1 if timeout is None else math.ceil(timeout * 1000))
        raise_interrupt()
        if result == Result.TIMEOUT:
            raise TimeoutError(self._last_error())
        self._check(result)

    def shutdown(self) -> None:
        """Shuts this end of the queue down. Any thread may call this method. Calls in progress in other threads raise VerbenaError before
        shutdown() returns, and so do all later calls. After the writer's shutdown(), readers can still read the messages that were written
        earlier. A reader that has views of messages leaves the queue when it releases the last view."""
        self._give_back_views()
        self._check(self._library.queue_shutdown(self._queue))

    close = shutdown

    def __enter__(self) -> "MessageQueue":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.shutdown()

    def __del__(self) -> None:
        # If the constructor has failed, there is nothing to free. There are no views anymore, because each view has a reference to this
        # object.
        if getattr(self, "_queue", None) is not None:
            self._give_back_views()
            self._library.queue_destroy(self._queue)

    @property
    def is_local(self) -> bool:
        """On a reader, True if the reader shares memory with the writer. On the writer, True if all readers share memory with the
        writer."""
        return bool(self._library.queue_is_local(self._queue))

    def pin(self) -> None:
        """Pins the queue's memory, so that the current GPU can copy to and from messages directly."""
        self._check(self._library.queue_pin(self._queue))

    def cancel(self) -> None:
        """Makes the wait in progress raise an exception. If no wait is in progress, the next wait raises the exception. Any thread may call
        this method."""
        self._library.queue_cancel(self._queue)

    # -- The writer --

    def enqueue(self, obj: Any, timeout: float | None = None) -> None:
        """Writes a picklable object. The object's buffers (NumPy arrays, PickleBuffer) are copied once, into the queue. A bytes-like
        object arrives as bytes from dequeue(), or as a view from dequeue_view()."""
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
        self._body.bytes = None  # do not keep the bytes longer than needed

    @contextlib.contextmanager
    def acquire_write(self, timeout: float | None = None, length: int | None = None) -> Iterator[memoryview]:
        """Yields the next chunk of the queue's memory for the `with` block to fill in place. At the end of the block the first `length`
        bytes, by default the whole chunk, become a message for acquire_read(). If the block raises an exception, nothing is sent."""
        address = ctypes.c_void_p()
        self._wait(self._library.queue_reserve, (), (ctypes.byref(address),), timeout, None)
        count = self._chunk_bytes if length is None else length
        if count > self._chunk_bytes:
            raise ValueError(f"{count} bytes do not fit into a chunk of {self._chunk_bytes} bytes")
        view = memoryview((ctypes.c_char * count).from_address(address.value or 0)).cast("B")
        try:
            yield view
        finally:
            view.release()
        self._check(self._library.queue_commit(self._queue, count))

    def drop_reader(self, rank: int) -> None:
        """Removes a dead reader from the queue, so that the writer no longer waits for it."""
        self._check(self._library.queue_drop_reader(self._queue, self.export_handle().reader_ranks.index(rank)))

    # -- A reader --

    def dequeue(self, timeout: float | None = None, indefinite: bool = False, *, cancel: Any = None) -> Any:
        """Returns the object of the next message. If the event `cancel` is set during the wait, raises RuntimeError. `indefinite` has no
        effect, because a wait without a timeout always lasts until a message arrives. During such a wait the thread sleeps."""
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
        """Returns a view of the next message, which must be bytes-like. A message that fits into one chunk is not copied."""
        message = self._receive(timeout, cancel)
        head = ctypes.string_at(message.data, _HEAD.size) if message.length >= _HEAD.size else b""
        if not head or _HEAD.unpack(head)[0] != _RAW:
            self._release(message.ticket)
            raise TypeError("the message is a pickled object, not bytes, and is lost. Receive objects with dequeue()")
        return MessageView(self, message, _HEAD.size)

    @contextlib.contextmanager
    def acquire_read(self, timeout: float | None = None, indefinite: bool = False, *,
                     cancel: Any = None) -> Iterator[memoryview]:
        """Yields the next chunk that acquire_write() filled. The chunk may be read in place until the `with` block ends."""
        with MessageView(self, self._receive(timeout, cancel), 0) as view:
            yield view.buffer

    def broadcast_object(self, obj: Any = None) -> Any:
        """Sends the writer's object to all readers, and returns it on the writer and on every reader."""
        if not self.is_writer:
            return self.dequeue()
        self.enqueue(obj)
        return obj

    def _receive(self, timeout: float | None, cancel: Any) -> QueueMessage:
        """Receives a message. The returned structure is valid until the next call."""
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
            if self._views.pop(ticket, None) is not None:  # another thread may have released the message already
                self._release(ticket)

    # -- Waiting --

    def _wait(self, call: Callable[..., int], before: tuple[Any, ...], after: tuple[Any, ...], timeout: float | None,
              cancel: Any) -> None:
        """Calls a C function with the arguments queue, `before`, a timeout in milliseconds, and `after`. If a signal interrupts the call,
        Python runs the signal's handler, and this method repeats the call."""
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
    """Keeps a contiguous buffer's memory alive as long as this object lives. ctypes has no other way to get the address of a read-only
    buffer."""

    def __init__(self, owner: Any) -> None:
        self.buffer = _Buffer()
        ctypes.pythonapi.PyObject_GetBuffer(ctypes.py_object(owner), ctypes.byref(self.buffer), 0)

    def __del__(self) -> None:
        ctypes.pythonapi.PyBuffer_Release(ctypes.byref(self.buffer))


def _name_readers(count: int, count_local: int | None, local: Sequence[int] | None,
                  ranks: Sequence[int] | None) -> tuple[list[int], tuple[int, ...]]:
    """Checks the arguments, and returns (ranks declared local, ranks of all readers)."""
    if count_local is not None and not 0 <= count_local <= count:
        raise ValueError(f"n_local_reader is {count_local}, more than n_reader, {count}")
    if local is None:
        local = range(count_local or 0)
    elif count_local is not None and len(local) != count_local:
        raise ValueError(f"n_local_reader is {count_local}, but local_reader_ranks names {list(local)}")
    if ranks is None:
        others = range(count) if count_local is None and not local else [ANY_READER] * (count - len(local))
        ranks = [*local, *others]
    elif count_local is not None:
        local = list(ranks)[:count_local]
    named = [rank for rank in ranks if rank != ANY_READER]
    if len(ranks) != count or len(set(named)) != len(named):
        raise ValueError(f"n_reader is {count}, but reader_ranks names {tuple(ranks)}")
    return list(local), tuple(ranks)


def _take_apart(whole: memoryview) -> Any:
    """Unpickles a message's object. The object owns its memory and does not refer to `whole`."""
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
        buffers.append(bytearray(whole[place:place + length]))  # a copy, because the object outlives the chunk
        place += length
    return pickle.loads(pickled, buffers=buffers)


def _find_memory(buffer: Any, keep: list[Any]) -> tuple[int, int]:
    """Returns a buffer's address and length, which are valid as long as `keep` lives."""
    if isinstance(buffer, bytes):
        pointer = ctypes.c_char_p(buffer)
        keep.append(pointer)
        return ctypes.cast(pointer, ctypes.c_void_p).value or 0, len(buffer)
    if isinstance(buffer, memoryview) and not buffer.c_contiguous:
        return _find_memory(buffer.tobytes(), keep)
    exported = _Exported(buffer)
    keep.append(exported)
    return exported.buffer.data or 0, exported.buffer.length


__all__ = ["ANY_READER", "SPIN_ADAPTIVE", "SPIN_FOREVER", "Exchange", "Handle", "MessageQueue", "MessageView"]
