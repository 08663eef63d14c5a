"""Group layouts against lists that were written down from public documents, and against the engines' own formulas."""
import itertools
import math

import pytest
from verbena.distributed.layout import GroupLayout, check_custom, lay_out_engine, lay_out_megatron


def by(*groups):
    return [list(group) for group in groups]


def test_seed():
    """The table of AITER's guide: DP 2, TP 4."""
    groups = lay_out_engine(8, tp=4, dp=2)
    assert groups["tp"] == by(range(4), range(4, 8))
    assert groups["dp"] == by((0, 4), (1, 5), (2, 6), (3, 7))
    assert groups["ep"] == by(range(8))
    assert groups["pp"] == groups["pcp"] == by(*((rank,) for rank in range(8)))


def test_sixteen_ranks():
    groups = lay_out_engine(16, tp=4, pp=2, dp=2)
    assert groups["pp"] == by((0, 4), (1, 5), (2, 6), (3, 7), (8, 12), (9, 13), (10, 14), (11, 15))
    assert groups["dp"] == by((0, 8), (1, 9), (2, 10), (3, 11), (4, 12), (5, 13), (6, 14), (7, 15))
    assert groups["ep"] == by([0, 1, 2, 3, 8, 9, 10, 11], [4, 5, 6, 7, 12, 13, 14, 15])


def test_external_data_parallelism():
    groups = lay_out_engine(8, tp=2, dp=2)
    assert groups["dp"] == by((0, 2), (1, 3), (4, 6), (5, 7))
    assert groups["ep"] == by(range(4), range(4, 8))


def test_context_groups():
    groups = lay_out_engine(8, tp=4, pcp=2, dcp=2)
    assert groups["pcp"] == by((0, 4), (1, 5), (2, 6), (3, 7))
    assert groups["dcp"] == by((0, 4), (1, 5), (2, 6), (3, 7))
    assert lay_out_engine(8, tp=4, dcp=2)["dcp"] == by((0, 1), (2, 3), (4, 5), (6, 7))
    with pytest.raises(ValueError, match="does not divide"):
        lay_out_engine(8, tp=4, dcp=3)


def test_megatron_documentation():
    """initialize_model_parallel's own example: 16 GPUs, tensor 2, pipeline 4."""
    groups = lay_out_megatron(16, tp=2, pp=4)
    assert groups["dp"] == by((0, 2), (1, 3), (4, 6), (5, 7), (8, 10), (9, 11), (12, 14), (13, 15))
    assert groups["tp"] == by(*((rank, rank + 1) for rank in range(0, 16, 2)))
    assert groups["pp"] == by((0, 4, 8, 12), (1, 5, 9, 13), (2, 6, 10, 14), (3, 7, 11, 15))


def transpose(grid_shape, axes):
    """arange(...).reshape(grid_shape).transpose(axes), flat: the engines' formulas without NumPy."""
    strides = [math.prod(grid_shape[axis + 1:]) for axis in range(len(grid_shape))]
    places = itertools.product(*(range(grid_shape[axis]) for axis in axes))
    return [sum(place * strides[axis] for place, axis in zip(places_of, axes, strict=True)) for places_of in places]


def cut(flat, length):
    return [flat[place:place + length] for place in range(0, len(flat), length)]


@pytest.mark.parametrize(("edp", "dp", "pp", "tp"), list(itertools.product((1, 2, 3), (1, 2, 4), (1, 2, 3), (1, 2, 4))))
def test_engines_formulas(edp, dp, pp, tp):
    """Compares the groups with the engines' formulas: the ranks are reshaped to (-1, dp, pp, tp); TP groups are view(-1, tp), PP groups
    transpose(2, 3), DP groups transpose(1, 3), and EP groups transpose(1, 2)."""
    shape = (edp, dp, pp, tp)
    groups = lay_out_engine(math.prod(shape), tp=tp, pp=pp, dp=dp)
    assert groups["tp"] == cut(transpose(shape, (0, 1, 2, 3)), tp)
    for name, axes, length in (("pp", (0, 1, 3, 2), pp), ("dp", (0, 3, 2, 1), dp), ("ep", (0, 2, 1, 3), dp * tp)):
        assert sorted(groups[name]) == sorted(cut(transpose(shape, axes), length)), name


@pytest.mark.parametrize("order", ["-".join(axes) for axes in itertools.permutations(("tp", "cp", "ep", "dp", "pp"))])
def test_every_order(order):
    """Two ranks are in the same group exactly if all their other coordinates are equal, by the definition of coordinates."""
    sizes = {"tp": 2, "cp": 3, "ep": 1, "dp": 2, "pp": 2}
    layout = GroupLayout(24, order, sizes)
    axes = order.split("-")

    def coordinates(rank):
        found = {}
        for axis in axes:
            rank, found[axis] = divmod(rank, sizes[axis])
        return found

    for count in (1, 2, 3):
        for wanted in itertools.combinations(axes, count):
            expected = {}
            for rank in range(24):
                key = tuple(value for axis, value in coordinates(rank).items() if axis not in wanted)
                expected.setdefault(key, []).append(rank)
            assert layout.list_groups("-".join(wanted)) == list(expected.values())


def test_experts():
    groups = lay_out_megatron(16, tp=2, pp=2, ep=4, expert_tp=1)
    assert groups["ep"] == by((0, 1, 2, 3), (4, 5, 6, 7), (8, 9, 10, 11), (12, 13, 14, 15))
    assert groups["expert_dp"] == by((0, 4), (1, 5), (2, 6), (3, 7), (8, 12), (9, 13), (10, 14), (11, 15))
    with pytest.raises(ValueError, match="Put pp last"):
        lay_out_megatron(16, tp=2, pp=2, ep=4, expert_tp=1, order="tp-cp-ep-pp-dp")


def test_what_cannot_be():
    with pytest.raises(ValueError, match="7 ranks cannot be laid out as tp 2"):
        lay_out_engine(7, tp=2)
    with pytest.raises(ValueError, match="names an axis twice"):
        GroupLayout(4, "tp-tp", {})
    with pytest.raises(ValueError, match="does not name pp"):
        GroupLayout(4, "tp-dp", {"pp": 2, "tp": 2})
    with pytest.raises(ValueError, match="sizes must be at least 1"):
        GroupLayout(4, "tp-dp", {"tp": 0, "dp": 4})
    with pytest.raises(ValueError, match="unknown axes: cp"):
        GroupLayout(4, "tp-dp", {"tp": 4}).list_groups("cp")


def test_custom():
    assert check_custom(4, [3, 1, 0, 2]) == [[3, 1, 0, 2]]
    assert check_custom(4, [[3, 1], (0, 2)]) == [[3, 1], [0, 2]]
    for ranks, told in (([0, 1, 1, 3], r"twice \[1\]; missing \[2\]"), ([[0, 1], [2, 4]], r"missing \[3\]; unknown \[4\]"),
                        ([[0], [1, 2, 3]], "same length"), ([[0, 1], 2, 3], "not a mix of both")):
        with pytest.raises(ValueError, match=told):
            check_custom(4, ranks)


def test_thousands_of_ranks():
    """Computes groups of thousands of ranks. The time is measured (docs/measurements) but not asserted."""
    groups = lay_out_engine(4096, tp=8, pp=8, dp=16)
    assert all(sorted(itertools.chain(*some)) == list(range(4096)) for some in groups.values())
