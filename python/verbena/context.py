"""Contexts. The ranks of a context share symmetric memory."""
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
# Keeps the last function of set_log() alive, because the library may call the function at any time.
_log_sink: Any = None


def make_unique_id() -> bytes:
    """Returns a new rendezvous id. Call this function on one rank, and send the id to all other ranks. This process
    listens for the other ranks until all of them have connected."""
    unique_id = UniqueIdBytes()
    library = load_library()
    library.check(library.get_unique_id(ctypes.byref(unique_id)))
    return bytes(unique_id.bytes)


def set_log(sink: Callable[[int, str], None] | None) -> None:
    """Sets the function that receives the library's log lines. The library calls `sink(level, line)` from any thread.
    Levels are 0 (warning), 1 (info) and 2 (trace). With None, the library writes warnings to stderr and drops the rest."""
    global _log_sink
    chosen = ctypes.cast(0, LogFunction) if sink is None else LogFunction(_make_log_function(sink))
    load_library().set_log(chosen)
    _log_sink = chosen


def _make_log_function(sink: Callable[[int, str], None]) -> Callable[[int, bytes], None]:
    return lambda level, line: sink(level, line.decode())


class SymmetricContext:
    """One rank's context of symmetric memory, which owns the rank's windows, teams, workspaces and pools.

    A context uses the GPU that is current when it is created (torch.cuda.set_device). All ranks must call the methods marked "collective",
    in the same order; on each rank, only one thread at a time may call such a method. Any thread may call all other methods at any time. A
    context that is never closed lives until the process ends. Failures raise VerbenaError."""

    def __init__(self, unique_id: bytes, rank: int, count_ranks: int) -> None:
        """Creates a context. Collective.

        Args:
            unique_id: the bytes that make_unique_id() returned on one rank.
            rank: this rank's number, 0 to count_ranks - 1.
            count_ranks: number of ranks.
        """
        if len(unique_id) != UNIQUE_ID_BYTES:
            raise ValueError(f"unique_id must have {UNIQUE_ID_BYTES} bytes but has {len(unique_id)}. Pass the result of "
                             "make_unique_id()")
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
        """Creates a context of all ranks of the job. Reads the rank, the number of ranks and rank 0's address from the
        environment variables of torchrun, Open MPI, PMI or Slurm. Collective."""
        return cls.__new__(cls)._adopt(load_library().make("context_create_from_environment"))

    @classmethod
    def from_all_gather(cls, all_gather: AllGather, rank: int, count_ranks: int) -> "SymmetricContext":
        """Creates a context whose ranks communicate through the application's all-gather. Collective.

        Args:
            all_gather: `all_gather(mine)` returns a sequence with the bytes of all ranks, in rank order. All ranks pass the same number of
                bytes. Every collective call of the context calls this function.
            rank: this rank's number, 0 to count_ranks - 1.
            count_ranks: number of ranks.
        """
        carrier = Carrier(all_gather, count_ranks)
        with told_with_cause(carrier):
            handle = load_library().make("context_create_from_all_gather", carrier.function, None, rank, count_ranks)
        return cls.__new__(cls)._adopt(handle, carrier)

    @classmethod
    def from_handle(cls, handle: int | None, owner: Any = None) -> "SymmetricContext":
        """Wraps a verbena_context* that a C function has created. close() destroys the context. The returned object keeps a
        reference to `owner`, for example to a communicator that the context needs."""
        context = cls.__new__(cls)._adopt(handle)
        context._owner = owner
        return context

    def __enter__(self) -> "SymmetricContext":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        # Without abort(), peers would wait for this rank, which failed.
        if kind is not None and self._handle is not None:
            self.abort()
        self.close()

    def close(self) -> None:
        """Closes the context and frees all its windows, teams, workspaces and pools. Does nothing if the context is closed already.
        Collective."""
        handle, self._handle = self._handle, None
        if handle is not None:
            self._check(self._library.context_destroy(handle))

    @property
    def handle(self) -> int:
        """The verbena_context* as an integer, for C functions."""
        if self._handle is None:
            raise ValueError("the context is closed. Create another context")
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
        """Waits until all ranks have called barrier() on the host. Does not wait for GPUs. Collective."""
        self._check(self._library.context_barrier(self.handle))

    def quiet(self) -> None:
        """Waits until the RDMA operations of all finished kernels of this rank are complete. Not collective."""
        self._check(self._library.context_quiet(self.handle))

    def abort(self) -> None:
        """Makes all current and future waits of this rank's kernels in this context fail. This cannot be undone. Not collective. Any
        thread may call this method."""
        self._library.context_abort(self.handle)

    def check_error(self) -> None:
        """Raises VerbenaError, with the reason, if this rank's kernels can no longer wait for peers, because of abort(), a timeout or a
        network failure. Never waits. Not collective."""
        text = ctypes.create_string_buffer(_ERROR_TEXT_BYTES)
        result = self._library.context_get_error(self.handle, text, len(text))
        if result != Result.SUCCESS:
            raise VerbenaError(Result(result), text.value.decode())

    def allocate(self, length_bytes: int) -> SymmetricWindow:
        """Allocates a window of zero-filled GPU memory (host memory on a rank without a GPU). All ranks pass the same
        length. Collective."""
        return SymmetricWindow(self, self._make("window_allocate", length_bytes))

    def register_memory(self, address: int, length_bytes: int) -> SymmetricWindow:
        """Registers memory of the application as a window. The memory must come from cuMemCreate with a POSIX file descriptor as its handle
        type. The caller owns the memory and must not free the memory before the window is freed. Collective."""
        return SymmetricWindow(self, self._make("window_register", address, length_bytes))

    def create_pool(self, length_bytes: int) -> SymmetricPool:
        """Creates a pool: `length_bytes` of symmetric memory from which PyTorch's allocator takes tensors. All ranks pass the same length.
        Collective."""
        return SymmetricPool(self, self._make("pool_create", length_bytes))

    def find_window(self, address: int) -> SymmetricWindow | None:
        """Returns the window that contains `address` on this rank, or None. The returned object does not own the window, so its free() does
        nothing."""
        handle = self._library.window_find(self.handle, address)
        return None if handle is None else SymmetricWindow(self, handle, is_owned=False)

    @property
    def world(self) -> SymmetricTeam:
        """The team of all ranks of the context."""
        return SymmetricTeam(self, self._library.team_world(self.handle), is_owned=False)

    @property
    def lsa(self) -> SymmetricTeam:
        """The team of the ranks whose memory this rank can access by loads and stores, including this rank."""
        return SymmetricTeam(self, self._library.team_lsa(self.handle), is_owned=False)

    def split(self, parent: SymmetricTeam | None, color: int, key: int = 0) -> SymmetricTeam | None:
        """Splits a team. The members of `parent` that pass the same color form a new team, ordered by `key`. Returns None if the color is
        negative. Ranks outside `parent` pass None as `parent`, and get None. Collective over the context."""
        team = self._make("team_split", None if parent is None else parent.handle, color, key)
        return None if team is None else SymmetricTeam(self, team)

    def create_team(self, ranks: Sequence[int]) -> SymmetricTeam | None:
        """Creates a team. Members pass the same world ranks in the same order; all other ranks pass an empty sequence and
        get None. Collective over the context."""
        team = self._make("team_create", (ctypes.c_uint32 * len(ranks))(*ranks), len(ranks))
        return None if team is None else SymmetricTeam(self, team)

    def reset(self, team: SymmetricTeam | None) -> None:
        """Resets a team after one of its waits timed out. Members pass the team; other ranks pass None. Collective over the
        context."""
        self._check(self._library.team_reset(self.handle, None if team is None else team.handle))

    def create_workspace(self, team: SymmetricTeam | None, slots_bytes: int, blocks: int) -> SymmetricWorkspace:
        """Creates a workspace: signals, barriers and slots for one stream. All ranks pass the same sizes. Collective over
        the context.

        Args:
            team: the team whose members use the workspace; None on ranks that are not members.
            slots_bytes: size in bytes of all slots together, which low_latency.cuh uses; 0 for a workspace without slots.
            blocks: number of blocks of the largest grid that uses the workspace.
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
    """If the application's all-gather raised an exception, sets it as the cause of the library's error."""
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
        # An exception cannot pass through C. This function keeps the exception, which becomes the cause of the library's error.
        try:
            parts = self._all_gather(ctypes.string_at(mine, bytes_each))
            lengths = [len(part) for part in parts]
            if lengths != [bytes_each] * self._count_ranks:
                raise ValueError(f"the application's all_gather() returned parts of {lengths} bytes, but must return {bytes_each} "
                                 "bytes "
                                 f"from each of {self._count_ranks} ranks")
            ctypes.memmove(everyones, b"".join(parts), bytes_each * self._count_ranks)
        except BaseException as failure:
            self._failure = failure
            return 1
        return 0
