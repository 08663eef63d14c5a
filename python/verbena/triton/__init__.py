"""Symmetric memory for Triton kernels: the primitives, their constants, and @requires_symm, which links a kernel with the primitives."""
from verbena.triton.constants import *  # noqa: F401,F403
from verbena.triton.kernel import SymmKernel, requires_symm, requires_torch_symm
from verbena.triton.primitives import *  # noqa: F401,F403
from verbena.triton import constants as _constants, primitives as _primitives

__all__ = ["SymmKernel", "requires_symm", "requires_torch_symm"]
__all__ += [name for name in vars(_constants) if name.isupper()]
__all__ += [name for name in vars(_primitives) if name.startswith("symm_")]
