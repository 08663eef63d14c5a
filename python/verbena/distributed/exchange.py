"""Exchanges bytes between ranks through host memory, by all-gathers and by messages between pairs of ranks. All-gathers use libverbena.so
or a communicator of the application."""
import contextlib
import ctypes
import pickle
from collections.abc import Iterator
from typing import Any, Protocol, runtime_checkable

from verbena.communicators import adapt
from verbena.native import PairsAddress, PairsMessage, RanksOptions, load_library


_HOST_NAME_BYTES = 129
LOOPBACK = "127.0.0.1"


@runtime_checkable
class Exchange(Protocol):
    @property
    def rank(self) -> int: ...

    @property
    def size(self) -> int: ...

    def all_gather(self, mine: bytes) -> list[bytes]:
        """Returns the bytes of all ranks, in rank order. All ranks pass the same length. Collective."""


def adapt_exchange(group: Any) -> Exchange:
    """Returns an Exchange over a process group of torch.distributed or a TorchComms communicator. If `group` is an Exchange already,
    returns `group`."""
    if hasattr(group, "_get_backend") or not isinstance(group, Exchange):
        return adapt(group)
    return group


def gather_bytes(exchange: Exchange, mine: bytes) -> list[bytes]:
    """Returns the bytes of all ranks, in rank order. Lengths may differ. Collective."""
    lengths = [int.from_bytes(length, "little") for length in exchange.all_gather(len(mine).to_bytes(8, "little"))]
    padded = exchange.all_gather(mine.ljust(max(lengths), b"\0")) if max(lengths) else [b""] * exchange.size
    return [one[:length] for one, length in zip(padded, lengths, strict=True)]


def gather_objects(exchange: Exchange, mine: Any) -> list[Any]:
    """Returns the picklable objects of all ranks, in rank order. Unpickling can run code, so this rank must trust all other ranks.
    Collective."""
    return [pickle.loads(one) for one in gather_bytes(exchange, pickle.dumps(mine))]


def in_the_same_node_as(group: Any, source_rank: int = 0) -> list[bool]:
    """Returns a list of booleans, one for each member: True if the member is on the host of rank `source_rank` and can share memory with
    this rank. Two ranks are on the same host if they have the same kernel, network namespace and VERBENA_HOSTID; message queues use the
    same rule. Collective over a process group of torch.distributed or any Exchange."""
    exchange = adapt_exchange(group)
    hosts = exchange.all_gather(_identify_host())
    return [host == hosts[source_rank] for host in hosts]


def get_node_count(group: Any) -> int:
    """Returns the number of hosts, which are detected in the same way as in in_the_same_node_as(). Collective."""
    return len(set(adapt_exchange(group).all_gather(_identify_host())))


def _identify_host() -> bytes:
    """Returns the library's identifier of this host, padded to the same length on every rank."""
    text = ctypes.create_string_buffer(_HOST_NAME_BYTES)
    library = load_library()
    library.check(library.identify_host(text, _HOST_NAME_BYTES))
    return text.raw


class Ranks:
    """The ranks of a job, connected by libverbena.so without PyTorch. Every call returns within the timeout. If a rank is
    missing or dead, the call raises VerbenaError, which names that rank."""

    def __init__(self, rank: int | None = None, size: int | None = None, host: str | None = None, port: int = 0,
                 timeout: float | None = None) -> None:
        """Connects the ranks. Collective.

        Rank 0 listens on `host` and `port`. Pass both arguments, or neither. Arguments that are None come from the environment variables of
        the launcher (torchrun, Open MPI, PMI, Slurm). If other hosts can reach rank 0's address, the ranks need a job key
        (VERBENA_JOB_KEY_FILE), or VERBENA_INSECURE=1."""
        timeout_ms = 0 if timeout is None else max(1, round(timeout * 1000))
        options = RanksOptions(host.encode() if host else None, port, size or 0, rank or 0, timeout_ms)
        self._library = load_library()
        self._ranks = self._library.make("ranks_join", ctypes.byref(options))
        self._rank, self._size = int(self._library.ranks_rank(self._ranks)), int(self._library.ranks_count(self._ranks))

    @property
    def rank(self) -> int:
        return self._rank

    @property
    def size(self) -> int:
        return self._size

    def all_gather(self, mine: bytes) -> list[bytes]:
        gathered = ctypes.create_string_buffer(len(mine) * self._size)
        self._library.check(self._library.ranks_all_gather(self._ranks, mine, gathered, len(mine)))
        raw = gathered.raw
        return [raw[place * len(mine):(place + 1) * len(mine)] for place in range(self._size)]

    def barrier(self) -> None:
        self._library.check(self._library.ranks_barrier(self._ranks))

    def close(self) -> None:
        if self._ranks is not None:
            self._library.ranks_leave(self._ranks)
            self._ranks = None


class Pairs:
    """Sends and receives messages between any two ranks of an Exchange. Each message has a tag.

    The connections are authenticated by the job key or, if there is no job key, by a secret that the ranks exchanged. A call returns within
    `timeout` seconds. If a rank is missing or has left, the call raises VerbenaError, which names that rank. Any thread may call the
    methods."""

    def __init__(self, exchange: Exchange, timeout: float) -> None:
        """Opens this rank's listening socket and exchanges addresses. Collective over the exchange."""
        self._library = load_library()
        self._timeout_ms = max(1, round(timeout * 1000))
        self.is_one_host = get_node_count(exchange) == 1
        address = LOOPBACK.encode() if self.is_one_host else None
        self._pairs = self._library.make("pairs_open", exchange.rank, exchange.size, address)
        own = PairsAddress()
        self._library.check(self._library.pairs_get_address(self._pairs, ctypes.byref(own)))
        told = b"".join(exchange.all_gather(bytes(own.bytes)))
        self._library.check(self._library.pairs_connect(self._pairs, (PairsAddress * exchange.size).from_buffer_copy(told)))

    def send(self, rank: int, tag: int, data: bytes | int, length: int) -> None:
        """Sends a message. `data` is bytes, or the address of `length` bytes. The caller may reuse the memory when the call
        returns."""
        self._library.check(self._library.pairs_send(self._pairs, rank, tag, data, length, self._timeout_ms))

    def receive(self, rank: int, tag: int) -> bytes:
        with self._receive(rank, tag) as message:
            return ctypes.string_at(message.data, message.length)

    def receive_into(self, rank: int, tag: int, address: int, length: int) -> None:
        """Receives the next message from `rank` with `tag` into `length` bytes of the caller's memory. Raises an error if the message has a
        different length."""
        with self._receive(rank, tag) as message:
            if message.length != length:
                raise RuntimeError(f"rank {rank} sent {message.length} bytes, but {length} were expected. The shapes or types of the "
                                   f"ranks' tensors differ")
            ctypes.memmove(address, message.data, length)

    @contextlib.contextmanager
    def _receive(self, rank: int, tag: int) -> Iterator[PairsMessage]:
        message = PairsMessage()
        self._library.check(self._library.pairs_receive(self._pairs, rank, tag, self._timeout_ms, ctypes.byref(message)))
        try:
            yield message
        finally:
            self._library.pairs_release(ctypes.byref(message))

    def close(self) -> None:
        if self._pairs is not None:
            self._library.pairs_close(self._pairs)
            self._pairs = None
