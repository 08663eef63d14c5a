"""Stand-ins for the functions of TorchComms and PyTorch that the builders call, with the same signatures, for machines on which neither is
installed."""
import ctypes
import sys
import time
import types

LIMIT_S = 60


class Tensor:
    """Bytes; as a buffer its address is made up."""

    def __init__(self, data, is_contiguous=True):
        self.data = bytearray(data)
        self._is_contiguous = is_contiguous

    def is_contiguous(self):
        return self._is_contiguous

    def data_ptr(self):
        return 1 << 30

    def numel(self):
        return len(self.data) // self.element_size()

    def element_size(self):
        return 4

    def to(self, device):
        assert device == "cuda:0"
        return self

    def cpu(self):
        return self

    def numpy(self):
        return self

    def tobytes(self):
        return bytes(self.data)


def install_torch():
    """Installs these functions as the module torch, with torch.distributed's all-gather of objects."""
    torch = types.ModuleType("torch")
    torch.uint8 = "uint8"
    torch.device = str
    torch.frombuffer = lambda data, dtype: Tensor(data)
    torch.empty = lambda size, dtype, device: Tensor(bytes(size))
    torch.distributed = types.ModuleType("torch.distributed")
    torch.distributed.get_backend = lambda group: "gloo"
    def all_gather_object(gathered, mine, group):
        gathered[:] = group.exchange(mine)
    torch.distributed.all_gather_object = all_gather_object
    sys.modules.update({"torch": torch, "torch.distributed": torch.distributed})


def make_torch_with_stream(stream):
    """Returns a stand-in for a PyTorch that uses the GPU. Only the current stream can be read."""
    return types.SimpleNamespace(cuda=types.SimpleNamespace(is_initialized=lambda: True, current_stream=lambda device=None: stream))


class PluggableAllocator:
    """Stand-in for torch.cuda.memory.CUDAPluggableAllocator, which takes functions of a library by their names."""

    def __init__(self, path, allocate, release):
        library = ctypes.CDLL(path)
        self.allocate, self.release = getattr(library, allocate), getattr(library, release)
        self.allocate.restype, self.allocate.argtypes = ctypes.c_void_p, [ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p]
        self.release.restype = None
        self.release.argtypes = [ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p]

    def allocator(self):
        return self


class MemPool:
    """Stand-in for torch.cuda.MemPool, which returns all memory when it is destroyed."""

    def __init__(self, allocator):
        self._allocator, self._taken = allocator, {}

    def take(self, length_bytes, device):
        address = self._allocator.allocate(length_bytes, device, None)
        self._taken[address] = length_bytes, device
        return address

    def give_back(self, address):
        self._allocator.release(address, *self._taken.pop(address), None)

    def __del__(self):
        for address in list(self._taken):
            self.give_back(address)


def install_torch_pools():
    torch = types.ModuleType("torch")
    memory = types.SimpleNamespace(CUDAPluggableAllocator=PluggableAllocator)
    torch.cuda = types.SimpleNamespace(memory=memory, MemPool=MemPool)
    sys.modules["torch"] = torch


class DeviceMesh:
    """Stand-in for torch.distributed.device_mesh.DeviceMesh with all ranks in order. Has only the methods that return coordinates."""

    def __init__(self, rank, shape, names=None):
        self.shape, self.mesh_dim_names = shape, names
        self._rank = rank

    def get_coordinate(self):
        place, rest = [], self._rank
        for length in reversed(self.shape):
            place.insert(0, rest % length)
            rest //= length
        return place if rest == 0 else None


class Exchange:
    """An all-gather by files."""

    def __init__(self, folder, rank, size):
        self.folder, self._rank, self._size, self.rounds = folder, rank, size, 0

    def exchange(self, mine):
        self.rounds += 1
        part = self.folder / f"{self.rounds}-{self._rank}.part"
        part.write_bytes(mine)
        part.rename(part.with_suffix(""))
        return [self._read(self.folder / f"{self.rounds}-{rank}") for rank in range(self._size)]

    @staticmethod
    def _read(path):
        deadline = time.monotonic() + LIMIT_S
        while not path.exists():
            assert time.monotonic() < deadline, f"nobody wrote {path}"
            time.sleep(0.01)
        return path.read_bytes()


class TorchComm(Exchange):
    def __init__(self, folder=None, rank=0, size=1, backend="ncclx"):
        super().__init__(folder, rank, size)
        self._backend = backend

    def get_rank(self):
        return self._rank

    def get_size(self):
        return self._size

    def get_backend(self):
        return self._backend

    def get_device(self):
        return "cuda:0"

    def finalize(self):
        self.is_final = True

    def all_gather_single(self, output, input, async_op):
        assert not async_op
        output.data[:] = b"".join(self.exchange(input.tobytes()))


class TorchCommWithHandle(TorchComm):
    """As a release whose backend tells NCCL's communicator."""

    def get_backend_impl(self):
        return types.SimpleNamespace(get_nccl_comm_ptr=lambda: 4242)


class ProcessGroup(Exchange):
    def rank(self):
        return self._rank

    def size(self):
        return self._size

    def _get_backend(self, device):
        assert device == "cuda"
        return types.SimpleNamespace(_comm_ptr=lambda: self.handle)
