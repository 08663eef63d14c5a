"""Verbena's collectives as a backend of torch.distributed.

    import verbena.c10d                                          # PyTorch 2.15 and newer find an installed package without it
    torch.distributed.init_process_group("cpu:gloo,cuda:verbena")

Calls that no kernel serves go to NCCL in the same group; verbena.c10d.explain() prints which, and why.
docs/pytorch.md describes streams, errors and limits."""
from verbena.c10d.backend import VerbenaBackend, VerbenaGroup, explain, register
from verbena.c10d.table import TABLE, Row, find_refusal

__all__ = ["TABLE", "Row", "VerbenaBackend", "VerbenaGroup", "explain", "find_refusal", "register"]

register()
