"""What teams and windows are to their context."""
from typing import TYPE_CHECKING

from verbena.native import load_library

if TYPE_CHECKING:
    from verbena.context import SymmetricContext


class ContextPart:
    """A handle of the library's, of no use once it is freed or its context is closed."""

    _name: str

    def __init__(self, context: "SymmetricContext", handle: int | None, is_owned: bool = True) -> None:
        self._context = context
        self._handle = handle
        self._is_owned = is_owned
        self._library = load_library()

    @property
    def handle(self) -> int:
        if self._handle is None or self._context.is_closed:
            raise ValueError(f"the {self._name} is freed, or its context is closed")
        return self._handle
