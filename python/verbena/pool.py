"""Pools: tensors of PyTorch's own allocator in a window."""
from typing import TYPE_CHECKING, Any

from verbena.native import BackendUnavailable
from verbena.part import CollectivePart
from verbena.window import SymmetricWindow

if TYPE_CHECKING:
    from verbena.context import SymmetricContext


class SymmetricPool(CollectivePart):
    """Memory for `torch.cuda.use_mem_pool(pool.mem_pool)`: tensors that are created in it have symmetric addresses, equal
    on all ranks that allocate and free alike; `check` compares that. Freed collectively, by `free`, at the end of
    `with`, or with its context, when no tensor uses it any more."""

    _name = "pool"

    def __init__(self, context: "SymmetricContext", handle: int | None) -> None:
        super().__init__(context, handle)
        self._mem_pool: Any = None
        self._allocator: Any = None

    @property
    def mem_pool(self) -> Any:
        """The torch.cuda.MemPool; this object keeps it alive."""
        if self._mem_pool is None:
            import torch
            if not hasattr(torch.cuda, "MemPool"):
                raise BackendUnavailable(f"pools for tensors: PyTorch {torch.__version__} has no torch.cuda.MemPool; builds for CUDA from 2.5 on do")
            functions = (f"verbena_pool_{name}_{self.index}" for name in ("allocate", "release"))
            self._allocator = torch.cuda.memory.CUDAPluggableAllocator(self._library.path, *functions)
            self._mem_pool = torch.cuda.MemPool(self._allocator.allocator())
        return self._mem_pool

    def free(self) -> None:
        """Frees the pool. PyTorch returns memory that no tensor uses; tensors that are still alive become invalid.
        Collective."""
        self._mem_pool = None
        super().free()
        self._allocator = None

    def check(self) -> None:
        """Raises VerbenaError if ranks have not allocated and freed alike. Collective."""
        self._library.check(self._library.pool_check(self.handle))

    @property
    def index(self) -> int:
        """The pool's index in the process, and in the names of its allocator functions."""
        return int(self._library.pool_index(self.handle))

    @property
    def window(self) -> SymmetricWindow:
        """The window with all of the pool's memory."""
        return SymmetricWindow(self._context, self._library.pool_window(self.handle), is_owned=False)

    @property
    def max_used_bytes(self) -> int:
        return int(self._library.pool_max_used(self.handle))
