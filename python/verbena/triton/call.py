"""Emits calls of the bitcode's functions in Triton kernels."""
from typing import Any

import triton.language as tl
from triton.language import core

from verbena.backends import ANY_BITCODE, BACKENDS, find_bitcode
from verbena.constants import Backend

_LIMITS = {tl.int32: range(-2**31, 2**31), tl.int64: range(-2**63, 2**63)}


def call(semantic: Any, backend: Any, name: str, returned: tl.dtype, *arguments: tuple[Any, tl.dtype]) -> Any:
    """Emits a call of a function of the bitcode. Every thread of the block makes the call, with the same arguments."""
    check_linked(semantic, name, unwrap(backend))
    numbers = [_as_scalar(semantic, name, value, dtype) for value, dtype in arguments]
    signature = tuple(dtype for _, dtype in arguments)
    # The call is not pure: the compiler must not drop or merge calls, or move a call across another memory access.
    return core.extern_elementwise("", "", numbers, {signature: (name, returned)}, is_pure=False, _semantic=semantic)


def unwrap(value: Any) -> Any:
    return value.value if isinstance(value, tl.constexpr) else value


def check_linked(semantic: Any, name: str, backend: Any) -> None:
    """Raises an error if the kernel is not linked with the bitcode of the function `name`. Without this check, the assembler would report
    an undefined symbol."""
    if not isinstance(backend, int) or backend not in list(Backend):
        raise ValueError(f"{name}: backend must be a compile-time constant, one of BACKEND_*, not {backend}")
    linked = {entry[0] for entry in semantic.builder.options.extern_libs or ()}
    # ANY_BITCODE serves each backend. A call with BACKEND_DEFAULT may use the bitcode of any backend.
    keys = [row.bitcode for row in BACKENDS.values()] if backend == Backend.DEFAULT else [find_bitcode(Backend(backend))]
    if linked.isdisjoint([*keys, ANY_BITCODE]):
        raise RuntimeError(f"{name}: the kernel is compiled without the bitcode of this function. Decorate the kernel with "
                           f"@requires_symm(backend=BACKEND_{Backend(backend).name})")


def _as_scalar(semantic: Any, name: str, value: Any, dtype: tl.dtype) -> Any:
    value = unwrap(value)
    if isinstance(value, int):
        if value not in _LIMITS[dtype]:
            raise ValueError(f"{name}: {value} does not fit {dtype}")
        return semantic.scalar_constant(int(value), dtype)
    if not isinstance(value, tl.tensor):
        raise TypeError(f"{name}: {value!r} is neither an integer nor a pointer")
    if value.type.is_block():
        raise ValueError(f"{name} takes scalars only, because a tensor would mean one call for each element")
    if not (value.dtype.is_int() or value.dtype.is_ptr()) or (value.dtype.is_ptr() and dtype != tl.int64):
        raise TypeError(f"{name}: an argument has the type {value.dtype} instead of {dtype}")
    return semantic.cast(value, dtype)


def as_given(semantic: Any, address: Any, like: Any) -> Any:
    """Converts the address to the type of `like` if `like` is a pointer. Otherwise, returns the address as an integer."""
    like = unwrap(like)
    is_pointer = isinstance(like, tl.tensor) and like.dtype.is_ptr()
    return semantic.cast(address, like.dtype) if is_pointer else address


def find_element_size(name: str, given: Any, pointer: Any) -> Any:
    """Returns the given element size in bytes or, if it is None, the size of the pointer's elements."""
    given = unwrap(given)
    if given is not None:
        return given
    pointer = unwrap(pointer)
    if not (isinstance(pointer, tl.tensor) and pointer.dtype.is_ptr()):
        raise ValueError(f"{name}: an integer address has no element size. Pass element_size")
    return max(pointer.dtype.element_ty.primitive_bitwidth // 8, 1)


def find_program(semantic: Any) -> Any:
    """Returns this program's linear index in the grid. The functions in the bitcode number blocks in the same order."""
    x, y, z = (semantic.program_id(axis) for axis in range(3))
    width, height = (semantic.num_programs(axis) for axis in range(2))
    depth = semantic.mul(height, z, True)
    return semantic.add(x, semantic.mul(width, semantic.add(y, depth, True), True), True)
