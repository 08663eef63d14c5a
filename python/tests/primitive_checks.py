"""Checks the effect of each primitive. There is one function for each primitive; all ranks call it with their Bench
(primitives_on_gpus.py)."""
import ctypes

import torch

from verbena import Backend, FenceScope, SignalCompare, SignalOperation, Status

LATE_NS = 2_000_000
ROUNDS = 20
PROGRAMS = 2
# (elements, bytes of each): a word, what fills no word, and what takes a while.
SHAPES = ((1, 8), (4093, 1), (1 << 18, 4))
# Parts of the window, in words.
SOURCE, DESTINATION = 0, 1 << 18
LEAST = -2**31  # of what is signalled here


class _Context(ctypes.Structure):
    """The beginning of SymmContext (verbena/symm_abi.h)."""

    _fields_ = [("numbers", ctypes.c_int32 * 8), ("lsa_mask", ctypes.c_uint64), ("deltas", ctypes.c_int64 * 8),
                ("more_deltas", ctypes.c_uint64), ("heap_begin", ctypes.c_uint64), ("heap_end", ctypes.c_uint64),
                ("multicast_delta", ctypes.c_uint64), ("signals", ctypes.c_uint64)]


def _read_context(bench):
    return _Context.from_address(bench.context._library.team_host_context(bench.team.handle))


def _make_out(count=16):
    return torch.full((count,), 12345, dtype=torch.int64, device="cuda")


# ---- Teams and addresses ----

def _ask(bench, peer):
    bench.words[:PROGRAMS] = 1000 + bench.rank
    out = _make_out()
    bench.launch("ask", bench.words, bench.window.address, out, peer)
    return out.tolist()


def check_team_size(bench):
    bench.expect(_ask(bench, 0)[0], bench.size, "the size")


def check_team_rank(bench):
    bench.expect(_ask(bench, 0)[1], bench.rank, "the rank")


def check_team_lsa_size(bench):
    bench.expect(_ask(bench, 0)[2], sum(map(bench.is_in_reach, range(bench.size))), "ranks in reach")


def check_team_lsa(bench):
    for peer in range(bench.size):
        bench.expect(_ask(bench, peer)[3], int(bench.is_in_reach(peer)), f"whether rank {peer} is in reach")
    for nobody in (-1, bench.size):
        bench.expect(_ask(bench, nobody)[3], 0, f"whether rank {nobody} is in reach")


def check_lsa_ptr(bench):
    for peer in range(bench.size):
        answer, wanted = _ask(bench, peer), bench.window.peer_address(peer) or 0
        bench.expect(answer[4:6], [wanted] * 2, f"the address at rank {peer}, as number and pointer")
        bench.expect(answer[9], 1000 + peer if wanted else 12345, f"the word at rank {peer}")
    bench.expect(_ask(bench, bench.size)[4], 0, "the address at nobody")


def check_lsa_multicast_ptr(bench):
    delta = _read_context(bench).multicast_delta
    wanted = bench.window.address + delta if delta else 0
    bench.expect(_ask(bench, 0)[6:8], [wanted] * 2, "the address of all, as number and pointer")
    if not delta:
        return
    out = _make_out()
    bench.words[:bench.size] = 0
    bench.launch("write_at_all", bench.words[bench.rank:], out, 77 + bench.rank)
    bench.expect(out[0].item(), wanted + 8 * bench.rank, "the address of all")
    bench.expect(bench.words[:bench.size].tolist(), [77 + rank for rank in range(bench.size)], "what all have written at all")


def check_lsa_signal_ptr(bench):
    context = _read_context(bench)
    for peer in range(min(bench.size, len(context.deltas))):
        wanted = context.signals + context.deltas[peer] if bench.is_in_reach(peer) else 0
        bench.expect(_ask(bench, peer)[8], wanted, f"the signals of rank {peer}")
    out, index = _make_out(), bench.take_signal()
    bench.launch("signal_by_pointer", out, bench.peer, index, 500 + bench.rank)
    if bench.is_in_reach(bench.before) and bench.is_in_reach(bench.peer):
        bench.expect(out[0].item(), 500 + bench.before, "what the rank before has stored to the signal")


# ---- Barriers and fences ----

