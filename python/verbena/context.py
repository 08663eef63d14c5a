"""Contexts: the ranks that share symmetric memory."""
import contextlib
import ctypes
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import Any

from verbena.native import UNIQUE_ID_BYTES, AllGatherFunction, LogFunction, Result, UniqueIdBytes, VerbenaError
from verbena.native import load_library
from verbena.pool import SymmetricPool
from verbena.team import SymmetricTeam
from verbena.window import SymmetricWindow
from verbena.workspace import SymmetricWorkspace

AllGather = Callable[[bytes], Sequence[bytes]]

_ERROR_TEXT_BYTES = 512
# The library may write a line at any time: what it was given last lives as long as the process.
_log_sink: Any = None


def make_unique_id() -> bytes:
    """Creates an id by which ranks find each other. This process listens until all ranks have connected to it."""
    unique_id = UniqueIdBytes()
    library = load_library()
    library.check(library.get_unique_id(ctypes.byref(unique_id)))
    return bytes(unique_id.bytes)


def set_log(sink: Callable[[int, str], None] | None) -> None:
    """Passes the library's log lines to `sink(level, line)`, from any thread. Levels: 0 warning, 1 info, 2 trace. None:
    warnings alone, to stderr."""
    global _log_sink
    chosen = ctypes.cast(0, LogFunction) if sink is None else LogFunction(_make_log_function(sink))
    load_library().set_log(chosen)
    _log_sink = chosen


def _make_log_function(sink: Callable[[int, str], None]) -> Callable[[int, bytes], None]:
    return lambda level, line: sink(level, line.decode())


