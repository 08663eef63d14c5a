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
    """A team of ranks, which kernels take as an argument. Freed by `free`, at the end of `with`, or with its context; not
    collective."""

    _name = "team"

    def __enter__(self) -> "SymmetricTeam":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        self.free()

    def free(self) -> None:
        """Frees the team. No effect on the context's own teams."""
        if not self._is_owned:
            return
        handle, self._handle = self._handle, None
        if handle is not None and not self._context.is_closed:
            self._library.check(self._library.team_free(handle))

    @property
    def rank(self) -> int:
        return int(self._library.team_rank(self.handle))

    @property
    def size(self) -> int:
        return int(self._library.team_size(self.handle))

    def world_rank(self, rank: int) -> int:
        """Returns the rank in the world of a member."""
        if not 0 <= rank < self.size:
            raise ValueError(f"rank {rank} of a team of {self.size}")
        return int(self._library.team_world_rank(self.handle, rank))

    @property
    def device_context(self) -> int:
        """The address of the SymmContext in GPU memory: a kernel's `ctx_ptr`."""
        return int(self._library.team_device_context(self.handle))

    def make_tilescale_table(self, window: SymmetricWindow) -> bytes:
        """Returns 1,024 words for a program's `meta_data` (include/verbena/device/tilescale_ranks.cuh). For teams of at
        most 1,021 ranks."""
        bases = [window.peer_address(self.world_rank(peer)) or 0 for peer in range(self.size)]
        if len(bases) > _TABLE_WORDS - 3:
            raise ValueError(f"TileScale's table cannot hold {len(bases)} ranks")
        words = [self.rank, self.size, *bases]
        words += [0] * (_TABLE_WORDS - 1 - len(words)) + [self.device_context]
        return struct.pack(f"{_TABLE_WORDS}Q", *words)

    @property
    def backend(self) -> Backend:
        """The backend for which kernels that take this team may be compiled, besides DEFAULT."""
        context = self._library.team_host_context(self.handle)
        return ContextType(ctypes.c_int32.from_address(context).value).backend

    # In the order of a stream of the context's GPU: an integer, a torch.cuda.Stream, or None for PyTorch's current one (the
    # default stream without PyTorch). Not collective; legal while the stream is captured. The first of these calls on a GPU
    # loads their kernel, which waits for kernels that run. Why a wait timed out, the context's check_error() tells.

    def barrier(self, barrier: int = 0, stream: Any = None) -> None:
        """Waits for the streams of all members; what they have put before is complete afterwards."""
        self._library.check(self._library.barrier_on_stream(self.handle, barrier, find_stream(stream)))

    def signal(self, signal: int, peer: int, value: int = 1, operation: SignalOperation = SignalOperation.ADD,
               stream: Any = None) -> None:
        """Changes a signal of a peer, after all that the stream has put there."""
        self._library.check(self._library.signal_on_stream(self.handle, signal, peer, value & 0xFFFFFFFFFFFFFFFF,
                                                           operation, find_stream(stream)))

    def wait(self, signal: int, value: int, compare: SignalCompare = SignalCompare.GE, stream: Any = None) -> None:
        """Waits until a signal of this rank compares with `value`."""
        self._library.check(self._library.wait_on_stream(self.handle, signal, compare, value, find_stream(stream)))

    def put(self, destination: Any, source: Any, peer: int, stream: Any = None) -> None:
        """Copies to a peer.

        Args:
            destination: this rank's address of the peer's memory: a tensor in a window, or an address.
            source: a contiguous tensor, or (address, bytes).
        """
        address, length_bytes = _measure(source)
        self._library.check(self._library.put_on_stream(self.handle, _find_address(destination), address, length_bytes, peer,
                                                        find_stream(stream)))

    def get(self, destination: Any, source: Any, peer: int, stream: Any = None) -> None:
        """Copies from a peer.

        Args:
            destination: a contiguous tensor, or (address, bytes).
            source: this rank's address of the peer's memory: a tensor in a window, or an address.
        """
        address, length_bytes = _measure(destination)
        self._library.check(self._library.get_on_stream(self.handle, address, _find_address(source), length_bytes, peer,
                                                        find_stream(stream)))

    def quiet(self, stream: Any = None) -> None:
        """Waits until all earlier puts, gets and signals of this rank are complete at all peers."""
        self._library.check(self._library.quiet_on_stream(self.handle, find_stream(stream)))


def _find_address(place: Any) -> int:
    return int(place.data_ptr() if hasattr(place, "data_ptr") else place)


def _measure(buffer: Any) -> tuple[int, int]:
    """Address and length in bytes."""
    if isinstance(buffer, tuple):
        return int(buffer[0]), int(buffer[1])
    if not buffer.is_contiguous():
        raise ValueError("a tensor that is copied on a stream must be contiguous")
    return int(buffer.data_ptr()), int(buffer.numel() * buffer.element_size())
