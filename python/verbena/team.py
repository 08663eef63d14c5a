"""Teams: groups of ranks, each with its own signals and barriers."""
import ctypes
import struct
from types import TracebackType
from typing import Any

from verbena.constants import Backend, ContextType, SignalCompare, SignalOperation
from verbena.part import ContextPart
from verbena.streams import find_stream
from verbena.window import SymmetricWindow

_TABLE_WORDS = 1024


class SymmetricTeam(ContextPart):
    """A team of ranks with its own signals and barriers. Kernels take its `device_context` as an argument.

    The team is freed by free(), at the end of a `with` block, or when the context is closed. Freeing a team is not collective.

    barrier(), signal(), wait(), put(), put_pieces(), get() and quiet() enqueue work on a stream of the context's GPU and return at once.
    `stream` is an integer, a torch.cuda.Stream, or None for PyTorch's current stream (the default stream without PyTorch). These calls are
    not collective, and may be captured in a CUDA graph. The first such call on a GPU loads a kernel, and loading waits for running kernels.
    If a wait times out, the context's check_error() raises an error with the reason."""

    _name = "team"

    def __enter__(self) -> "SymmetricTeam":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        self.free()

    def free(self) -> None:
        """Frees the team. Has no effect on the context's `world` and `lsa` teams. Not collective."""
        if not self._is_owned:
            return
        handle, self._handle = self._handle, None
        if handle is not None and not self._context.is_closed:
            self._library.check(self._library.team_free(handle))

    @property
    def rank(self) -> int:
        """This rank's number in the team."""
        return int(self._library.team_rank(self.handle))

    @property
    def size(self) -> int:
        """The number of members."""
        return int(self._library.team_size(self.handle))

    def world_rank(self, rank: int) -> int:
        """Returns the world rank of the member that has number `rank` in the team."""
        if not 0 <= rank < self.size:
            raise ValueError(f"rank {rank} is not in this team of {self.size} ranks")
        return int(self._library.team_world_rank(self.handle, rank))

    @property
    def device_context(self) -> int:
        """The address of the SymmContext in GPU memory, which kernels take as `ctx_ptr`."""
        return int(self._library.team_device_context(self.handle))

    def make_tilescale_table(self, window: SymmetricWindow) -> bytes:
        """Returns the table of 1,024 64-bit words that a TileScale program takes as its `meta_data`
        (include/verbena/device/tilescale_ranks.cuh). The team may have at most 1,021 ranks."""
        bases = [window.peer_address(self.world_rank(peer)) or 0 for peer in range(self.size)]
        if len(bases) > _TABLE_WORDS - 3:
            raise ValueError(f"TileScale's table holds at most {_TABLE_WORDS - 3} ranks, but this team has {len(bases)}")
        words = [self.rank, self.size, *bases]
        words += [0] * (_TABLE_WORDS - 1 - len(words)) + [self.device_context]
        return struct.pack(f"{_TABLE_WORDS}Q", *words)

    @property
    def backend(self) -> Backend:
        """The backend of the team's context. Kernels that take this team must be compiled for this backend or for DEFAULT."""
        context = self._library.team_host_context(self.handle)
        return ContextType(ctypes.c_int32.from_address(context).value).backend


    def barrier(self, barrier: int = 0, stream: Any = None) -> None:
        """Makes the stream wait until the streams of all members have reached the same barrier. After the barrier, all puts that the
        members enqueued earlier are complete. `barrier` is the barrier's index."""
        self._library.check(self._library.barrier_on_stream(self.handle, barrier, find_stream(stream)))

    def signal(self, signal: int, peer: int, value: int = 1, operation: SignalOperation = SignalOperation.ADD,
               stream: Any = None) -> None:
        """Sets a peer's signal number `signal` to `value`, or adds `value` to the signal. The change takes effect after all earlier puts
        to that peer on the same stream."""
        self._library.check(self._library.signal_on_stream(self.handle, signal, peer, value & 0xFFFFFFFFFFFFFFFF,
                                                           operation, find_stream(stream)))

    def wait(self, signal: int, value: int, compare: SignalCompare = SignalCompare.GE, stream: Any = None) -> None:
        """Makes the stream wait until signal number `signal` of this rank satisfies the comparison with `value`."""
        self._library.check(self._library.wait_on_stream(self.handle, signal, compare, value, find_stream(stream)))

    def put(self, destination: Any, source: Any, peer: int, stream: Any = None) -> None:
        """Copies memory of this rank to a peer.

        Args:
            destination: the part of the peer's window to write, given as the matching tensor or address in this rank's own window.
            source: a contiguous tensor, or (address, length in bytes). The data must not change before a later quiet() or barrier().
            peer: the peer's rank in the team.
        """
        address, length_bytes = _measure(source)
        self._library.check(self._library.put_on_stream(self.handle, _find_address(destination), address, length_bytes, peer,
                                                        find_stream(stream)))

    def put_pieces(self, pieces: Any, peer: int, stream: Any = None) -> None:
        """Copies several pieces of memory to a peer. Each kernel copies up to 16 pieces. A later signal() on the stream takes effect after
        all pieces have arrived.

        Args:
            pieces: pairs (destination, source), like the arguments of put(). The destinations must not overlap.
            peer: the peer's rank in the team.
        """
        words = [word for destination, source in pieces for word in (_find_address(destination), *_measure(source))]
        table = (ctypes.c_uint64 * len(words))(*words)
        self._library.check(self._library.put_pieces_on_stream(self.handle, table, len(words) // 3, peer, find_stream(stream)))

    def get(self, destination: Any, source: Any, peer: int, stream: Any = None) -> None:
        """Copies memory of a peer to this rank.

        Args:
            destination: a contiguous tensor, or (address, length in bytes).
            source: the part of the peer's window to read, given as the matching tensor or address in this rank's own window.
            peer: the peer's rank in the team.
        """
        address, length_bytes = _measure(destination)
        self._library.check(self._library.get_on_stream(self.handle, address, _find_address(source), length_bytes, peer,
                                                        find_stream(stream)))

    def quiet(self, stream: Any = None) -> None:
        """Makes the stream wait until all earlier puts, gets and signals of this rank are complete at all peers."""
        self._library.check(self._library.quiet_on_stream(self.handle, find_stream(stream)))


def _find_address(place: Any) -> int:
    return int(place.data_ptr() if hasattr(place, "data_ptr") else place)


def _measure(buffer: Any) -> tuple[int, int]:
    """Returns the buffer's address and its length in bytes."""
    if isinstance(buffer, tuple):
        return int(buffer[0]), int(buffer[1])
    if not buffer.is_contiguous():
        raise ValueError("put and get need a contiguous tensor. Call contiguous() first")
    return int(buffer.data_ptr()), int(buffer.numel() * buffer.element_size())
