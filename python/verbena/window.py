"""Windows: memory that every rank has at the same offset of its heap."""
import ctypes
from typing import Any

from verbena.part import CollectivePart

_CU_POINTER_ATTRIBUTE_MEMORY_TYPE = 2
_CU_MEMORYTYPE_DEVICE = 2


class SymmetricWindow(CollectivePart):
    """A window: memory that every rank has at the same offset of its symmetric heap.

    The window is freed by free(), at the end of a `with` block, or when the context is closed. In all three cases, freeing is
    collective."""

    _name = "window"

    @property
    def address(self) -> int:
        """The address of this rank's part of the window. Kernels and copies also use this address to refer to the same offset in a peer's
        part."""
        return int(self._library.window_address(self.handle))

    @property
    def length_bytes(self) -> int:
        return int(self._library.window_length(self.handle))

    def __len__(self) -> int:
        return self.length_bytes

    def peer_address(self, rank: int) -> int | None:
        """Returns the address by which this rank can access the memory of world rank `rank` in this window by loads and stores, or None if
        that rank is reachable only by RDMA."""
        address = self._library.window_peer_address(self.handle, rank)
        return None if address is None else int(address)

    @property
    def is_on_gpu(self) -> bool:
        return _is_on_gpu(self.address)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """The window as an array of bytes in GPU memory. Use torch.as_tensor(window, device="cuda").view(dtype)."""
        if not self.is_on_gpu:
            raise AttributeError("the window is in host memory, because this rank has no GPU. Use host_view()")
        return {"shape": (self.length_bytes,), "typestr": "|u1", "data": (self.address, False), "version": 3}

    def host_view(self, rank: int | None = None) -> memoryview:
        """Returns the bytes of a rank's part as a memoryview; by default this rank's part. Works on ranks without a GPU.
        Do not use the view after the window is freed."""
        address = self.address if rank is None else self.peer_address(rank)
        if address is None:
            raise ValueError(f"rank {rank}'s part of the window cannot be mapped by this rank, because rank {rank} is reachable by RDMA "
                             f"only")
        if _is_on_gpu(address):
            raise ValueError("the window is in GPU memory. Use torch.as_tensor(window, device=\"cuda\")")
        return memoryview((ctypes.c_uint8 * self.length_bytes).from_address(address)).cast("B")


def _is_on_gpu(address: int) -> bool:
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    kind = ctypes.c_uint(0)
    # Memory that the driver does not know is host memory.
    result = driver.cuPointerGetAttribute(ctypes.byref(kind), _CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
                                          ctypes.c_uint64(address))
    return bool(result == 0 and kind.value == _CU_MEMORYTYPE_DEVICE)