class SymmetricContext:
    """One rank's context of symmetric memory.

    Closing is collective, as are all methods that say so, and frees windows and teams. A context that is not closed lives
    as long as the process. The calling thread's GPU (torch.cuda.set_device) is the context's."""

    def __init__(self, unique_id: bytes, rank: int, count_ranks: int) -> None:
        """Creates a context. Collective.

        Args:
            unique_id: of make_unique_id(), the same on all ranks.
            rank: 0 to count_ranks - 1.
            count_ranks: number of ranks.
        """
        if len(unique_id) != UNIQUE_ID_BYTES:
            raise ValueError(f"a unique id has {UNIQUE_ID_BYTES} bytes, not {len(unique_id)}")
        copy = UniqueIdBytes.from_buffer_copy(unique_id)
        self._adopt(load_library().make("context_create", ctypes.byref(copy), rank, count_ranks))

    def _adopt(self, handle: int | None, carrier: "Carrier | None" = None) -> "SymmetricContext":
        self._library = load_library()
        self._handle = handle
        self._carrier = carrier
        self._owner: Any = None
        return self

    @classmethod
    def from_environment(cls) -> "SymmetricContext":
        """Creates a context. Rank, number of ranks and rank 0's address come from torchrun, Open MPI, PMI or Slurm.
        Collective."""
        return cls.__new__(cls)._adopt(load_library().make("context_create_from_environment"))

    @classmethod
    def from_all_gather(cls, all_gather: AllGather, rank: int, count_ranks: int) -> "SymmetricContext":
        """Creates a context over the application's all-gather. Collective.

        Args:
            all_gather: `all_gather(mine)` returns the bytes of all ranks in their order. Every collective call uses it.
        """
        carrier = Carrier(all_gather, count_ranks)
        with told_with_cause(carrier):
            handle = load_library().make("context_create_from_all_gather", carrier.function, None, rank, count_ranks)
        return cls.__new__(cls)._adopt(handle, carrier)

    @classmethod
    def from_handle(cls, handle: int | None, owner: Any = None) -> "SymmetricContext":
        """Wraps a verbena_context* that a C function has created. `owner`, such as a communicator, is kept alive as long as
        the context."""
        context = cls.__new__(cls)._adopt(handle)
        context._owner = owner
        return context

    def __enter__(self) -> "SymmetricContext":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        # Peers that went on would wait for a rank that failed.
        if kind is not None and self._handle is not None:
            self.abort()
        self.close()

    def close(self) -> None:
        """Closes the context, and frees its windows and teams. Collective."""
        handle, self._handle = self._handle, None
        if handle is not None:
            self._check(self._library.context_destroy(handle))

    @property
    def handle(self) -> int:
        if self._handle is None:
            raise ValueError("the context is closed")
        return self._handle

    @property
    def is_closed(self) -> bool:
        return self._handle is None

    @property
    def rank(self) -> int:
        return int(self._library.context_rank(self.handle))

    @property
    def size(self) -> int:
        return int(self._library.context_size(self.handle))

    def barrier(self) -> None:
        """Waits for the host threads of all ranks. Collective."""
        self._check(self._library.context_barrier(self.handle))

    def quiet(self) -> None:
        """Waits until all RDMA operations of this rank's ended kernels are complete. Not collective."""
        self._check(self._library.context_quiet(self.handle))

    def abort(self) -> None:
        """Ends all waits of this rank's kernels in this context, now and later."""
        self._library.context_abort(self.handle)

    def check_error(self) -> None:
        """Raises VerbenaError if kernels of this rank can no longer wait for peers, with the reason."""
        text = ctypes.create_string_buffer(_ERROR_TEXT_BYTES)
        result = self._library.context_get_error(self.handle, text, len(text))
        if result != Result.SUCCESS:
            raise VerbenaError(Result(result), text.value.decode())

    def allocate(self, length_bytes: int) -> SymmetricWindow:
        """Allocates a window of zero-filled GPU memory, of the same length on all ranks. Collective."""
        return SymmetricWindow(self, self._make("window_allocate", length_bytes))

    def register_memory(self, address: int, length_bytes: int) -> SymmetricWindow:
        """Makes a window of memory of cuMemCreate with a POSIX file descriptor. The caller owns the memory and keeps it
        until the window is freed. Collective."""
        return SymmetricWindow(self, self._make("window_register", address, length_bytes))

    def create_pool(self, length_bytes: int) -> SymmetricPool:
        """Creates a pool of `length_bytes` for tensors of PyTorch's own allocator. Collective."""
        return SymmetricPool(self, self._make("pool_create", length_bytes))

    def find_window(self, address: int) -> SymmetricWindow | None:
        """Returns the window that contains the address. The returned object does not own the window: do not free the window
        by it."""
        handle = self._library.window_find(self.handle, address)
        return None if handle is None else SymmetricWindow(self, handle, is_owned=False)

    @property
    def world(self) -> SymmetricTeam:
        return SymmetricTeam(self, self._library.team_world(self.handle), is_owned=False)

    @property
    def lsa(self) -> SymmetricTeam:
        """The team of the ranks that this rank's loads and stores reach."""
        return SymmetricTeam(self, self._library.team_lsa(self.handle), is_owned=False)

    def split(self, parent: SymmetricTeam | None, color: int, key: int = 0) -> SymmetricTeam | None:
        """Splits a team: members of `parent` with the same color become a team, in the order of their keys. None for a
        negative color. Collective."""
        team = self._make("team_split", None if parent is None else parent.handle, color, key)
        return None if team is None else SymmetricTeam(self, team)

    def create_team(self, ranks: Sequence[int]) -> SymmetricTeam | None:
        """Creates a team. Members pass the same ranks of the world in the same order; other ranks pass none and get None.
        Collective."""
        team = self._make("team_create", (ctypes.c_uint32 * len(ranks))(*ranks), len(ranks))
        return None if team is None else SymmetricTeam(self, team)

    def reset(self, team: SymmetricTeam | None) -> None:
        """Resets a team after one of its waits timed out. Members pass the team, other ranks None. Collective."""
        self._check(self._library.team_reset(self.handle, None if team is None else team.handle))

    def create_workspace(self, team: SymmetricTeam | None, slots_bytes: int, blocks: int) -> SymmetricWorkspace:
        """Creates a workspace. Collective, with the same numbers on all ranks.

        Args:
            team: None on ranks that are not members.
            slots_bytes: GPU memory for all slots of low_latency.cuh; 0: none.
            blocks: of the largest grid that uses the workspace.
        """
        handle = None if team is None else team.handle
        return SymmetricWorkspace(self, self._make("workspace_create", handle, slots_bytes, blocks))

    def _make(self, name: str, *arguments: Any) -> int | None:
        with told_with_cause(self._carrier):
            return self._library.make(name, self.handle, *arguments)

    def _check(self, result: int) -> None:
        with told_with_cause(self._carrier):
            self._library.check(result)


@contextlib.contextmanager
def told_with_cause(carrier: "Carrier | None") -> Iterator[None]:
    """Sets what the application's all-gather raised, if it did, as the cause of the library's error."""
    try:
        yield
    except VerbenaError as error:
        raise error from (carrier.take_failure() if carrier else None)


class Carrier:
    """Passes an application's all-gather to the library."""

    def __init__(self, all_gather: AllGather, count_ranks: int) -> None:
        self._all_gather = all_gather
        self._count_ranks = count_ranks
        self._failure: BaseException | None = None
        self.function = AllGatherFunction(self._gather)

    def take_failure(self) -> BaseException | None:
        failure, self._failure = self._failure, None
        return failure

    def _gather(self, _: Any, mine: int, everyones: int, bytes_each: int) -> int:
        # No exception passes through C: it becomes the cause of the library's error.
        try:
            parts = self._all_gather(ctypes.string_at(mine, bytes_each))
            lengths = [len(part) for part in parts]
            if lengths != [bytes_each] * self._count_ranks:
                raise ValueError(f"all_gather() was called with {bytes_each} bytes on each of {self._count_ranks} ranks, and returned "
                                 f"lengths {lengths}")
            ctypes.memmove(everyones, b"".join(parts), bytes_each * self._count_ranks)
        except BaseException as failure:
            self._failure = failure
            return 1
        return 0
