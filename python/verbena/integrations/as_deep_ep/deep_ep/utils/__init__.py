"""Names that users of DeepEP import from deep_ep.utils."""
from typing import Any

from verbena.integrations.deep_ep import EventHandle, EventOverlap

__all__ = ["EventHandle", "EventOverlap", "check_nvlink_connections"]


def check_nvlink_connections(group: Any) -> None:
    """Does nothing, because verbena.SymmetricContext itself reports ranks that cannot reach each other."""
