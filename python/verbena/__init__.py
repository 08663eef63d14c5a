"""Symmetric memory between GPUs: the contexts, windows, teams and workspaces of libverbena.so. docs/words.md explains these words.

The module verbena.triton has the primitives (symm_*) for Triton kernels. `verbena` exports the same names, and imports Triton when one of
these names is first used."""
import importlib
from typing import Any

from verbena.builders import make_builder, make_context
from verbena.constants import Backend, ContextType, FenceScope, SignalCompare, SignalOperation, Status
from verbena.context import SymmetricContext, make_unique_id, set_log
from verbena.finder import LibraryFinder, LibraryNotFound, TorchSymmLibFinder
from verbena.native import BackendUnavailable, Result, VerbenaError
from verbena.pool import SymmetricPool
from verbena.team import SymmetricTeam
from verbena.window import SymmetricWindow
from verbena.workspace import SymmetricWorkspace

__version__ = "0.1.0"

__all__ = [
    "Backend", "BackendUnavailable", "ContextType", "FenceScope", "LibraryFinder", "LibraryNotFound", "Result",
    "SignalCompare", "SignalOperation", "Status", "SymmetricContext", "SymmetricPool", "SymmetricTeam",
    "SymmetricWindow", "SymmetricWorkspace", "TorchSymmLibFinder", "VerbenaError", "make_builder", "make_context", "make_unique_id", "set_log",
]


def __getattr__(name: str) -> Any:
    is_prefixed = name.startswith(("symm_", "BACKEND_", "FENCE_", "SIGNAL_", "REDUCE_", "DTYPE_"))
    if is_prefixed or name in ("requires_symm", "requires_torch_symm"):
        return getattr(importlib.import_module("verbena.triton"), name)
    raise AttributeError(f"module 'verbena' has no attribute '{name}'")
