"""The decorator @requires_symm, which links a Triton kernel with the primitives."""
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
    """A Triton kernel linked with the primitives. Launch it as `kernel[grid](...)`. A team or workspace may be passed for a
    ctx_ptr parameter."""

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
        """Compiles the kernel without a GPU, and returns Triton's compiled kernel, whose `asm` has "ptx" and "cubin".

        Args:
            signature: Triton's type of every parameter, such as "i64", "*fp32" or "constexpr".
            constexprs: the values of the constexpr parameters.
            capability: the compute capability, such as 80 or 90.
        """
        source = triton.compiler.ASTSource(self.jit_function, dict(signature), dict(constexprs))
        target = GPUTarget("cuda", capability, _WARP_THREADS)
        with _telling_what_is_unreadable():
            return triton.compile(source, target=target,
                                  options={**options, "extern_libs": self._find_libraries(capability)})

    def _find_libraries(self, capability: int) -> dict[str, str]:
        """Returns the libraries to link for a compute capability. The libraries depend on the capability, because a vendor's bitcode may be
        for only one GPU architecture."""
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
            raise RuntimeError(f"{self.__name__} is linked for {served}, but the backend of the context is {value.backend.name}. Pass this "
                               "backend to @requires_symm")
        return value.device_context


def requires_symm(jit_func_or_backend: Any = None, backend: Any = None) -> Any:
    """Links a @triton.jit kernel with the primitives. Write @requires_symm, @requires_symm(BACKEND_...) or
    @requires_symm(backend=BACKEND_...) above @triton.jit."""
    given = unwrap(jit_func_or_backend)
    if given is None or isinstance(given, int):
        if given is not None and backend is not None:
            raise TypeError("@requires_symm got two backends. Pass only one")
        return functools.partial(_decorate, backend=_as_backend(backend if given is None else given))
    return _decorate(given, _as_backend(backend))


requires_torch_symm = requires_symm  # the name in the API that was proposed for PyTorch


def _decorate(function: Any, backend: Backend) -> SymmKernel:
    if not isinstance(function, KernelInterface) or isinstance(function, SymmKernel):
        raise TypeError(f"@requires_symm must be placed above @triton.jit, and only once; {function!r} is not a Triton kernel")
    return SymmKernel(function, backend)


def _find_jit_function(launched: Any) -> JITFunction:
    """Returns the JITFunction inside @triton.autotune and @triton.heuristics."""
    while not isinstance(launched, JITFunction):
        if isinstance(launched, SymmKernel) or not hasattr(launched, "fn"):
            raise TypeError(f"@requires_symm must be placed above @triton.jit, and only once; {launched!r} is not a Triton kernel")
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
    """Returns the libraries with which a kernel is linked, by name. For DEFAULT, these are the libraries of all backends or,
    if one of them is missing, Verbena's own library. For any other backend, raises LibraryNotFound if the backend's library is missing."""
    if backend == Backend.DEFAULT:
        try:
            return _find_all(backend)
        except LibraryNotFound:
            return _find_all(Backend.VERBENA)
    return _find_all(backend)


@contextlib.contextmanager
def _telling_what_is_unreadable() -> Iterator[None]:
    """Adds an explanation to errors about bitcode that this Triton's LLVM cannot read. Surrounds launches, because a launch may compile the
    kernel."""
    try:
        yield
    except ValueError as error:
        if "Failed to parse library" not in str(error):
            raise
        hints = [f"{row.vendor.hint}: set {row.vendor.variable} to this library's folder" for row in BACKENDS.values() if row.vendor.hint]
        raise BackendUnavailable(f"{error}. The file was written by a newer LLVM than the LLVM of Triton {triton.__version__}. "
                                 f"{'. '.join(hints)}") from None


def _find_all(backend: Backend) -> dict[str, str]:
    libraries = {find_bitcode(backend): LibraryFinder.find_device_library(backend)}
    for one in find_called_vendors(backend):
        libraries[BACKENDS[one].vendor.device] = LibraryFinder.find_vendor_bitcode(one)
        modules.watch()
    return libraries
