"""Who serves which call: the one table by which a group chooses between Verbena's kernels and its fallback group.

A choice depends on nothing but what is the same on all ranks: the operation, the type, the reduction, the size."""
import dataclasses

MOVED = "any"
# No larger message has been measured beside NCCL's (docs/collectives.md).
MAX_BYTES = 64 << 20
_FLOATS = ("float32", "float16", "bfloat16")
_REDUCED = (*_FLOATS, "int32")


@dataclasses.dataclass(frozen=True)
class Row:
    """One operation.

    Attributes:
        types: that a kernel takes; "any" where bytes are moved; none where there is no kernel.
        reductions: that a kernel does; none where nothing is reduced.
        max_bytes: of a tensor, or of one rank's message where ranks exchange messages; 0: no limit.
        how: how a kernel serves it, or why none does.
    """
    operation: str
    types: tuple[str, ...] = (MOVED,)
    reductions: tuple[str, ...] = ()
    max_bytes: int = MAX_BYTES
    how: str = "one kernel"


_SUMS = ("SUM", "AVG", "MIN", "MAX", "PREMUL_SUM")
TABLE = {row.operation: row for row in [
    Row("all_reduce", _REDUCED, _SUMS, how="one kernel; PREMUL_SUM multiplies first, rounded to the tensor's type"),
    Row("reduce", _REDUCED, _SUMS, how="an all-reduce whose result only the root keeps"),
    Row("reduce_scatter", _REDUCED, _SUMS),
    Row("all_gather"),
    Row("broadcast"),
    Row("gather", how="an all-to-all with counts, all of them the root's"),
    Row("scatter", how="an all-to-all with counts, all of them the root's"),
    Row("all_to_all", how="one kernel; with split sizes the kernel with counts"),
    Row("barrier", how="an all-reduce of one element, then the host waits for it"),
    Row("send", (), max_bytes=0, how="no kernel: a message between two ranks concerns no other rank"),
    Row("recv", (), max_bytes=0, how="no kernel: a message between two ranks concerns no other rank"),
    Row("all_reduce_sparse", (), max_bytes=0, how="no kernel reads sparse tensors"),
]}


def find_refusal(operation: str, dtype: str, length_bytes: int = 0, reduction: str = "") -> str:
    """Returns why no kernel serves a call; "" if one does.

    Args:
        dtype: such as "float32".
        reduction: such as "SUM"; "" where nothing is reduced.
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
