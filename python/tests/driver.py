"""The functions of CUDA's driver that an application's allocator needs, and helpers for the memory of tests."""
import ctypes

GRAIN_BYTES = 2 << 20


class _Location(ctypes.Structure):
    _fields_ = [("type", ctypes.c_int), ("id", ctypes.c_int)]


class _AllocationProperties(ctypes.Structure):
    _fields_ = [("type", ctypes.c_int), ("handle_types", ctypes.c_int), ("location", _Location),
                ("windows", ctypes.c_void_p), ("flags", ctypes.c_uint8 * 8)]


class _AccessDescription(ctypes.Structure):
    _fields_ = [("location", _Location), ("flags", ctypes.c_int)]


_PINNED, _ON_DEVICE, _POSIX_DESCRIPTOR, _READ_WRITE = 1, 1, 1, 3


def call(name, *arguments):
    result = getattr(ctypes.CDLL("libcuda.so.1"), name)(*arguments)
    assert result == 0, f"{name}: {result}"


_launched = []  # tensors of calls


def keep_tensors():
    """Keeps tensors alive. PyTorch's allocator for host memory knows no streams: if a tensor is dropped while an emulated GPU still writes
    to it, as a GPU's allocator allows, the next tensor could get the same memory."""
    from verbena.ops.calls import OpsPart
    from verbena.ops.moe import ExpertExchange
    for kind in (OpsPart, ExpertExchange):
        def keep(calls, name, tensors, *arguments, launch=kind._launch):
            group = getattr(calls, "_group", None)
            _launched.append(tensors if group is None else group)  # of a group, what it keeps itself
            launch(calls, name, tensors, *arguments)
        kind._launch = keep


def wait_for_launches():
    """Makes each later launch of an exchange return only when its kernel has run. This is for code that computes with the results on the
    host; on a GPU, the stream would order this code after the kernel."""
    from verbena.ops.moe import ExpertExchange

    def wait(calls, *arguments, launch=ExpertExchange._launch):
        launch(calls, *arguments)
        call("cuStreamSynchronize", None)
    ExpertExchange._launch = wait


def drop_tensors():
    """Drops the tensors that keep_tensors() has kept. Call this when all kernels have ended."""
    _launched.clear()


def use_gpu(gpu):
    """The rank's GPU, for calls with tensors of the host."""
    keep_tensors()
    context = ctypes.c_void_p()
    call("cuInit", 0)
    call("cuDevicePrimaryCtxRetain", ctypes.byref(context), gpu)
    call("cuCtxSetCurrent", context)


def open_context(gpu):
    """The symmetric context of a rank with this GPU."""
    import verbena
    use_gpu(gpu)
    return verbena.SymmetricContext.from_environment()


def allocate(gpu, length_bytes):
    """Allocates memory that can be shared by a file descriptor. The memory lives as long as the process."""
    mapped_bytes = ctypes.c_size_t(-(-length_bytes // GRAIN_BYTES) * GRAIN_BYTES)
    address, none = ctypes.c_uint64(), ctypes.c_uint64(0)
    call("cuMemAddressReserve", ctypes.byref(address), mapped_bytes, ctypes.c_size_t(0), none, none)
    _map_new(gpu, address, mapped_bytes)
    return address.value


def map_anew(gpu, address, length_bytes):
    """Other memory at the address of `allocate`."""
    mapped_bytes = ctypes.c_size_t(-(-length_bytes // GRAIN_BYTES) * GRAIN_BYTES)
    call("cuMemUnmap", ctypes.c_uint64(address), mapped_bytes)
    _map_new(gpu, ctypes.c_uint64(address), mapped_bytes)


def _map_new(gpu, address, mapped_bytes):
    location = _Location(_ON_DEVICE, gpu)
    properties = _AllocationProperties(_PINNED, _POSIX_DESCRIPTOR, location)
    handle, none = ctypes.c_void_p(), ctypes.c_uint64(0)
    call("cuMemCreate", ctypes.byref(handle), mapped_bytes, ctypes.byref(properties), none)
    call("cuMemMap", address, mapped_bytes, ctypes.c_size_t(0), handle, none)
    call("cuMemRelease", handle)  # the mapping keeps it
    access = _AccessDescription(location, _READ_WRITE)
    call("cuMemSetAccess", address, mapped_bytes, ctypes.byref(access), ctypes.c_size_t(1))


def write(address, data):
    call("cuMemcpyHtoD_v2", ctypes.c_uint64(address), data, ctypes.c_size_t(len(data)))


def read(address, length_bytes):
    data = ctypes.create_string_buffer(length_bytes)
    call("cuMemcpyDtoH_v2", data, ctypes.c_uint64(address), ctypes.c_size_t(length_bytes))
    return data.raw
