"""Base classes of teams, windows, workspaces and other parts of a context."""
from types import TracebackType
from typing import TYPE_CHECKING, TypeVar

from verbena.native import load_library

if TYPE_CHECKING:
    from verbena.context import SymmetricContext


class ContextPart:
    """Wraps a handle of the library. The handle becomes invalid when it is freed or its context is closed."""

    _name: str

    def __init__(self, context: "SymmetricContext", handle: int | None, is_owned: bool = True) -> None:
        self._context = context
        self._handle = handle
        self._is_owned = is_owned
        self._library = load_library()

    @property
    def context(self) -> "SymmetricContext":
        return self._context

    @property
    def handle(self) -> int:
        if self._handle is None or self._context.is_closed:
            raise ValueError(f"this {self._name} cannot be used, because the {self._name} was freed or its context was closed")
        return self._handle


_Part = TypeVar("_Part", bound="CollectivePart")


class CollectivePart(ContextPart):
    """A part of a context that all ranks free together, by free() or at the end of a `with` block."""

    def __enter__(self: _Part) -> _Part:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        # After an exception, the peers may not call the collective free(), so this rank does not call free() either. Closing the context
        # frees the part.
        if kind is None:
            self.free()

    def free(self) -> None:
        """Frees the part. Does nothing if the part was already freed or its context was closed. Collective."""
        handle, self._handle = self._handle, None
        if handle is not None and self._is_owned and not self._context.is_closed:
            self._library.check(getattr(self._library, f"{self._name}_free")(handle))
