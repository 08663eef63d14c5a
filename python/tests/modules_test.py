"""Tests launches of kernels that call NVSHMEM, on a stand-in for the GPU: which bitcode the kernels are linked with, and that each module
is prepared once, before any kernel of the module runs."""
import ctypes
import pathlib
import types

import pytest
import triton
from triton.backends.nvidia import driver as nvidia
from triton.runtime.jit import JITFunction

import fake_libraries
import gpu_driver
import kernels
import verbena
from ranks import run_ranks
from verbena import nvshmem
from verbena import triton as symm
from verbena.triton import modules

NVSHMEM, VERBENA = verbena.Backend.NVSHMEM, verbena.Backend.VERBENA
# Bitcode without anything that the kernels call.
EMPTY = pathlib.Path(nvidia.__file__).parent / "lib/libdevice.10.bc"
ARGUMENTS = (1 << 40, gpu_driver.Pointer())


@pytest.fixture(autouse=True, scope="module")
def _own_cache(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRITON_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture
def gpu(monkeypatch, tmp_path):
    """That writes down in `events` what is prepared and launched."""
    recorder = gpu_driver.install(monkeypatch)
    bitcode = pathlib.Path(verbena.LibraryFinder.find_device_library()).parent
    (tmp_path / "bitcode").symlink_to(bitcode)
    (tmp_path / "nvshmem").mkdir()
    (tmp_path / "nvshmem/libnvshmem_device.bc").symlink_to(EMPTY)
    monkeypatch.setenv("NVSHMEM_LIB_DIR", str(tmp_path / "nvshmem"))
    keeper = nvshmem.ModuleKeeper()
    monkeypatch.setattr(modules, "modules", keeper)
    library = types.SimpleNamespace(nvshmem_prepare_module=lambda module: recorder.launched.append(module) or 0, check=_check)
    monkeypatch.setattr(nvshmem, "load_nvshmem", lambda: library)
    monkeypatch.setattr(modules, "_is_capturing", lambda stream: recorder.is_capturing)
    recorder.is_capturing = False
    recorder.keeper, recorder.library, recorder.folder = keeper, library, tmp_path / "nvshmem"
    return recorder


def _check(result):
    if result != 0:
        raise verbena.VerbenaError(verbena.Result(result), "could not be prepared")


def _list_events(gpu):
    """Modules that were prepared, by their numbers, and launches."""
    return [event if isinstance(event, int) else "launch" for event in gpu.launched]


def _decorate(backend=NVSHMEM, function=kernels.ask_for_the_size):
    """Returns a new kernel for each test, because Triton keeps the loaded module with the function."""
    return symm.requires_symm(backend=backend)(triton.jit(function.fn))


def test_a_module_is_prepared_before_its_first_launch(gpu):
    kernel = _decorate()
    kernel.warmup(*ARGUMENTS, BACKEND=2, grid=(1,))
    assert _list_events(gpu) == []
    kernel[(1,)](*ARGUMENTS, BACKEND=2)
    kernel[(2,)](*ARGUMENTS, BACKEND=2)
    assert _list_events(gpu) == [1001, "launch", "launch"]


def test_each_kernel_and_each_gpu_has_a_module(gpu):
    first, second = _decorate(), _decorate()
    for gpu.device in (0, 1, 0, 1):
        first[(1,)](*ARGUMENTS, BACKEND=2)
        second[(1,)](*ARGUMENTS, BACKEND=2)
    assert _list_events(gpu) == [1001, "launch", 1002, "launch", 1003, "launch", 1004, "launch"] + 4 * ["launch"]
    # One more of the same kernel: it is compiled for more warps.
    first[(1,)](*ARGUMENTS, BACKEND=2, num_warps=8)
    assert _list_events(gpu)[-2:] == [1005, "launch"]


def test_a_compiled_kernel_is_prepared_whoever_launches_it(gpu):
    compiled = _decorate().warmup(*ARGUMENTS, BACKEND=2, grid=(1,))
    compiled[(1, 1, 1)](*ARGUMENTS)
    assert _list_events(gpu) == [1001, "launch"]


def test_other_kernels_are_left_alone(gpu):
    _decorate()
    _decorate(VERBENA)[(1,)](*ARGUMENTS, BACKEND=4)
    if verbena.LibraryFinder.is_available(verbena.Backend.NCCL):
        _decorate(verbena.Backend.NCCL)[(1,)](*ARGUMENTS, BACKEND=1)
    assert gpu.loaded and set(_list_events(gpu)) == {"launch"}


def test_a_kernel_for_all_backends_is_prepared_once_there_is_a_context(gpu):
    kernel = _decorate(verbena.Backend.DEFAULT)
    if not verbena.LibraryFinder.is_available(verbena.Backend.DEFAULT):
        pytest.skip("no bitcode of all backends")
    kernel[(1,)](*ARGUMENTS, BACKEND=0)
    assert _list_events(gpu) == ["launch"]
    gpu.keeper.note_context()
    kernel[(1,)](*ARGUMENTS, BACKEND=0)
    kernel[(1,)](*ARGUMENTS, BACKEND=0)
    assert _list_events(gpu) == ["launch", 1001, "launch", "launch"]


def test_nothing_is_prepared_in_a_capture(gpu):
    kernel = _decorate()
    gpu.is_capturing = True
    for _ in range(2):
        with pytest.raises(RuntimeError, match="cannot be captured into a CUDA graph.*Launch the kernel once before"):
            kernel[(1,)](*ARGUMENTS, BACKEND=2)
    assert _list_events(gpu) == []
    gpu.is_capturing = False
    kernel[(1,)](*ARGUMENTS, BACKEND=2)
    gpu.is_capturing = True
    kernel[(1,)](*ARGUMENTS, BACKEND=2)
    assert _list_events(gpu) == [1001, "launch", "launch"]


def test_what_could_not_be_prepared_is_not_launched(gpu, monkeypatch):
    kernel = _decorate()
    with monkeypatch.context() as patch:
        patch.setattr(gpu.library, "nvshmem_prepare_module", lambda module: 5)
        for _ in range(2):
            with pytest.raises(verbena.VerbenaError, match="could not be prepared"):
                kernel[(1,)](*ARGUMENTS, BACKEND=2)
    kernel[(1,)](*ARGUMENTS, BACKEND=2)
    assert _list_events(gpu) == [1001, "launch"]


def test_a_hook_that_was_taken_away_comes_back(gpu, monkeypatch):
    loaded = []
    others = (triton.knobs.HookChain(reversed=True), None, lambda *arguments: loaded.append(arguments[0]))
    for number, hook in enumerate(others, 1001):
        kernel = _decorate()
        monkeypatch.setattr(triton.knobs.runtime, "kernel_load_end_hook", hook)
        kernel[(1,)](*ARGUMENTS, BACKEND=2)
        assert _list_events(gpu)[-2:] == [number, "launch"]
    assert loaded == [1003]


CAPTURES = """
int cuStreamIsCapturing(void* stream, int* status) {
  *status = stream == (void*)2;
  return stream == (void*)3 ? 906 : stream == (void*)4 ? 1 : 0;
}
"""


def _ask_for_captures(rank, folder):
    driver = ctypes.CDLL(str(folder / "libcuda.so.1"))
    assert driver.cuStreamIsCapturing
    return [modules._is_capturing(stream) for stream in (0, 2, 3, 4)]


def test_a_capture_is_seen(tmp_path):
    fake_libraries.build(tmp_path / "libcuda.so.1", CAPTURES)
    assert run_ranks(1, _ask_for_captures, tmp_path) == [[False, True, True, False]]


CONFIGS = [triton.Config({}, num_warps=warps) for warps in (1, 2)]


def test_autotune_over_a_decorated_kernel(gpu):
    kernel = triton.autotune(CONFIGS, key=[])(_decorate())
    kernel[(1,)](*ARGUMENTS, BACKEND=2)
    assert _list_events(gpu) == [1001, "launch", 1002, "launch", "launch"]


def test_a_decorated_autotuned_kernel(gpu):
    tuned = triton.autotune(CONFIGS, key=[])(triton.jit(kernels.ask_for_the_size.fn))
    kernel = symm.requires_symm(backend=NVSHMEM)(tuned)
    kernel[(1,)](*ARGUMENTS, BACKEND=2)
    kernel[(1,)](*ARGUMENTS, BACKEND=2)
    assert _list_events(gpu) == [1001, "launch", 1002, "launch", "launch", "launch"]


def test_heuristics_on_either_side(gpu):
    values = {"BACKEND": lambda arguments: 2}
    for kernel in (triton.heuristics(values)(_decorate()),
                   symm.requires_symm(backend=2)(triton.heuristics(values)(triton.jit(kernels.ask_for_the_size.fn)))):
        kernel[(1,)](*ARGUMENTS)
    assert _list_events(gpu) == [1001, "launch", 1002, "launch"]


def test_a_kernel_is_decorated_once():
    with pytest.raises(TypeError, match="once"):
        symm.requires_symm(backend=VERBENA)(_decorate(VERBENA))
    tuned = triton.autotune(CONFIGS, key=[])(_decorate(VERBENA))
    with pytest.raises(TypeError, match="once"):
        symm.requires_symm(backend=VERBENA)(tuned)


def _find_linked(gpu, capability):
    gpu.capability = capability
    linked = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(JITFunction, "run", lambda self, *args, extern_libs, **options: linked.append(extern_libs))
        _decorate()[(1,)](*ARGUMENTS, BACKEND=2)
    return pathlib.Path(linked[0]["libnvshmem_device"]).name


def test_nvshmems_bitcode_is_of_the_gpu(gpu):
    assert _find_linked(gpu, 90) == "libnvshmem_device.bc"
    for number in ("75", "80", "100", "90a"):
        (gpu.folder / f"libnvshmem_device_sm_{number}.bc").symlink_to(EMPTY)
    assert _find_linked(gpu, 90) == "libnvshmem_device.bc"
    (gpu.folder / "libnvshmem_device.bc").unlink()
    assert _find_linked(gpu, 90) == "libnvshmem_device_sm_80.bc"
    (gpu.folder / "libnvshmem_device_sm_90.bc").symlink_to(EMPTY)
    assert _find_linked(gpu, 90) == "libnvshmem_device_sm_90.bc"
    for number in ("75", "80", "90"):
        (gpu.folder / f"libnvshmem_device_sm_{number}.bc").unlink()
    with pytest.raises(verbena.LibraryNotFound, match="There is no .* for sm_90 or an older GPU"):
        _find_linked(gpu, 90)


def test_bitcode_of_a_newer_llvm_is_told(gpu):
    (gpu.folder / "libnvshmem_device.bc").unlink()
    (gpu.folder / "libnvshmem_device.bc").write_bytes(b"BC\xc0\xde of the future" * 99)
    with pytest.raises(verbena.BackendUnavailable, match=f"{gpu.folder}/libnvshmem_device.bc.*newer LLVM .*NVSHMEM_LIB_DIR"):
        _decorate().warmup(*ARGUMENTS, BACKEND=2, grid=(1,))
    with pytest.raises(verbena.BackendUnavailable, match="a newer LLVM"):
        _decorate().compile(kernels.SIZE_SIGNATURE, {"BACKEND": 2}, 90)
