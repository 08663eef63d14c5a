"""Verbena's collectives as a backend of torch.distributed.

    import verbena.c10d                                          # not needed from PyTorch 2.15 on, if verbena is installed
    torch.distributed.init_process_group("cpu:gloo,cuda:verbena")

Calls for which Verbena has no kernel go to NCCL, in the same group; verbena.c10d.explain() lists these calls and the reasons.
docs/pytorch.md describes streams, errors and limits."""
from verbena.c10d.backend import VerbenaBackend, VerbenaGroup, explain, register
from verbena.c10d.table import TABLE, Row, find_refusal

__all__ = ["TABLE", "Row", "VerbenaBackend", "VerbenaGroup", "explain", "find_refusal", "register"]

register()
