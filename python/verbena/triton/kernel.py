"""@requires_symm: kernels that are linked with the primitives."""
import contextlib
import functools
from collections.abc import Iterator, Mapping
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.runtime.driver import driver
from triton.runtime.jit import JITFunction, KernelInterface

from verbena.backends import ANY_BITCODE, BACKENDS, find_bitcode, find_called_vendors
from verbena.constants import Backend
from verbena.finder import LibraryFinder, LibraryNotFound
from verbena.native import BackendUnavailable
from verbena.team import SymmetricTeam
from verbena.workspace import SymmetricWorkspace
from verbena.triton import modules
from verbena.triton.call import unwrap

_WARP_THREADS = 32


class SymmKernel(KernelInterface):
    """A kernel that is launched like any other, `kernel[grid](...)`. A team may be given where the kernel takes a ctx_ptr."""

    def __init__(self, launched: KernelInterface, backend: Backend) -> None:
        self.fn = launched
        self.jit_function = _find_jit_function(launched)
        self.backend = backend
        self.extern_libs = find_extern_libs(backend)
        self.served = {one for one in Backend if {find_bitcode(one), ANY_BITCODE} & set(self.extern_libs)}
        self._vendors = [one for one in find_called_vendors(backend) if BACKENDS[one].vendor.device in self.extern_libs]
        self._libraries: dict[int, dict[str, str]] = {}
        self.arg_names = self.jit_function.arg_names
        self.__name__ = self.jit_function.__name__
        self.__doc__ = self.jit_function.__doc__

    def run(self, *args: Any, **kwargs: Any) -> Any:
        libraries = self.extern_libs
        if self._vendors:
            modules.prepare_loaded()
            libraries = self._find_libraries(driver.active.get_current_target().arch)
        libraries = {**libraries, **dict(kwargs.pop("extern_libs", None) or {})}
        given = {name: self._as_argument(value) for name, value in kwargs.items()}
        with _telling_what_is_unreadable():
            return self.fn.run(*map(self._as_argument, args), **given, extern_libs=libraries)

    def compile(self, signature: Mapping[str, str], constexprs: Mapping[str, Any], capability: int,
                **options: Any) -> Any:
        """Compiles without a GPU, for a compute capability of 80, 90, ... `signature` has Triton's type of every parameter
        ("i64", "*fp32", "constexpr"). The result has the stages in its `asm`: "ptx", "cubin"."""
        source = triton.compiler.ASTSource(self.jit_function, dict(signature), dict(constexprs))
        target = GPUTarget("cuda", capability, _WARP_THREADS)
        with _telling_what_is_unreadable():
            return triton.compile(source, target=target,
                                  options={**options, "extern_libs": self._find_libraries(capability)})

    def _find_libraries(self, capability: int) -> dict[str, str]:
        """A vendor's bitcode may be for one kind of GPU alone."""
        if not self._vendors:
            return self.extern_libs
        if capability not in self._libraries:
            vendors = {BACKENDS[one].vendor.device: LibraryFinder.find_vendor_bitcode(one, capability)
                       for one in self._vendors}
            self._libraries[capability] = {**self.extern_libs, **vendors}
        return self._libraries[capability]

    def _as_argument(self, value: Any) -> Any:
        if not isinstance(value, SymmetricTeam | SymmetricWorkspace):
            return value
        if value.backend not in self.served:
            served = ", ".join(one.name for one in sorted(self.served))
            raise RuntimeError(f"{self.__name__} is linked for {served}, and the context is of {value.backend.name}")
        return value.device_context


def requires_symm(jit_func_or_backend: Any = None, backend: Any = None) -> Any:
    """Decorates a @triton.jit kernel, which is then linked with the primitives: @requires_symm, @requires_symm(BACKEND_...)
    or @requires_symm(backend=BACKEND_...)."""
    given = unwrap(jit_func_or_backend)
    if given is None or isinstance(given, int):
        if given is not None and backend is not None:
            raise TypeError("@requires_symm got two backends")
        return functools.partial(_decorate, backend=_as_backend(backend if given is None else given))
    return _decorate(given, _as_backend(backend))


requires_torch_symm = requires_symm  # the name of PyTorch's proposal


def _decorate(function: Any, backend: Backend) -> SymmKernel:
    if not isinstance(function, KernelInterface) or isinstance(function, SymmKernel):
        raise TypeError(f"@requires_symm must be placed above @triton.jit, once; {function!r} is not a Triton kernel")
    return SymmKernel(function, backend)


def _find_jit_function(launched: Any) -> JITFunction:
    """Below @triton.autotune and @triton.heuristics."""
    while not isinstance(launched, JITFunction):
        if isinstance(launched, SymmKernel) or not hasattr(launched, "fn"):
            raise TypeError(f"@requires_symm must be placed above @triton.jit, once; {launched!r} is not a Triton kernel")
        launched = launched.fn
    return launched


def _as_backend(backend: Any) -> Backend:
    value = unwrap(backend)
    try:
        return Backend.DEFAULT if value is None else Backend(value)
    except ValueError:
        names = ", ".join(f"BACKEND_{one.name}" for one in Backend)
        raise ValueError(f"{value!r} is not a backend; the backends are {names}") from None


def find_extern_libs(backend: Backend) -> dict[str, str]:
    """Returns the libraries that a kernel is linked with. DEFAULT: of all backends, or this library's alone if one of them
    is missing. Raises LibraryNotFound if a named backend is missing."""
    if backend == Backend.DEFAULT:
        try:
            return _find_all(backend)
        except LibraryNotFound:
            return _find_all(Backend.VERBENA)
    return _find_all(backend)


@contextlib.contextmanager
def _telling_what_is_unreadable() -> Iterator[None]:
    """A launch may be the compilation too."""
    try:
        yield
    except ValueError as error:
        if "Failed to parse library" not in str(error):
            raise
        hints = [f"{row.vendor.hint}; {row.vendor.variable} names its folder" for row in BACKENDS.values() if row.vendor.hint]
        raise BackendUnavailable(f"{error}: a newer LLVM than that of Triton {triton.__version__} has written it. "
                                 f"{'. '.join(hints)}") from None


def _find_all(backend: Backend) -> dict[str, str]:
    libraries = {find_bitcode(backend): LibraryFinder.find_device_library(backend)}
    for one in find_called_vendors(backend):
        libraries[BACKENDS[one].vendor.device] = LibraryFinder.find_vendor_bitcode(one)
        modules.watch()
    return libraries