def _check_meeting(kind):
    def check(bench):
        bench.words[:4 * PROGRAMS] = 0
        out = _make_out()
        bench.launch("meet", bench.words, out, kind, ROUNDS, bench.peer, LATE_NS, programs=PROGRAMS)
        for program in range(PROGRAMS):
            bench.expect(out[2 * program].item(), Status.DONE, f"program {program}")
            bench.expect(out[2 * program + 1].item(), 0, f"program {program}: rounds in which the number had not come")
    return check


def check_fence(bench):
    out = _make_out()
    for scope in (*FenceScope, 3):
        bench.launch("ask_for_a_fence", out, int(scope))
        bench.expect(out[0].item(), Status.INVALID if scope == 3 else Status.DONE, f"scope {scope}")
    if not all(map(bench.is_in_reach, range(bench.size))):
        return
    count = 1 << 14
    source, seen, (data, flag) = _fill(bench, count), _make_out(count), _cut(bench, DESTINATION, count, 1)
    for part in (data, flag):
        part.zero_()
    bench.launch("pass_a_message", data, flag, source, out, seen, bench.peer, int(FenceScope.SYSTEM), count)
    bench.expect(out[:2].tolist(), [0, 1], "status and flag")
    _compare(bench, seen, _expect(bench.before, count), "what came before the flag")


# ---- Signals ----

def _signal(bench, index, value=1, op=SignalOperation.ADD, times=0, is_reset_first=0, cmp=SignalCompare.GT, wanted=LEAST,
            peer=None):
    """(status, the signal as the wait saw it)"""
    out = _make_out()
    bench.launch("signal", out, bench.peer if peer is None else peer, index, value, int(op), times, is_reset_first,
                 int(cmp), wanted)
    return out[:2].tolist()


def check_signal(bench):
    for op, value, times, total in ((SignalOperation.SET, 5 + bench.rank, 1, 5 + bench.before),
                                    (SignalOperation.ADD, 7, 3, 21), (SignalOperation.INCREMENT, 9, 4, 4),
                                    (SignalOperation.ADD, -3, 2, -6)):
        index = bench.take_signal()
        bench.expect(_signal(bench, index, value, op, times, cmp=SignalCompare.EQ, wanted=total), [0, total], op.name)
        # No program's threads signal one by one.
        bench.expect(_signal(bench, index), [0, total], f"{op.name}, afterwards")
    for wrong in ({"index": 256}, {"index": 0, "peer": bench.size}, {"index": 0, "peer": -1}, {"index": 0, "op": 3}):
        index = wrong.pop("index")
        bench.expect(_signal(bench, index, times=1, **wrong)[0], Status.INVALID, f"signal {index} with {wrong}")


def check_signal_wait_until(bench):
    for compare, value, wanted in ((SignalCompare.EQ, 10, 10), (SignalCompare.NE, 10, 0), (SignalCompare.GT, 10, 9),
                                   (SignalCompare.GE, 10, 10), (SignalCompare.LT, -5, -1), (SignalCompare.LE, -5, -5)):
        seen = _signal(bench, bench.take_signal(), value, SignalOperation.SET, 1, cmp=compare, wanted=wanted)
        bench.expect(seen, [0, value], f"status and signal, {compare.name} {wanted}")
    bench.expect(_signal(bench, 256, cmp=SignalCompare.GE, wanted=1)[1], -2**63, "a signal that there is not")


def check_signal_reset(bench):
    index = bench.take_signal()
    bench.expect(_signal(bench, index, 9, times=1, cmp=SignalCompare.GE, wanted=9), [0, 9], "before")
    bench.expect(_signal(bench, index, is_reset_first=1), [0, 0], "status and signal")
    bench.expect(_signal(bench, index, 4, times=1, cmp=SignalCompare.GE, wanted=4), [0, 4], "signalled again")
    bench.expect(_signal(bench, 256, is_reset_first=1)[0], Status.INVALID, "a signal that there is not")


# ---- Copies ----

def _cut(bench, begin, *lengths):
    parts = []
    for length in lengths:
        parts.append(bench.words[begin:begin + length])
        begin += length
    return parts


def _expect(rank, count):
    places = torch.arange(count, dtype=torch.int64, device="cuda")
    return places * 0x9E3779B1 + (rank + 1) * 0x10001


def _fill(bench, count):
    source, = _cut(bench, SOURCE, count)
    source.copy_(_expect(bench.rank, count))
    return source


def _compare(bench, seen, wanted, what):
    different = (seen != wanted).nonzero().flatten().tolist()
    first = different[0] if different else 0
    bench.expect(seen[first].item(), wanted[first].item(), f"{what}: {len(different)} of {len(wanted)} wrong, at {first}")


