"""Initialises NVSHMEM's device library in each CUDA module that contains it, before the module's first launch. Triton reports
each module that it loads, regardless of how a kernel is launched."""
import ctypes
import json
import pathlib
from typing import Any

from triton import knobs
from triton.runtime.driver import driver

from verbena.backends import ANY_BITCODE, find_bitcode
from verbena.constants import Backend
from verbena.nvshmem import modules

_CAPTURE_IMPLICIT = 906  # CUDA_ERROR_STREAM_CAPTURE_IMPLICIT


def watch() -> None:
    """Starts listening to Triton's reports of loaded modules, and keeps existing listeners. Repeated calls have no effect."""
    chain = knobs.runtime.kernel_load_end_hook
    if not isinstance(chain, knobs.HookChain):
        chain = knobs.HookChain(reversed=True)
        if knobs.runtime.kernel_load_end_hook is not None:
            chain.add(knobs.runtime.kernel_load_end_hook)
        knobs.runtime.kernel_load_end_hook = chain
    chain.add(_note_module)


def prepare_loaded() -> None:
    """Initialises the modules that could not be initialised when they were loaded. Called before each launch."""
    watch()
    device = driver.active.get_current_device()
    if modules.has_work(device):
        _prepare(device, "a kernel")


def _note_module(module: Any, function: Any, name: str, metadata_group: dict[str, str], hash: str) -> None:
    linked = _list_linked(metadata_group)
    own = find_bitcode(Backend.NVSHMEM)
    if linked.isdisjoint([own, ANY_BITCODE]):
        return
    device = driver.active.get_current_device()
    modules.add(int(module), device, is_needed=own in linked)
    if modules.has_work(device):
        _prepare(device, name)


def _list_linked(metadata_group: dict[str, str]) -> set[str]:
    """Returns the names of the libraries linked into the kernel. Triton's cache stores these names in a JSON file next to the kernel."""
    for name, path in metadata_group.items():
        if name.endswith(".json"):
            return {entry[0] for entry in json.loads(pathlib.Path(path).read_text()).get("extern_libs") or ()}
    return set()


def _prepare(device: int, name: str) -> None:
    if _is_capturing(driver.active.get_current_stream(device)):
        raise RuntimeError(f"{name}: the first launch of this kernel cannot be captured into a CUDA graph, because NVSHMEM must first be "
                           "initialised in the kernel's module. Launch the kernel once before the capture")
    modules.prepare(device)


def _is_capturing(stream: int) -> bool:
    status = ctypes.c_int(0)
    result = ctypes.CDLL("libcuda.so.1").cuStreamIsCapturing(ctypes.c_void_p(stream), ctypes.byref(status))
    # CUDA returns _CAPTURE_IMPLICIT for the default stream if the default stream would depend on a stream that is being captured.
    return bool(result == _CAPTURE_IMPLICIT or (result == 0 and status.value != 0))
