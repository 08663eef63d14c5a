"""Computes the exact results of a dispatch and a combine of verbena.moe with numpy: the rows and their order, the casts to e4m3, and the
sums in each of the three orders. Does not model slots, packets or kernels. Rows of 16-bit types are arrays of uint16 with the same bits."""
import dataclasses
from typing import Any

import numpy as np

CAST_BLOCK, E4M3_MAX, MIN_MAGNITUDE = 128, np.float32(448), np.float32(1e-4)
# Magnitudes of the bytes 0 to 126.
E4M3 = np.array([(8 * (code > 7) + code % 8) * 2.0 ** (max(code // 8, 1) - 10) for code in range(127)], np.float32)


@dataclasses.dataclass(frozen=True)
class Shape:
    ranks: int
    experts: int
    max_tokens: int
    top_k: int

    @property
    def local_experts(self) -> int:
        return self.experts // self.ranks


@dataclasses.dataclass(frozen=True)
class Tokens:
    """The input of one rank: the expert ids [tokens, top_k] as the caller passed them, and float32 weights of the same shape."""
    ids: Any
    weights: Any


@dataclasses.dataclass(frozen=True)
class Received:
    """The rows that one rank receives, grouped by source rank: the pair (source rank, token) of each row, and the tensors of the handle."""
    rows: list[tuple[int, int]]
    counts: Any
    sources: Any
    ids: Any
    weights: Any


def find_local(shape: Shape, ids: Any, rank: int) -> Any:
    """Returns, for each id, the number of the expert on `rank`, counted from 0; -1 if the expert is on another rank."""
    ids = ids.astype(np.int64)
    first = rank * shape.local_experts
    return np.where((ids >= first) & (ids < first + shape.local_experts), ids - first, -1)


def dispatch(shape: Shape, tokens: list[Tokens], rank: int) -> Received:
    place = (shape.ranks, shape.max_tokens)
    received = Received([], np.zeros(shape.ranks, np.int32), np.full(place, -1, np.int32), np.full((*place, shape.top_k), -1, np.int32),
                        np.zeros((*place, shape.top_k), np.float32))
    for source, theirs in enumerate(tokens):
        local = find_local(shape, theirs.ids, rank)
        for number, token in enumerate(np.flatnonzero((local >= 0).any(1))):
            received.rows.append((source, int(token)))
            received.counts[source] += 1
            received.sources[source, number] = token
            received.ids[source, number] = local[token]
            received.weights[source, number] = np.where(local[token] >= 0, theirs.weights[token], 0)
    return received


@dataclasses.dataclass(frozen=True)
class Groups:
    """The rows that one rank receives, grouped by expert: the pair (source rank, token) and the expert of each row, and the tensors of the
    handle. An empty row has None instead of the pair, and the expert -1."""
    rows: list[tuple[int, int] | None]
    sources: Any
    experts: Any
    places: Any
    counts: Any
    begins: Any


def group(shape: Shape, received: Received, rows: int, alignment: int | None) -> Groups:
    """Groups the received rows by expert. If `alignment` is None, each group has space for all rows."""
    groups = Groups([None] * rows, np.full(rows, -1, np.int32), np.full(rows, -1, np.int32), np.full(received.ids.shape, -1, np.int32),
                    np.zeros(shape.local_experts, np.int32), np.zeros(shape.local_experts, np.int32))
    end = 0
    for expert in range(shape.local_experts):
        groups.begins[expert] = begin = end
        # In the order of source ranks and their tokens.
        for source, number in np.argwhere((received.ids == expert).any(2)):
            groups.rows[end] = (int(source), int(received.sources[source, number]))
            groups.sources[end] = source * shape.max_tokens + number
            groups.experts[end] = expert
            groups.places[source, number, received.ids[source, number] == expert] = end
            end += 1
        groups.counts[expert] = end - begin
        end = begin + shape.ranks * shape.max_tokens if alignment is None else -(-end // alignment) * alignment
    return groups


def ungroup(rows: Any, places: Any) -> Any:
    """Returns rows that are grouped by expert in the order of (source rank, token number, k)."""
    return rows[np.maximum(places, 0)]


def combine(shape: Shape, kind: str, tokens: list[Tokens], rank: int, expert_rows: list[Any], order: str) -> Any:
    """Returns the combined rows of the tokens of `rank`, as bits. `expert_rows` has the rows of each rank's experts, as bits; `order`
    determines their shape."""
    ids, weights = tokens[rank].ids, tokens[rank].weights
    numbers = []  # of the tokens' rows at each rank
    for other in range(shape.ranks):
        goes = (find_local(shape, ids, other) >= 0).any(1)
        numbers.append(np.where(goes, np.cumsum(goes) - 1, -1))
    hidden = expert_rows[0].shape[-1]
    combined = np.zeros((len(ids), hidden), np.uint16)
    for token in range(len(ids)):
        sums = None if order != "exact" else np.zeros(hidden, np.float32)
        for other in range(shape.ranks):
            number = numbers[other][token]
            if number < 0 or order == "exact":
                continue
            rows = expert_rows[other][rank, number]
            if order == "rows":
                partial = widen(rows, kind)
            else:
                partial = np.zeros(hidden, np.float32)
                for k in np.flatnonzero(find_local(shape, ids[token], other) >= 0):
                    partial = multiply_add(weights[token, k], widen(rows[k], kind), partial)
                partial = widen(narrow(partial, kind), kind)
            sums = partial if sums is None else sums + partial
        for k in range(shape.top_k if order == "exact" else 0):
            for other in range(shape.ranks):
                if find_local(shape, ids[token, k], other) >= 0:
                    sums = multiply_add(weights[token, k], widen(expert_rows[other][rank, numbers[other][token], k], kind), sums)
        if sums is not None:
            combined[token] = narrow(sums, kind)
    return combined


def widen(bits: Any, kind: str) -> Any:
    if kind == "float16":
        return bits.view(np.float16).astype(np.float32)
    return (bits.astype(np.uint32) << 16).view(np.float32)


def narrow(numbers: Any, kind: str) -> Any:
    """Rounds to the nearest value, ties to even. Does not accept NaN."""
    if kind == "float16":
        with np.errstate(over="ignore"):
            return numbers.astype(np.float16).view(np.uint16)
    bits = numbers.view(np.uint32)
    return ((bits + 0x7fff + (bits >> 16 & 1)) >> 16).astype(np.uint16)


def multiply_add(a: Any, b: Any, c: Any) -> Any:
    """Returns a * b + c for float32 values, rounded once. float64 must represent the product exactly."""
    product, addend = np.float64(a) * b.astype(np.float64), c.astype(np.float64)
    total = product + addend
    back = total - product
    error = (product - (total - back)) + (addend - back)
    # To odd: then the second rounding, to float32, is right.
    is_even = total.view(np.int64) & 1 == 0
    towards = np.where(error > 0, np.inf, -np.inf)
    return np.where((error != 0) & is_even, np.nextafter(total, towards), total).astype(np.float32)


def cast(numbers: Any, has_powers: bool) -> tuple[Any, Any]:
    """Casts float32 rows. Returns (e4m3 bytes, float32 scales)."""
    blocks = -(-numbers.shape[1] // CAST_BLOCK)
    data = np.empty(numbers.shape, np.uint8)
    scales = np.empty((len(numbers), blocks), np.float32)
    for block in range(blocks):
        part = numbers[:, block * CAST_BLOCK:(block + 1) * CAST_BLOCK]
        scale = np.maximum(np.abs(part).max(1, initial=0), MIN_MAGNITUDE) / E4M3_MAX
        if has_powers:
            fraction, exponent = np.frexp(scale)
            scale = np.ldexp(np.float32(1), np.where(fraction == 0.5, exponent - 1, exponent)).astype(np.float32)
        scales[:, block] = scale
        data[:, block * CAST_BLOCK:(block + 1) * CAST_BLOCK] = to_e4m3(part * (np.float32(1) / scale)[:, None])
    return data, scales


def to_e4m3(numbers: Any) -> Any:
    """Rounds to the nearest e4m3 value, ties to the even byte. Values beyond the largest magnitude become the largest magnitude."""
    magnitudes = np.minimum(np.abs(numbers), E4M3_MAX)
    below = np.searchsorted(E4M3, magnitudes, side="right") - 1
    above = np.minimum(below + 1, len(E4M3) - 1)
    low, high = magnitudes - E4M3[below], E4M3[above] - magnitudes
    code = np.where((high < low) | ((high == low) & (below % 2 == 1)), above, below)
    return (code | np.where(np.signbit(numbers), 0x80, 0)).astype(np.uint8)
