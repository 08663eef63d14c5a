"""Computes which ranks form which groups: pure arithmetic.

The ranks are a grid whose axes are listed in an order string, the fastest-varying first, as Megatron writes it:
"tp-cp-ep-dp-pp". A group of some axes has the ranks that differ in these alone, in the order of their coordinates."""
import math
from collections.abc import Iterable, Mapping, Sequence

Groups = list[list[int]]

# vLLM's and AITER's grid, ExternalDP x DP x PP x PCP x TP, whose last axis varies fastest. `edp` is what is left over.
ENGINE_ORDER = "tp-pcp-pp-dp-edp"
MEGATRON_ORDER = "tp-cp-ep-dp-pp"


class GroupLayout:
    """A grid of ranks. `sizes` by axis; an axis of the order without a size is 1, and one may be None: the rest of the
    world."""

    def __init__(self, world_size: int, order: str, sizes: Mapping[str, int | None]) -> None:
        axes = order.split("-")
        if len(set(axes)) != len(axes) or not all(axes):
            raise ValueError(f"order {order!r} names an axis twice, or no axis")
        unknown = [axis for axis, size in sizes.items() if axis not in axes and size != 1]
        if unknown:
            raise ValueError(f"the order {order!r} does not name {', '.join(unknown)}")
        self.world_size = world_size
        self.order = order
        self.sizes = {axis: sizes.get(axis, 1) for axis in axes}
        wrong = [f"{axis} {size}" for axis, size in self.sizes.items() if size is not None and size < 1]
        free = [axis for axis, size in self.sizes.items() if size is None]
        known = math.prod(size for size in self.sizes.values() if size is not None)
        if wrong or len(free) > 1:
            raise ValueError(f"sizes must be at least 1, and at most one may be None: {', '.join(wrong + free)}")
        if world_size % known != 0 or (not free and world_size != known):
            told = " x ".join(f"{axis} {size}" for axis, size in self.sizes.items() if size is not None)
            raise ValueError(f"{world_size} ranks cannot be laid out as {told} = {known}: the product must "
                             f"{'divide' if free else 'be'} the number of ranks")
        for axis in free:
            self.sizes[axis] = world_size // known
        stride, self._strides = 1, {}
        for axis in axes:
            self._strides[axis] = stride
            stride *= self._size(axis)

    def _size(self, axis: str) -> int:
        return self.sizes[axis] or 1

    def list_groups(self, axes: str, slowest_first: str | None = None) -> Groups:
        """Returns the groups of the named axes, such as "tp" or "tp-dp", in the order of their other coordinates. Each rank
        is in one. The first axis of the order varies fastest among the members, or the last axis of `slowest_first`."""
        wanted = axes.split("-")
        unknown = set(wanted) - set(self.sizes)
        if unknown:
            raise ValueError(f"no axis {', '.join(sorted(unknown))} in the order {self.order!r}")
        inner = [axis for axis in self.sizes if axis in wanted]
        if slowest_first is not None:
            inner = slowest_first.split("-")[::-1]
        steps = self._walk(inner)
        return [[start + step for step in steps] for start in self._walk([axis for axis in self.sizes if axis not in wanted])]

    def _walk(self, axes: Iterable[str]) -> list[int]:
        """All sums of the axes' steps, through the first axis fastest."""
        places = [0]
        for axis in axes:
            stride, size = self._strides[axis], self._size(axis)
            places = [start + place for start in range(0, stride * size, stride) for place in places]
        return places


def lay_out_engine(world_size: int, tp: int = 1, pp: int = 1, dp: int = 1, pcp: int = 1, dcp: int = 1) -> dict[str, Groups]:
    """Returns the groups of AITER and vLLM: the grid ExternalDP x DP x PP x PCP x TP. EP is all of DP, PCP and TP at one
    pipeline stage; DCP groups are parts of TP, or with PCP > 1 of (PCP, TP), whose PCP then varies fastest."""
    layout = GroupLayout(world_size, ENGINE_ORDER, {"tp": tp, "pcp": pcp, "pp": pp, "dp": dp, "edp": None})
    if (tp * pcp if pcp > 1 else tp) % dcp != 0:
        raise ValueError(f"decode context groups of {dcp} do not divide tp {tp}")
    inner = layout.list_groups("tp-pcp", slowest_first="tp-pcp") if dcp > 1 and pcp > 1 else layout.list_groups("tp")
    return {
        "tp": layout.list_groups("tp"),
        "dcp": [group[place:place + dcp] for group in inner for place in range(0, len(group), dcp)],
        "pcp": layout.list_groups("pcp"),
        "pp": layout.list_groups("pp"),
        "dp": layout.list_groups("dp"),
        "ep": layout.list_groups("dp-pcp-tp"),
    }


def lay_out_megatron(world_size: int, tp: int = 1, pp: int = 1, cp: int = 1, ep: int = 1, expert_tp: int | None = None,
                     order: str = MEGATRON_ORDER) -> dict[str, Groups]:
    """Returns Megatron's groups: dense layers over tp, cp, dp, pp and experts over tp, ep, dp, pp, two grids over the same
    ranks with the same pipeline."""
    expert_tp = tp if expert_tp is None else expert_tp
    if "ep" not in order.split("-"):
        if ep != 1:
            raise ValueError(f"the order {order!r} does not name ep")
        order += "-ep"
    dense = GroupLayout(world_size, order, {"tp": tp, "cp": cp, "pp": pp, "dp": None})
    experts = GroupLayout(world_size, order, {"tp": expert_tp, "ep": ep, "pp": pp, "dp": None})
    if dense.list_groups("pp") != experts.list_groups("pp"):
        raise ValueError(f"with order {order!r}, experts' pipelines are not those of the dense layers: let pp be last")
    groups = {name: dense.list_groups(axes) for name, axes in {
        "tp": "tp", "cp": "cp", "pp": "pp", "dp": "dp", "dp_cp": "dp-cp", "tp_cp": "tp-cp", "tp_dp": "tp-dp",
        "tp_dp_cp": "tp-dp-cp", "mp": "tp-pp"}.items()}
    return groups | {name: experts.list_groups(axes) for name, axes in {
        "ep": "ep", "expert_tp": "tp", "tp_ep": "tp-ep", "tp_ep_pp": "tp-ep-pp", "expert_dp": "dp"}.items()}


def check_custom(world_size: int, ranks: Sequence[int] | Sequence[Sequence[int]]) -> Groups:
    """Checks custom groups: a list of ranks is one group, a list of lists several; each rank once, all groups of equal
    length."""
    groups = [list(group) for group in ranks if isinstance(group, Sequence)]
    if len(groups) != len(ranks):
        if groups:
            raise ValueError("custom groups are a list of ranks, or a list of lists of ranks, not both")
        groups = [[rank for rank in ranks if isinstance(rank, int)]]
    named = sorted(rank for group in groups for rank in group)
    if named != list(range(world_size)):
        twice = sorted({rank for rank, other in zip(named, named[1:], strict=False) if rank == other})
        missing = sorted(set(range(world_size)) - set(named))
        foreign = sorted(set(named) - set(range(world_size)))
        raise ValueError("each rank must be in exactly one group: " + "; ".join(
            f"{what} {some[:8]}" for what, some in (("twice", twice), ("missing", missing), ("unknown", foreign)) if some))
    if len({len(group) for group in groups}) != 1:
        raise ValueError(f"all groups must have the same length, not {sorted({len(group) for group in groups})}")
    return groups
