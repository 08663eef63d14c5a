"""Computes which ranks form which groups, without communication.

The ranks form a grid. An order string lists the grid's axes, the fastest-varying first, as in Megatron: "tp-cp-ep-dp-pp". A group over
some axes contains the ranks that differ only in the coordinates of these axes."""
import math
from collections.abc import Iterable, Mapping, Sequence

Groups = list[list[int]]

# The grid of vLLM and AITER is ExternalDP x DP x PP x PCP x TP, whose last axis varies fastest. `edp` is ExternalDP, whose size follows
# from the other sizes.
ENGINE_ORDER = "tp-pcp-pp-dp-edp"
MEGATRON_ORDER = "tp-cp-ep-dp-pp"


class GroupLayout:
    """A grid of ranks.

    Args:
        world_size: number of ranks.
        order: the axes, separated by "-", the fastest-varying first.
        sizes: the size of each axis; an axis without a size has size 1. One size may be None. This size is then chosen so that the product
            of all sizes is the number of ranks.
    """

    def __init__(self, world_size: int, order: str, sizes: Mapping[str, int | None]) -> None:
        axes = order.split("-")
        if len(set(axes)) != len(axes) or not all(axes):
            raise ValueError(f"the order {order!r} names an axis twice, or has an empty name")
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
            raise ValueError(f"sizes must be at least 1, and at most one size may be None: {', '.join(wrong + free)}")
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
        """Returns the groups over the named axes, such as "tp" or "tp-dp". Each rank is in exactly one group. Groups are sorted by their
        coordinates on the axes that are not named. Within a group, the axis that comes first in the grid's order varies fastest. If
        `slowest_first` is given, the last axis in `slowest_first` varies fastest."""
        wanted = axes.split("-")
        unknown = set(wanted) - set(self.sizes)
        if unknown:
            raise ValueError(f"unknown axes: {', '.join(sorted(unknown))}; the order is {self.order!r}")
        inner = [axis for axis in self.sizes if axis in wanted]
        if slowest_first is not None:
            inner = slowest_first.split("-")[::-1]
        steps = self._walk(inner)
        return [[start + step for step in steps] for start in self._walk([axis for axis in self.sizes if axis not in wanted])]

    def _walk(self, axes: Iterable[str]) -> list[int]:
        """Returns the rank offsets of all points on the given axes; the first axis varies fastest."""
        places = [0]
        for axis in axes:
            stride, size = self._strides[axis], self._size(axis)
            places = [start + place for start in range(0, stride * size, stride) for place in places]
        return places


def lay_out_engine(world_size: int, tp: int = 1, pp: int = 1, dp: int = 1, pcp: int = 1, dcp: int = 1) -> dict[str, Groups]:
    """Returns the groups of AITER and vLLM, on the grid ExternalDP x DP x PP x PCP x TP. PCP and DCP are prefill and decode context
    parallelism. An EP group contains all ranks along DP, PCP and TP at one pipeline stage. DCP groups are parts of a TP group or, if PCP >
    1, parts of a group along PCP and TP, in which PCP varies fastest."""
    layout = GroupLayout(world_size, ENGINE_ORDER, {"tp": tp, "pcp": pcp, "pp": pp, "dp": dp, "edp": None})
    if (tp * pcp if pcp > 1 else tp) % dcp != 0:
        raise ValueError(f"the size of decode context groups, dcp {dcp}, does not divide tp {tp} x pcp {pcp}")
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
    """Returns Megatron's groups. Two grids cover the same ranks and have the same pipeline stages. The grid of the dense layers has the
    axes tp, cp, dp and pp; the grid of the experts has the axes tp, ep, dp and pp."""
    expert_tp = tp if expert_tp is None else expert_tp
    if "ep" not in order.split("-"):
        if ep != 1:
            raise ValueError(f"the order {order!r} does not name ep")
        order += "-ep"
    dense = GroupLayout(world_size, order, {"tp": tp, "cp": cp, "pp": pp, "dp": None})
    experts = GroupLayout(world_size, order, {"tp": expert_tp, "ep": ep, "pp": pp, "dp": None})
    if dense.list_groups("pp") != experts.list_groups("pp"):
        raise ValueError(f"with order {order!r}, the pipelines of experts and of dense layers have different ranks. Put pp last in the "
                         f"order")
    groups = {name: dense.list_groups(axes) for name, axes in {
        "tp": "tp", "cp": "cp", "pp": "pp", "dp": "dp", "dp_cp": "dp-cp", "tp_cp": "tp-cp", "tp_dp": "tp-dp",
        "tp_dp_cp": "tp-dp-cp", "mp": "tp-pp"}.items()}
    return groups | {name: experts.list_groups(axes) for name, axes in {
        "ep": "ep", "expert_tp": "tp", "tp_ep": "tp-ep", "tp_ep_pp": "tp-ep-pp", "expert_dp": "dp"}.items()}


def check_custom(world_size: int, ranks: Sequence[int] | Sequence[Sequence[int]]) -> Groups:
    """Checks custom groups, and returns a list of groups. If `ranks` is a list of ranks, it is a single group. If it is a list of lists,
    each inner list is a group. Each rank must be in exactly one group, and all groups must have the same length."""
    groups = [list(group) for group in ranks if isinstance(group, Sequence)]
    if len(groups) != len(ranks):
        if groups:
            raise ValueError("custom groups must be a list of ranks, or a list of lists of ranks, not a mix of both")
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
