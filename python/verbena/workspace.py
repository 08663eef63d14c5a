"""Workspaces: signals, barriers and slots for one stream or one purpose."""
import ctypes

from verbena.constants import Backend, ContextType
from verbena.native import Result, VerbenaError
from verbena.part import CollectivePart
from verbena.team import SymmetricTeam

_ERROR_TEXT_BYTES = 512


class SymmetricWorkspace(CollectivePart):
    """A workspace, which kernels take in place of a team. Kernels that run at the same time, each with its own workspace,
    do not interfere. Freed collectively, by `free`, at the end of `with`, or with its context. On a rank that is not a
    member of the team it serves only the collective calls."""

    _name = "workspace"

    def reset(self) -> None:
        """Resets the workspace after one of its waits timed out. Collective."""
        self._library.check(self._library.workspace_reset(self.handle))

    def check_error(self) -> None:
        """Raises VerbenaError if a wait of this workspace timed out on any member, and names it."""
        text = ctypes.create_string_buffer(_ERROR_TEXT_BYTES)
        result = self._library.workspace_get_error(self.handle, text, len(text))
        if result != Result.SUCCESS:
            raise VerbenaError(Result(result), text.value.decode())

    @property
    def team(self) -> SymmetricTeam:
        """The team of the members with the workspace's signals and barriers, for calls on streams. The workspace owns it."""
        self._require_member()
        return SymmetricTeam(self._context, self._library.workspace_team(self.handle), is_owned=False)

    @property
    def is_member(self) -> bool:
        return self._library.workspace_host_context(self.handle) is not None

    @property
    def slot_bytes(self) -> int:
        """Bytes of each slot of low_latency.cuh; 0: there are none."""
        return int(self._library.workspace_slot_bytes(self.handle))

    @property
    def device_context(self) -> int:
        """The address of the SymmWorkspace in GPU memory, which begins with a SymmContext: a kernel's `ctx_ptr`."""
        self._require_member()
        return int(self._library.workspace_device_context(self.handle))

    @property
    def backend(self) -> Backend:
        """The backend for which kernels that take this workspace may be compiled, besides DEFAULT."""
        self._require_member()
        context = self._library.workspace_host_context(self.handle)
        return ContextType(ctypes.c_int32.from_address(context).value).backend

    def _require_member(self) -> None:
        if not self.is_member:
            raise ValueError("this rank is not a member of the workspace's team")
