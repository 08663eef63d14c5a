"""Pools: tensors of PyTorch's own allocator that lie in a window."""
from typing import TYPE_CHECKING, Any

from verbena.native import BackendUnavailable
from verbena.part import CollectivePart
from verbena.window import SymmetricWindow

if TYPE_CHECKING:
    from verbena.context import SymmetricContext


class SymmetricPool(CollectivePart):
    """Memory for `torch.cuda.use_mem_pool(pool.mem_pool)`: tensors made meanwhile have symmetric addresses, the same on all
    ranks that allocate and free alike, which `check` compares. Freed collectively, by `free`, at the end of `with`, or with
    its context, when no tensor of it is used any more."""

    _name = "pool"

    def __init__(self, context: "SymmetricContext", handle: int | None) -> None:
        super().__init__(context, handle)
        self._mem_pool: Any = None
        self._allocator: Any = None

    @property
    def mem_pool(self) -> Any:
        """A torch.cuda.MemPool, kept by this object."""
        if self._mem_pool is None:
            import torch
            if not hasattr(torch.cuda, "MemPool"):
                raise BackendUnavailable(f"pools for tensors: PyTorch {torch.__version__} has no torch.cuda.MemPool; builds for CUDA from 2.5 on do")
            functions = (f"verbena_pool_{name}_{self.number}" for name in ("allocate", "release"))
            self._allocator = torch.cuda.memory.CUDAPluggableAllocator(self._library.path, *functions)
            self._mem_pool = torch.cuda.MemPool(self._allocator.allocator())
        return self._mem_pool

    def free(self) -> None:
        """Collective. PyTorch gives back what no tensor holds; a tensor that is still held is of no use afterwards."""
        self._mem_pool = None
        super().free()
        self._allocator = None

    def check(self) -> None:
        """Collective: raises if ranks have not allocated and freed alike."""
        self._library.check(self._library.pool_check(self.handle))

    @property
    def number(self) -> int:
        """Among the pools of the process, in the names of its allocator's functions."""
        return int(self._library.pool_number(self.handle))

    @property
    def window(self) -> SymmetricWindow:
        """All of the pool's memory."""
        return SymmetricWindow(self._context, self._library.pool_window(self.handle), is_owned=False)

    @property
    def most_used_bytes(self) -> int:
        return int(self._library.pool_most_used(self.handle))
