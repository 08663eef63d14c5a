"""Teams: ranks with signals and barriers of their own."""
import ctypes
from types import TracebackType

from verbena.constants import Backend, ContextType
from verbena.part import ContextPart


class SymmetricTeam(ContextPart):
    """What kernels are launched with. Freed by `free`, at the end of `with`, or with its context; not collective."""

    _name = "team"

    def __enter__(self) -> "SymmetricTeam":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        self.free()

    def free(self) -> None:
        """The context's own teams stay."""
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
        """Of a member."""
        if not 0 <= rank < self.size:
            raise ValueError(f"rank {rank} of a team of {self.size}")
        return int(self._library.team_world_rank(self.handle, rank))

    @property
    def device_context(self) -> int:
        """The address of the SymmContext in the GPU's memory: a kernel's `ctx_ptr`."""
        return int(self._library.team_device_context(self.handle))

    @property
    def backend(self) -> Backend:
        """For which kernels that take this team may be compiled, besides DEFAULT."""
        context = self._library.team_host_context(self.handle)
        return ContextType(ctypes.c_int32.from_address(context).value).backend
