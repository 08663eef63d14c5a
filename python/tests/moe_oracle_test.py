"""Compares verbena.moe on emulated GPUs, bit by bit, with the results of moe_oracle.py. Shapes, routing, types and orders of sums are drawn
from a seed. The seed changes every day; MOE_SEED=n repeats the run of a certain day."""
import fractions
import os
import time

import pytest

import driver
import verbena
import verbena.moe
import verbena.ops.moe
from ranks import run_ranks

torch = pytest.importorskip("torch")
np = pytest.importorskip("numpy")

import moe_oracle  # noqa: E402 (needs numpy)

CASES = 6  # of a number of ranks
FLOAT8 = getattr(torch, "float8_e4m3fn", None)
KINDS = {"bfloat16": torch.bfloat16, "float16": torch.float16}


def _find_seed():
    return int(os.environ.get("MOE_SEED") or time.strftime("%Y%m%d", time.gmtime()))


class _Case:
    """What all ranks do, the same on whatever rank draws it."""

    def __init__(self, seed, ranks, number):
        random = np.random.default_rng([seed, ranks, number])
        self.random = random
        top_k = int(random.choice([1, 2, 3, 6, 8, 32]))
        self.shape = moe_oracle.Shape(ranks, ranks * int(random.integers(1, 9)), int(random.choice([1, 5, 33, 40])), top_k)
        self.hidden = 8 * int(random.integers(1, 40))
        # What a dispatch moves; a combine's rows are of 16 bits.
        self.kind = str(random.choice(["bfloat16", "float16"]))
        self.moved = str(random.choice(["rows", "fp8_block", "fp8_block_power", "fp8_block_exponent", "float8", "float32"]))
        if FLOAT8 is None and "8" in self.moved:
            self.moved = "rows"
        if self.moved.startswith("fp8"):
            self.hidden = -(-self.hidden // 16) * 16
        self.id_type = random.choice([np.int32, np.int64])
        self.has_weights, self.has_scales = bool(random.integers(4)), self.moved in ("float8", "float32") and bool(random.integers(2))
        self.phased, self.blocks = bool(random.integers(2)), int(random.integers(1, 3))
        self.tokens = [self._draw_tokens(kind) for kind in random.integers(0, 5, ranks)]
        self.rows = [self._draw_bits(len(one.ids), self.hidden) for one in self.tokens]
        self.scales = [random.integers(0, 256, (len(one.ids), 7), np.uint8) for one in self.tokens]
        place = (ranks, self.shape.max_tokens)
        # Exact rows want the counts of what a kernel has received, before the next one runs.
        self.grouping = str(random.choice(["rank", "expert", "ragged"]))
        self.alignment, self.is_exact = (int(random.choice([1, 4, 128])), bool(random.integers(2))) if self.grouping == "ragged" else (1, False)
        self.column_scales, self.is_repeated = self.moved.startswith("fp8") and bool(random.integers(2)), bool(random.integers(2))
        alignment = self.alignment if self.grouping == "ragged" else None
        self.groups = None if self.grouping == "rank" else [
            moe_oracle.group(self.shape, moe_oracle.dispatch(self.shape, self.tokens, rank), self.find_most_rows(), alignment)
            for rank in range(ranks)]
        if self.grouping == "rank":
            self.expert_rows = [self._draw_bits(*place, top_k, self.hidden) for _ in range(ranks)]
        else:
            self.grouped_rows = [self._draw_bits(self.find_most_rows(), self.hidden) for _ in range(ranks)]
            self.expert_rows = [moe_oracle.ungroup(rows, groups.places) for rows, groups in zip(self.grouped_rows, self.groups)]
        self.added_rows = [self._draw_bits(*place, self.hidden) for _ in range(ranks)]

    def find_most_rows(self):
        shape = self.shape
        rows = shape.ranks * shape.max_tokens
        if self.grouping == "expert":
            return rows * shape.local_experts
        placed = rows * min(shape.top_k, shape.local_experts)
        return placed + min(shape.local_experts, placed) * (self.alignment - 1)

    def __repr__(self):
        return (f"{self.shape}, hidden {self.hidden}, {self.kind}, moves {self.moved}, {self.id_type.__name__}, weights {self.has_weights}, scales "
                f"{self.has_scales}, grouped by {self.grouping}, alignment {self.alignment}, exact {self.is_exact}, columns {self.column_scales}, repeated "
                f"{self.is_repeated}, phases {self.phased}, blocks {self.blocks}, tokens {[len(one.ids) for one in self.tokens]}")

    def _draw_tokens(self, kind):
        shape, random = self.shape, self.random
        count = (0, shape.max_tokens)[kind] if kind < 2 else int(random.integers(0, shape.max_tokens + 1))
        ids = random.integers(0, shape.experts, (count, shape.top_k))
        if kind == 4:
            ids[:] = random.integers(0, shape.experts)  # all tokens and all of top-k go to one expert
        out_of_range = random.integers(0, 10, ids.shape)
        for number, wrong in enumerate((-1, shape.experts, np.iinfo(self.id_type).max, np.iinfo(self.id_type).min)):
            ids = np.where(out_of_range == number, wrong, ids)
        weights = random.uniform(-2, 2, ids.shape).astype(np.float32) if self.has_weights else np.ones(ids.shape, np.float32)
        return moe_oracle.Tokens(ids.astype(self.id_type), weights)

    def _draw_bits(self, *shape):
        numbers = self.random.standard_normal(shape).astype(np.float32) * np.exp2(self.random.integers(-6, 7, shape)).astype(np.float32)
        return moe_oracle.narrow(numbers, self.kind)

    def as_16_bits(self, bits):
        return torch.from_numpy(np.ascontiguousarray(bits).view(np.int16)).view(KINDS[self.kind])

    def give(self, rank):
        """The dispatch's x, scales and cast."""
        scales = torch.from_numpy(self.scales[rank]) if self.has_scales else None
        if self.moved == "float8":
            return torch.from_numpy(self._find_moved(rank)).view(FLOAT8), scales, None
        if self.moved == "float32":
            return torch.from_numpy(self._find_moved(rank)), scales, None
        return self.as_16_bits(self.rows[rank]), None, self.moved if self.moved.startswith("fp8") else None

    def _find_moved(self, rank):
        bits = self.rows[rank]
        return np.ascontiguousarray(moe_oracle.widen(bits, self.kind)[:, ::2]) if self.moved == "float32" else bits.view(np.uint8)

    def expect_moved(self, rank):
        """(rows, scales) of a rank as bytes."""
        if self.moved.startswith("fp8"):
            data, factors = moe_oracle.cast(moe_oracle.widen(self.rows[rank], self.kind), self.moved != "fp8_block")
            if self.moved == "fp8_block_exponent":
                exponents = np.zeros((len(factors), -(-factors.shape[1] // 4) * 4), np.uint8)
                exponents[:, :factors.shape[1]] = factors.view(np.uint32) >> 23
                return data, exponents
            return data, factors.view(np.uint8)
        return self._find_moved(rank).view(np.uint8), self.scales[rank]


def _as_bytes(tensor):
    return tensor.new_empty(tensor.shape).copy_(tensor).view(torch.uint8).numpy()


def _synchronize(exchange):
    driver.call("cuStreamSynchronize", None)
    exchange.check_error()


def _check_dispatched(case, sent, rank):
    expected = moe_oracle.dispatch(case.shape, case.tokens, rank)
    for name in ("counts", "sources", "ids", "weights"):
        np.testing.assert_array_equal(getattr(sent, name).numpy(), getattr(expected, name), name)
    moved = [case.expect_moved(source) for source in range(case.shape.ranks)]
    rows, scales = _as_bytes(sent.rows), None if sent.scales is None else _as_bytes(sent.scales)
    if case.grouping != "rank":
        groups = case.groups[rank]
        rows, scales = (None if one is None else one.reshape(-1, one.shape[-1]) for one in (rows, scales))
        count = len(rows)
        assert count == int(groups.begins[-1] + -(-groups.counts[-1] // case.alignment) * case.alignment) if case.is_exact else len(groups.rows)
        for name, got, want in (("places", sent.places, groups.places), ("counts", sent.expert_counts, groups.counts),
                                ("begins", sent.expert_begins, groups.begins), ("sources", sent.row_sources, groups.sources[:count]),
                                ("experts", sent.row_experts, groups.experts[:count])):
            np.testing.assert_array_equal(got.numpy().reshape(want.shape), want, name)
        for at in np.flatnonzero(groups.experts[:count] >= 0):
            source, token = groups.rows[at]
            np.testing.assert_array_equal(rows[at], moved[source][0][token], f"row {at}")
            if scales is not None:
                np.testing.assert_array_equal(scales[at], moved[source][1][token], f"scales of row {at}")
        return
    place = [0] * case.shape.ranks
    for source, token in expected.rows:
        at = (source, place[source])
        place[source] += 1
        np.testing.assert_array_equal(rows[at], moved[source][0][token], f"row {at}")
        if scales is not None:
            np.testing.assert_array_equal(scales[at], moved[source][1][token], f"scales of row {at}")


def _run_case(case, context, rank):
    shape = case.shape
    with verbena.moe.ExpertExchange(
            context, experts=shape.experts, max_tokens=shape.max_tokens, top_k=shape.top_k, hidden=case.hidden, max_row_bytes=2 * case.hidden,
            max_scale_bytes=max(7, 4 * -(-case.hidden // 128)), exact=True, blocks=2) as exchange:
        x, scales, cast = case.give(rank)
        tokens = case.tokens[rank]
        ids, weights = torch.from_numpy(tokens.ids), torch.from_numpy(tokens.weights) if case.has_weights else None
        options = {"scales": scales, "cast": cast, "blocks": case.blocks, "grouping": case.grouping, "alignment": case.alignment,
                   "exact_rows": case.is_exact, "column_scales": case.column_scales}
        sent = exchange.dispatch(x, ids, weights, phase=verbena.moe.Phase.SEND if case.phased else verbena.moe.Phase.BOTH, **options)
        if case.phased:
            sent = exchange.dispatch(x, ids, weights, out=sent, phase=verbena.moe.Phase.RECEIVE, **options)
        _synchronize(exchange)
        _check_dispatched(case, sent, rank)
        if case.is_repeated:  # by the routing that the handle has kept
            sent = exchange.dispatch(x, sent, **options)
            _synchronize(exchange)
            _check_dispatched(case, sent, rank)
        for order in ("reduced", "exact", "rows"):
            given = case.added_rows if order == "rows" else case.expert_rows
            if order != "rows" and case.grouping != "rank":
                mine = case.as_16_bits(case.grouped_rows[rank][:sent.row_sources.numel()]).reshape(*sent.row_sources.shape, case.hidden)
            else:
                mine = case.as_16_bits(given[rank])
            out = torch.empty([len(tokens.ids), case.hidden], dtype=KINDS[case.kind])
            for phase in (verbena.moe.Phase.SEND, verbena.moe.Phase.RECEIVE) if case.phased else (verbena.moe.Phase.BOTH,):
                exchange.combine(mine, sent, order, out=out, blocks=case.blocks, phase=phase)
            _synchronize(exchange)
            want = moe_oracle.combine(shape, case.kind, case.tokens, rank, given, order)
            np.testing.assert_array_equal(out.view(torch.int16).numpy().view(np.uint16), want, order)


def _count_when_done(ids, experts, alignment, count=verbena.ops.moe._count_rows):
    """Reads the counts after the kernel has run, because PyTorch's operators on the host do not wait for an emulated GPU."""
    driver.call("cuStreamSynchronize", None)
    return count(ids, experts, alignment)


def _run_cases(rank, ranks, seed):
    driver.use_gpu(rank)
    verbena.ops.moe._count_rows = _count_when_done
    with verbena.SymmetricContext.from_environment() as context:
        for number in range(CASES):
            case = _Case(seed, ranks, number)
            try:
                _run_case(case, context, rank)
            except AssertionError as error:
                raise AssertionError(f"MOE_SEED={seed}, {ranks} ranks, case {number}: {case}") from error
            driver.drop_tensors()


def _draw_ranks():
    """Draws the number of ranks for a test. Only one number from 5 to 8 is used per day, because such tests take longer; RANKS_ALL=1 uses
    all numbers."""
    return [5, 6, 7, 8] if os.environ.get("RANKS_ALL") else [5 + _find_seed() % 4]


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, *_draw_ranks()])
def test_random_cases(ranks, monkeypatch):
    monkeypatch.setenv("FAKE_GPUS", "8")
    seed = _find_seed()
    print(f"MOE_SEED={seed}")
    run_ranks(ranks, _run_cases, ranks, seed)


# ---- The oracle itself.

def test_products_are_added_with_one_rounding():
    random = np.random.default_rng(_find_seed())
    a, b = (random.standard_normal(500).astype(np.float32) for _ in range(2))
    b = moe_oracle.widen(moe_oracle.narrow(b, "bfloat16"), "bfloat16")
    c = (random.standard_normal(500) * np.exp2(random.integers(-40, 40, 500))).astype(np.float32)
    for one, other, addend in zip(a, b, c):
        got = moe_oracle.multiply_add(one, np.array([other]), np.array([addend]))[0]
        exact = fractions.Fraction(float(one)) * fractions.Fraction(float(other)) + fractions.Fraction(float(addend))
        error = abs(fractions.Fraction(float(got)) - exact)
        for near in (np.nextafter(got, np.float32(np.inf)), np.nextafter(got, np.float32(-np.inf))):
            assert error <= abs(fractions.Fraction(float(near)) - exact)


@pytest.mark.skipif(FLOAT8 is None, reason="this PyTorch has no e4m3")
def test_casts_round_as_pytorch_does():
    numbers = np.concatenate([np.random.default_rng(_find_seed()).uniform(-448, 448, 4000), moe_oracle.E4M3, (moe_oracle.E4M3[1:] + moe_oracle.E4M3[:-1]) / 2])
    numbers = numbers.astype(np.float32)
    np.testing.assert_array_equal(moe_oracle.to_e4m3(numbers), torch.from_numpy(numbers).to(FLOAT8).view(torch.uint8).numpy())


def test_numbers_are_narrowed_as_pytorch_does():
    numbers = (np.random.default_rng(_find_seed()).standard_normal(4000) * 100).astype(np.float32)
    for kind, of_torch in KINDS.items():
        want = torch.from_numpy(numbers).to(of_torch).view(torch.int16).numpy().view(np.uint16)
        np.testing.assert_array_equal(moe_oracle.narrow(numbers, kind), want)


def test_layout_of_a_small_example():
    shape = moe_oracle.Shape(ranks=2, experts=4, max_tokens=3, top_k=2)
    ones = np.ones((2, 2), np.float32)
    tokens = [moe_oracle.Tokens(np.array([[0, 3], [2, 2]]), ones), moe_oracle.Tokens(np.array([[-1, 4], [1, 0]]), ones)]
    second = moe_oracle.dispatch(shape, tokens, 1)
    assert second.rows == [(0, 0), (0, 1)] and second.counts.tolist() == [2, 0]
    assert second.ids[0].tolist() == [[-1, 1], [0, 0], [-1, -1]] and second.sources[0].tolist() == [0, 1, -1]
    first = moe_oracle.dispatch(shape, tokens, 0)
    assert first.rows == [(0, 0), (1, 1)] and first.ids[1, 0].tolist() == [1, 0]