def _check_copy(kind, shapes=SHAPES[-1:]):
    def check(bench):
        for count, element_bytes in shapes:
            _copy_and_compare(bench, kind, count, element_bytes)
        out = _make_out()
        none = bench.words[SOURCE:SOURCE + 1]
        bench.launch("copy", none, none, out[8:], out, kind, -1, 8, 0, bench.peer, bench.take_signal(), 0)
        if kind != 0:
            bench.expect(out[0].item(), Status.INVALID, "a negative count")
    return check


def _copy_and_compare(bench, kind, count, element_bytes):
    length_bytes = count * element_bytes
    words = -(-length_bytes // 8)
    source, (destination,), seen, out = _fill(bench, words), _cut(bench, DESTINATION, words), _make_out(words), _make_out()
    destination.fill_(-1)
    late_ns = LATE_NS if bench.rank == 0 else 0
    bench.launch("copy", destination, source, seen, out, kind, count, element_bytes, words, bench.peer,
                 bench.take_signal(), late_ns)
    origin = bench.peer if kind == 6 else bench.before
    if kind == 6 and not bench.is_in_reach(origin) and bench.team.backend in (Backend.NCCL, Backend.NCCLX):
        # NCCL's network does not read.
        bench.expect(out[0].item(), Status.UNREACHABLE, f"{length_bytes} bytes")
        return
    bench.expect(out[:2].tolist(), [Status.DONE] * 2, f"{length_bytes} bytes")
    wanted = torch.full((words,), -1, dtype=torch.int64, device="cuda")
    length_bytes = words * 8 if kind == 0 else length_bytes
    wanted.view(torch.uint8)[:length_bytes] = _expect(origin, words).view(torch.uint8)[:length_bytes]
    _compare(bench, seen, wanted, f"{words} words for {length_bytes} bytes")


def check_put_async(bench):
    for kind in (0, 1):
        _check_copy(kind, SHAPES)(bench)


# ---- Words and rows ----

def _has_nobody_updating(bench):
    """Returns True if some word updates would have to go through NCCL's network, which cannot update words. Then no update takes place."""
    return bench.team.backend in (Backend.NCCL, Backend.NCCLX) and not all(map(bench.is_in_reach, range(bench.size)))


def check_words(bench):
    times = 5
    words, = _cut(bench, SOURCE, 64)
    words.zero_()
    out = _make_out(PROGRAMS * times + 8)
    bench.launch("use_words", words, out, bench.peer, times, bench.size, programs=PROGRAMS)
    drawn, more = out[:PROGRAMS * times].tolist(), out[PROGRAMS * times:].tolist()
    if _has_nobody_updating(bench):
        bench.expect(drawn, [-2**63] * len(drawn), "what cannot be drawn")
        return
    everyones = sorted(number for rank in bench.gather(drawn) for number in rank)
    bench.expect(everyones, list(range(bench.size * PROGRAMS * times)), "numbers, each drawn once")
    bench.expect(more[:5], [Status.DONE, 0, 5 + bench.before, Status.DONE, bench.before], "written, swapped and added")
    bench.expect(words[3].item(), 2, "what was added")


def check_rows(bench):
    rows, row_count, stride = 37, 24, 40
    count = rows * row_count
    source, (destination,) = _fill(bench, count), _cut(bench, DESTINATION, rows * stride)
    destination.fill_(-1)
    seen, out = _make_out(2 * count), _make_out()
    bench.launch("copy_rows", destination, source, seen, out, bench.peer, bench.take_signal(), row_count, rows, stride)
    bench.expect(out[:3].tolist(), [Status.DONE, 1, Status.DONE], "put, signal, quiet")
    _compare(bench, seen[:count], _expect(bench.before, count), "what came")
    if _has_nobody_updating(bench):
        bench.expect(out[3:5].tolist(), [Status.UNREACHABLE] * 2, "what NCCL does not read")
        return
    bench.expect([out[3].item(), int(out[4].item() >= 0), out[5].item()], [Status.DONE, 1, Status.DONE], "gets")
    _compare(bench, seen[count:], _expect(bench.rank, count), "what came back")
    bench.expect(destination.view(rows, stride)[:, row_count:].eq(-1).all().item(), True, "between rows")


def check_pieces(bench):
    pieces, piece_count, gap = 33, 20, 4
    count = pieces * (piece_count + gap)
    source, (destination,) = _fill(bench, count), _cut(bench, DESTINATION, count)
    destination.fill_(-1)
    out, size = _make_out(), source.element_size()
    steps = [place * (piece_count + gap) * size for place in range(pieces)]
    table = torch.tensor([[destination.data_ptr() + step, source.data_ptr() + step, piece_count * size] for step in steps],
                         dtype=torch.int64, device="cuda")
    bench.launch("put_pieces", table, pieces, out, bench.peer, bench.take_signal())
    bench.expect(out[:3].tolist(), [Status.DONE, 1, Status.DONE], "pieces, signal, quiet")
    came, sent = destination.view(pieces, -1), _expect(bench.before, count).view(pieces, -1)
    _compare(bench, came[:, :piece_count].flatten(), sent[:, :piece_count].flatten(), "what came before the signal")
    bench.expect(came[:, piece_count:].eq(-1).all().item(), True, "between pieces")


def check_signal_after_puts(bench):
    count = 1 << 12
    source, (destination,) = _fill(bench, 2 * count), _cut(bench, DESTINATION, 2 * count)
    destination.fill_(-1)
    out, index = _make_out(), bench.take_signal()
    bench.take_signal()
    bench.launch("signal_for_all", destination, source, out, bench.peer, index, count)
    bench.expect(out[:3].tolist(), [Status.DONE, 1, Status.DONE], "statuses and signal")
    _compare(bench, destination, _expect(bench.before, 2 * count), "what came before the signal")


# ---- Sums ----

def check_all_reduce(bench):
    is_possible = all(map(bench.is_in_reach, range(bench.size)))
    out, floats = _make_out(), bench.words.view(torch.float32)
    for count in (1, 1 << 12, 4099):
        data = floats[:PROGRAMS * count]
        places = torch.arange(PROGRAMS * count, dtype=torch.float32, device="cuda") % 1024
        data.copy_(places * (bench.rank + 1))
        bench.launch("add_up", data, out, count, 0, 0, programs=PROGRAMS)
        bench.expect(out[:PROGRAMS].tolist(), [Status.DONE if is_possible else Status.UNREACHABLE] * PROGRAMS, "statuses")
        if is_possible:
            _compare(bench, data, places * sum(range(bench.size + 1)), f"sums of {count}")
    for op, dtype in ((1, 0), (0, 1)):
        bench.launch("add_up", floats, out, 4, op, dtype, programs=PROGRAMS)
        bench.expect(out[:PROGRAMS].tolist(), [Status.INVALID] * PROGRAMS, f"operation {op} of type {dtype}")


CHECKS = {
    "symm_team_size": check_team_size, "symm_team_rank": check_team_rank, "symm_team_lsa_size": check_team_lsa_size,
    "symm_team_lsa": check_team_lsa, "symm_lsa_ptr": check_lsa_ptr, "symm_lsa_multicast_ptr": check_lsa_multicast_ptr,
    "symm_lsa_signal_ptr": check_lsa_signal_ptr, "symm_barrier": _check_meeting(0),
    "symm_barrier_arrive": _check_meeting(1), "symm_barrier_wait": _check_meeting(1),
    "symm_lsa_barrier": _check_meeting(2), "symm_lsa_barrier_arrive": _check_meeting(3),
    "symm_lsa_barrier_wait": _check_meeting(3), "symm_fence": check_fence, "symm_signal": check_signal,
    "symm_signal_wait_until": check_signal_wait_until, "symm_signal_reset": check_signal_reset,
    "symm_put_async": check_put_async, "symm_quiet": _check_copy(2), "symm_quiet_peer": _check_copy(3),
    "symm_flush": _check_copy(4), "symm_put_signal_async": _check_copy(5, SHAPES), "symm_get": _check_copy(6, SHAPES),
    "symm_put_value": check_words, "symm_add": check_words, "symm_fetch_add": check_words,
    "symm_compare_swap": check_words, "symm_wait_until": check_words, "symm_wait_until_all": check_words,
    "symm_wait_until_any": check_words, "symm_put_rows": check_rows, "symm_get_rows": check_rows,
    "symm_get_async": check_rows, "symm_request_wait": check_rows, "symm_signal_by": check_rows,
    "symm_put_async_by": check_rows, "symm_put_signal_async_by": check_signal_after_puts,
    "symm_signal_after_puts": check_signal_after_puts, "symm_put_pieces": check_pieces,
    "symm_put_pieces_signal": check_pieces, "symm_all_reduce": check_all_reduce,
}
