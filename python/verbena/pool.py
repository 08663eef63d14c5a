"""Pools: windows from which PyTorch's own allocator takes tensors."""
from typing import TYPE_CHECKING, Any

from verbena.native import BackendUnavailable
from verbena.part import CollectivePart
from verbena.window import SymmetricWindow

if TYPE_CHECKING:
    from verbena.context import SymmetricContext


class SymmetricPool(CollectivePart):
    """Symmetric memory for PyTorch's allocator. Tensors that are created inside `torch.cuda.use_mem_pool(pool.mem_pool)` lie in the pool.

    A tensor has the same offset on all ranks only if all ranks allocate and free tensors in the same order and with the same
    sizes; check() verifies this. The pool is freed by free(), at the end of a `with` block, or when the context is closed. In all three
    cases, freeing is collective. Delete all tensors of the pool first."""

    _name = "pool"

    def __init__(self, context: "SymmetricContext", handle: int | None) -> None:
        super().__init__(context, handle)
        self._mem_pool: Any = None
        self._allocator: Any = None

    @property
    def mem_pool(self) -> Any:
        """The torch.cuda.MemPool of this pool. The pool keeps the MemPool alive."""
        if self._mem_pool is None:
            import torch
            if not hasattr(torch.cuda, "MemPool"):
                raise BackendUnavailable(f"a pool needs torch.cuda.MemPool, which PyTorch {torch.__version__} does not have. Use "
                                         "PyTorch 2.5 or newer, built for CUDA")
            functions = (f"verbena_pool_{name}_{self.index}" for name in ("allocate", "release"))
            self._allocator = torch.cuda.memory.CUDAPluggableAllocator(self._library.path, *functions)
            self._mem_pool = torch.cuda.MemPool(self._allocator.allocator())
        return self._mem_pool

    def free(self) -> None:
        """Frees the pool. Makes PyTorch return the pool's unused memory first. Tensors of the pool that are still alive become
        invalid. Collective."""
        self._mem_pool = None
        super().free()
        self._allocator = None

    def check(self) -> None:
        """Raises VerbenaError if the ranks have made different allocations. Collective."""
        self._library.check(self._library.pool_check(self.handle))

    @property
    def index(self) -> int:
        """The pool's index in this process, which is part of the names of its allocator functions."""
        return int(self._library.pool_index(self.handle))

    @property
    def window(self) -> SymmetricWindow:
        """The window that contains all memory of the pool. The pool owns the window."""
        return SymmetricWindow(self._context, self._library.pool_window(self.handle), is_owned=False)

    @property
    def max_used_bytes(self) -> int:
        return int(self._library.pool_max_used(self.handle))
