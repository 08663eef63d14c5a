"""The table by which a group chooses between Verbena's kernels and its fallback group (NCCL, or Gloo without GPUs).

A choice depends only on values that are the same on all ranks: operation, type, reduction and size."""
import dataclasses

MOVED = "any"
# Size of the largest messages for which Verbena was compared with NCCL (docs/collectives.md).
MAX_BYTES = 64 << 20
_FLOATS = ("float32", "float16", "bfloat16")
_REDUCED = (*_FLOATS, "int32")


@dataclasses.dataclass(frozen=True)
class Row:
    """A row of the table: an operation, and the calls of this operation that Verbena's kernels serve.

    Attributes:
        types: the types that a kernel supports; "any" if the operation only moves bytes; empty if there is no kernel.
        reductions: the reductions that a kernel supports; empty for operations without a reduction.
        max_bytes: maximum size of the tensor, or of one rank's message if ranks exchange messages; 0 for no limit.
        how: how a kernel serves the operation, or why no kernel does.
    """
    operation: str
    types: tuple[str, ...] = (MOVED,)
    reductions: tuple[str, ...] = ()
    max_bytes: int = MAX_BYTES
    how: str = "one kernel"


_SUMS = ("SUM", "AVG", "MIN", "MAX", "PREMUL_SUM")
TABLE = {row.operation: row for row in [
    Row("all_reduce", _REDUCED, _SUMS, how="one kernel; PREMUL_SUM first multiplies and rounds to the tensor's type"),
    Row("reduce", _REDUCED, _SUMS, how="an all-reduce; only the root keeps the result"),
    Row("reduce_scatter", _REDUCED, _SUMS),
    Row("all_gather"),
    Row("broadcast"),
    Row("gather", how="an all-to-all with counts; only messages from or to the root have elements"),
    Row("scatter", how="an all-to-all with counts; only messages from or to the root have elements"),
    Row("all_to_all", how="one kernel; with split sizes, the kernel that takes counts"),
    Row("barrier", how="an all-reduce of one element, for which the host then waits"),
    Row("send", (), max_bytes=0, how="no kernel: Verbena's kernels need all ranks of the group"),
    Row("recv", (), max_bytes=0, how="no kernel: Verbena's kernels need all ranks of the group"),
    Row("all_reduce_sparse", (), max_bytes=0, how="no kernel reads sparse tensors"),
]}


def find_refusal(operation: str, dtype: str, length_bytes: int = 0, reduction: str = "") -> str:
    """Returns the reason why no kernel serves a call, or "" if a kernel does.

    Args:
        operation: the name in the table, such as "all_reduce".
        dtype: the type's name, such as "float32".
        length_bytes: size of the tensor, or of one rank's message, in bytes.
        reduction: the reduction's name, such as "SUM"; "" for operations without a reduction.
    """
    row = TABLE[operation]
    if not row.types:
        return row.how
    if MOVED not in row.types and dtype not in row.types:
        return f"no kernel reduces {dtype}"
    if row.reductions and reduction not in row.reductions:
        return f"no kernel for {reduction}"
    if reduction == "PREMUL_SUM" and dtype not in _FLOATS:
        return f"PREMUL_SUM of {dtype} is not defined"
    if row.max_bytes and length_bytes > row.max_bytes:
        return f"larger than {row.max_bytes >> 20} MiB"
    return ""


def format_table() -> list[str]:
    lines = [f"{'operation':<18} {'by Verbena':<34} {'reductions':<30} {'up to':<9} how"]
    for row in TABLE.values():
        types = ", ".join(row.types) or "-"
        limit = f"{row.max_bytes >> 20} MiB" if row.max_bytes else "-"
        lines.append(f"{row.operation:<18} {types:<34} {', '.join(row.reductions) or '-':<30} {limit:<9} {row.how}")
    return lines
