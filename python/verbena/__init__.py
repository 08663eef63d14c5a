"""Symmetric memory between GPUs: contexts, windows, teams and workspaces of libverbena.so; kernels in Triton by verbena.triton.

What verbena.triton has can be imported from here too; Triton is loaded when it is first asked for."""
import importlib
from typing import Any

from verbena.builders import make_builder, make_context
from verbena.constants import Backend, ContextType, FenceScope, SignalCompare, SignalOperation, Status
from verbena.context import SymmetricContext, make_unique_id, set_log
from verbena.finder import LibraryFinder, LibraryNotFound
from verbena.native import BackendUnavailable, Result, VerbenaError
from verbena.pool import SymmetricPool
from verbena.team import SymmetricTeam
from verbena.window import SymmetricWindow
from verbena.workspace import SymmetricWorkspace

__version__ = "0.1.0"

__all__ = [
    "Backend", "BackendUnavailable", "ContextType", "FenceScope", "LibraryFinder", "LibraryNotFound", "Result",
    "SignalCompare", "SignalOperation", "Status", "SymmetricContext", "SymmetricPool", "SymmetricTeam",
    "SymmetricWindow", "SymmetricWorkspace", "VerbenaError", "make_builder", "make_context", "make_unique_id", "set_log",
]


def __getattr__(name: str) -> Any:
    if name.startswith(("symm_", "BACKEND_", "FENCE_", "SIGNAL_", "REDUCE_", "DTYPE_")) or name == "requires_symm":
        return getattr(importlib.import_module("verbena.triton"), name)
    raise AttributeError(f"module 'verbena' has no attribute '{name}'")
