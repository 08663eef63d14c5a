"""Workspaces: signals, barriers and slots for one stream or one purpose."""
import ctypes

from verbena.constants import Backend, ContextType
from verbena.native import Result, VerbenaError
from verbena.part import CollectivePart
from verbena.team import SymmetricTeam

_ERROR_TEXT_BYTES = 512


class SymmetricWorkspace(CollectivePart):
    """A team's signals, barriers and slots for one stream. Kernels take a workspace in place of a team.

    Kernels that run at the same time do not interfere if each has its own workspace. The workspace is freed by free(), at the end of a
    `with` block, or when the context is closed. In all three cases, freeing is collective. On ranks that are not members of the team, only
    the collective methods (reset, free) and is_member may be used."""

    _name = "workspace"

    def reset(self) -> None:
        """Makes the workspace usable again after one of its waits timed out. Collective."""
        self._library.check(self._library.workspace_reset(self.handle))

    def check_error(self) -> None:
        """Raises VerbenaError if a wait in this workspace timed out on any member. The error names the member whose wait timed out."""
        text = ctypes.create_string_buffer(_ERROR_TEXT_BYTES)
        result = self._library.workspace_get_error(self.handle, text, len(text))
        if result != Result.SUCCESS:
            raise VerbenaError(Result(result), text.value.decode())

    @property
    def team(self) -> SymmetricTeam:
        """A team with the same members that uses the signals and barriers of this workspace, for calls on streams such as team.put(). The
        workspace owns the returned team."""
        self._require_member()
        return SymmetricTeam(self._context, self._library.workspace_team(self.handle), is_owned=False)

    @property
    def is_member(self) -> bool:
        return self._library.workspace_host_context(self.handle) is not None

    @property
    def slot_bytes(self) -> int:
        """Size in bytes of each slot of low_latency.cuh; 0 if the workspace has no slots."""
        return int(self._library.workspace_slot_bytes(self.handle))

    @property
    def device_context(self) -> int:
        """The address of the SymmWorkspace in GPU memory. Kernels take this address as `ctx_ptr`, because a SymmWorkspace begins with a
        SymmContext."""
        self._require_member()
        return int(self._library.workspace_device_context(self.handle))

    @property
    def backend(self) -> Backend:
        """The backend of the workspace's context. Kernels that take this workspace must be compiled for this backend or for DEFAULT."""
        self._require_member()
        context = self._library.workspace_host_context(self.handle)
        return ContextType(ctypes.c_int32.from_address(context).value).backend

    def _require_member(self) -> None:
        if not self.is_member:
            raise ValueError("this rank is not a member of the workspace's team and cannot use it")
