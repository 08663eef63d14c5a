"""Compiles kernels for GPUs that are not present, and checks which functions of the library the kernels contain, and which kernels are
rejected and why."""
import importlib.util
import pathlib
import re
import subprocess

import pytest
import triton
from triton.compiler.errors import CompilationError
from triton.runtime.jit import JITFunction

import gpu_kernels
import kernels
import verbena
from verbena import triton as symm

ROOT = pathlib.Path(__file__).resolve().parents[2]
CAPABILITIES = (80, 90)
TYPES = {"int32_t": "i32", "int64_t": "i64"}
# The assembler's own, for what CUDA reserves.
MAY_BE_UNDEFINED = {"", ".nv.reservedSmem.offset0"}


@pytest.fixture(autouse=True, scope="session")
def _own_cache(tmp_path_factory):
    """Nothing is taken from an earlier run's."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRITON_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="session", params=CAPABILITIES)
def everything(request):
    kernel = symm.requires_symm(kernels.call_everything)
    return kernel.compile(kernels.EVERYTHING_SIGNATURE, {"ADDRESS_BACKEND": 4}, request.param)


def _list_functions():
    """Returns (types of the arguments, type of the result) of each function of the header, by name."""
    text = (ROOT / "include/verbena/device/symm_c.cuh").read_text(encoding="utf-8")
    functions = {name: (("i64", "i32"), "i32") for name in re.findall(r"^VERBENA_SYMM_BARRIER\((\w+)[,)]", text, re.M)}
    for returned, name, arguments in re.findall(r"VERBENA_SYMM_FUNCTION (\w+) (symm_\w+)\(([^)]*)\)", text):
        types = tuple(TYPES[argument.split()[0]] for argument in arguments.split(","))
        functions[name] = (types, TYPES[returned])
    return functions


def test_every_function_is_called_with_its_own_types(everything):
    calls = re.findall(r'extern_elementwise .*pure = (\w+), symbol = "(\w+)"} : \(([^)]*)\) -> (\w+)',
                       everything.asm["ttir"])
    functions = _list_functions()
    assert len(functions) >= 24 and {name for _, name, _, _ in calls} == set(functions)
    for pure, name, arguments, returned in calls:
        assert (pure, tuple(arguments.split(", ")), returned) == ("false", *functions[name])


def _list_undefined(cubin, folder):
    path = folder / "kernel.cubin"
    path.write_bytes(cubin)
    listed = subprocess.run(["readelf", "-sW", path], capture_output=True, text=True, check=True, timeout=60).stdout
    rows = [line.split() for line in listed.splitlines()]
    return {row[7] if len(row) > 7 else "" for row in rows if len(row) > 6 and row[6] == "UND"}


def _check_linked(kernel, folder):
    assert not re.search(r"@symm_", kernel.asm["llir"]) and ".extern .func" not in kernel.asm["ptx"]
    assert _list_undefined(kernel.asm["cubin"], folder) <= MAY_BE_UNDEFINED


def test_nothing_is_left_to_be_called(everything, tmp_path):
    _check_linked(everything, tmp_path)
    # Of waits, barriers, signals, fences, copies and the rings to the proxy.
    for instruction in ("ld.acquire.sys", "st.release.sys", "red.release.sys", "fence.acq_rel.sys", "nanosleep",
                        "st.relaxed.sys.global.v2"):
        assert instruction in everything.asm["ptx"]


def test_what_is_not_called_is_not_linked():
    kernel = symm.requires_symm(kernels.ask_for_the_size).compile(kernels.SIZE_SIGNATURE, {"BACKEND": 0}, 90)
    assert kernel.asm["llir"].count("define ") == 1 and "acquire" not in kernel.asm["ptx"]


def test_the_kernels_of_the_test_on_gpus_compile(tmp_path):
    for function in gpu_kernels.KERNELS:
        kernel = symm.requires_symm(backend=symm.BACKEND_VERBENA)(function)
        _check_linked(kernel.compile(gpu_kernels.make_signature(function), {"BACKEND": 4}, 90), tmp_path)


def _load_example():
    path = ROOT / "python/examples/matmul_all_reduce.py"
    spec = importlib.util.spec_from_file_location("matmul_all_reduce", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("capability", CAPABILITIES)
def test_the_example_compiles(capability, tmp_path):
    kernel = _load_example().compile_offline(capability)
    assert re.search(r"wgmma" if capability == 90 else r"mma\.sync", kernel.asm["ptx"])
    assert "ld.acquire.sys" in kernel.asm["ptx"]
    _check_linked(kernel, tmp_path)


@pytest.mark.parametrize("kernel, complaint", [
    (kernels.signal_each_element, "symm_signal takes scalars"),
    (kernels.signal_a_fraction, "symm_signal: 0.5 is neither"),
    (kernels.name_a_peer_beyond_numbers, "symm_team_lsa: 4294967296 does not fit"),
    (kernels.put_without_a_size, "symm_put_async: .* Pass element_size"),
])
def test_wrong_arguments_are_told(kernel, complaint):
    with pytest.raises(CompilationError) as caught:
        symm.requires_symm(kernel).compile({"ctx_ptr": "i64"}, {}, 80)
    assert re.search(complaint, _tell(caught.value))


def _tell(error):
    return f"{error}\n{error.__cause__}"


@pytest.mark.parametrize("backend, complaint", [
    (1, r"symm_team_size: .* without the bitcode .* @requires_symm\(backend=BACKEND_NCCL\)"),
    (2, "BACKEND_NVSHMEM"), (9, "one of BACKEND_")])
def test_another_backend_than_linked_is_told(backend, complaint):
    kernel = symm.requires_symm(backend=symm.BACKEND_VERBENA)(kernels.ask_for_the_size)
    with pytest.raises(CompilationError) as caught:
        kernel.compile(kernels.SIZE_SIGNATURE, {"BACKEND": backend}, 80)
    assert re.search(complaint, _tell(caught.value))


def test_a_kernel_without_the_decorator_is_told():
    source = triton.compiler.ASTSource(kernels.ask_for_the_size, kernels.SIZE_SIGNATURE, {"BACKEND": 0})
    with pytest.raises(CompilationError) as caught:
        triton.compile(source, target=triton.backends.compiler.GPUTarget("cuda", 80, 32))
    assert "Decorate the kernel with @requires_symm(backend=BACKEND_DEFAULT)" in _tell(caught.value)


def test_the_decorator_with_and_without_argument():
    function = kernels.ask_for_the_size
    for kernel, backend in [(symm.requires_symm(function), 0), (symm.requires_symm()(function), 0),
                            (symm.requires_symm(symm.BACKEND_VERBENA)(function), 4),
                            (symm.requires_symm(backend=verbena.Backend.VERBENA)(function), 4),
                            (verbena.requires_symm(function, backend=4), 4)]:
        assert kernel.backend == backend and kernel.jit_function is function
        assert kernel.extern_libs == {"verbena_symm": verbena.LibraryFinder.find_device_library()}
    assert verbena.requires_torch_symm is symm.requires_torch_symm is symm.requires_symm
    for wrong in (lambda: symm.requires_symm(print), lambda: symm.requires_symm(backend=4)(print),
                  lambda: symm.requires_symm(4, backend=4)):
        with pytest.raises(TypeError):
            wrong()
    with pytest.raises(ValueError, match="5 is not a backend; the backends are BACKEND_DEFAULT, BACKEND_NCCL"):
        symm.requires_symm(backend=5)


def test_a_missing_library_is_told(monkeypatch, tmp_path):
    monkeypatch.setenv("LIBVERBENA_BITCODE_PATH", str(tmp_path))
    with pytest.raises(RuntimeError, match=str(tmp_path / "libverbena_symm.bc")):
        symm.requires_symm(kernels.ask_for_the_size)
    with pytest.raises(RuntimeError, match="libverbena_symm_nvshmem.bc"):
        symm.requires_symm(backend=symm.BACKEND_NVSHMEM)(kernels.ask_for_the_size)


def test_a_backend_brings_its_libraries(monkeypatch, tmp_path):
    for name in ("libverbena_symm.bc", "libverbena_symm_any.bc", "libverbena_symm_nccl.bc", "libverbena_symm_nvshmem.bc"):
        (tmp_path / name).touch()
    monkeypatch.setenv("LIBVERBENA_BITCODE_PATH", str(tmp_path))
    monkeypatch.setenv("NVSHMEM_LIB_DIR", str(tmp_path))
    decorate = lambda backend: symm.requires_symm(kernels.ask_for_the_size, backend=backend)
    assert set(decorate(None).extern_libs) == {"verbena_symm"} and decorate(0).served == {verbena.Backend.VERBENA}
    assert set(decorate(symm.BACKEND_NCCLX).extern_libs) == {"verbena_symm_nccl"}
    with pytest.raises(verbena.LibraryNotFound, match="libnvshmem_device.bc"):
        decorate(symm.BACKEND_NVSHMEM)
    (tmp_path / "libnvshmem_device.bc").touch()
    assert set(decorate(None).extern_libs) == {"verbena_symm_any", "libnvshmem_device"}
    assert decorate(None).served == set(verbena.Backend)


class _Team(verbena.SymmetricTeam):
    """One without a context behind it."""

    def __init__(self, backend):
        self._backend = backend

    device_context = property(lambda self: 1 << 40)
    backend = property(lambda self: self._backend)


def test_a_launch_links_and_takes_teams(monkeypatch):
    launches = []
    monkeypatch.setattr(JITFunction, "run", lambda self, *args, **options: launches.append((args, options)))
    kernel = symm.requires_symm(backend=symm.BACKEND_VERBENA)(kernels.ask_for_the_size)
    kernel[(3,)](_Team(verbena.Backend.VERBENA), 7, BACKEND=4, num_warps=8, extern_libs={"other": "other.bc"})
    (args, options), = launches
    assert args == (1 << 40, 7) and (options["grid"], options["BACKEND"], options["num_warps"]) == ((3,), 4, 8)
    assert options["extern_libs"] == {**kernel.extern_libs, "other": "other.bc"}
    with pytest.raises(RuntimeError, match="linked for VERBENA, but the backend of the context is NCCL"):
        kernel[(1,)](ctx_ptr=_Team(verbena.Backend.NCCL), sizes=7, BACKEND=4)
    assert len(launches) == 1
