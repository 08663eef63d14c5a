"""Detects whether NVLink connects this process's GPU with other GPUs of the host. Uses NVIDIA's management library (NVML), because NVML
sees all GPUs of the host regardless of CUDA_VISIBLE_DEVICES."""
import ctypes
from collections.abc import Sequence
from typing import Any

_BUS_ID_BYTES = 32
_NVML_P2P_CAPS_INDEX_NVLINK = 2
_NVML_P2P_STATUS_OK = 0


def find_bus_id() -> str:
    """Returns the PCI bus id of the calling thread's GPU, or "" if the driver does not report it."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return ""
    device, text = ctypes.c_int(), ctypes.create_string_buffer(_BUS_ID_BYTES)
    if driver.cuCtxGetDevice(ctypes.byref(device)) or driver.cuDeviceGetPCIBusId(text, len(text), device):
        return ""
    return text.value.decode()


def has_nvlink(bus_id: str, peers: Sequence[str], library: Any = None) -> bool:
    """Returns True if NVLink or NVSwitch connects the GPU with all of `peers`, which are bus ids of GPUs on the same host. Returns False if
    NVML does not report such links. `library` replaces libnvidia-ml.so.1."""
    try:
        nvml = ctypes.CDLL("libnvidia-ml.so.1") if library is None else library
        if nvml.nvmlInit_v2():
            return False
    except (OSError, AttributeError):
        return False
    try:
        mine = _find_gpu(nvml, bus_id)
        others = [_find_gpu(nvml, peer) for peer in peers]
        return mine is not None and all(other is not None and _are_linked(nvml, mine, other) for other in others)
    finally:
        nvml.nvmlShutdown()


def _find_gpu(nvml: Any, bus_id: str) -> ctypes.c_void_p | None:
    gpu = ctypes.c_void_p()
    return None if nvml.nvmlDeviceGetHandleByPciBusId_v2(bus_id.encode(), ctypes.byref(gpu)) else gpu


def _are_linked(nvml: Any, one: ctypes.c_void_p, other: ctypes.c_void_p) -> bool:
    status = ctypes.c_int(-1)
    failed = nvml.nvmlDeviceGetP2PStatus(one, other, _NVML_P2P_CAPS_INDEX_NVLINK, ctypes.byref(status))
    return not failed and status.value == _NVML_P2P_STATUS_OK
