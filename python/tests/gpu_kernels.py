"""Kernels with which primitives_on_gpus.py uses each primitive between GPUs. Choices that a kernel makes at run time are plain arguments,
so that few kernels must be compiled. BACKEND is either DEFAULT, or the backend for which the kernel is linked."""
import triton
import triton.language as tl
from triton.language.extra.cuda import globaltimer

from verbena.triton import *

MAX_POLL_NS = tl.constexpr(5_000_000_000)
TILE = tl.constexpr(1024)


def jit(function):
    """Compiled once, whatever the arguments' values."""
    names = function.__code__.co_varnames[:function.__code__.co_argcount]
    return triton.jit(function, do_not_specialize=[name for name in names if name.islower()])


@triton.jit
def idle(duration_ns):
    start = globaltimer()
    now = start
    while now - start < duration_ns:
        now = globaltimer()


@triton.jit
def copy_out(out, source, count):
    """As it is in memory now."""
    for start in range(0, count, TILE):
        places = start + tl.arange(0, TILE)
        tl.store(out + places, tl.load(source + places, places < count, volatile=True), places < count)


@jit
def ask(ctx_ptr, data_ptr, address, out, peer, BACKEND: tl.constexpr):
    """Stores the properties of the team, and addresses, in `out`. out[9] is the first word of the peer."""
    tl.store(out, symm_team_size(ctx_ptr, BACKEND))
    tl.store(out + 1, symm_team_rank(ctx_ptr, BACKEND))
    tl.store(out + 2, symm_team_lsa_size(ctx_ptr, BACKEND))
    tl.store(out + 3, symm_team_lsa(ctx_ptr, peer, BACKEND))
    theirs = symm_lsa_ptr(ctx_ptr, data_ptr, peer, BACKEND)
    tl.store(out + 4, symm_lsa_ptr(ctx_ptr, address, peer, BACKEND))
    tl.store(out + 5, theirs.to(tl.int64))
    tl.store(out + 6, symm_lsa_multicast_ptr(ctx_ptr, address, BACKEND))
    tl.store(out + 7, symm_lsa_multicast_ptr(ctx_ptr, data_ptr, BACKEND).to(tl.int64))
    tl.store(out + 8, symm_lsa_signal_ptr(ctx_ptr, peer, BACKEND))
    if theirs.to(tl.int64) != 0:
        tl.store(out + 9, tl.load(theirs, volatile=True))


@jit
def write_at_all(ctx_ptr, data_ptr, out, value, BACKEND: tl.constexpr):
    """By one store to the place of all ranks, where there is one."""
    everyones = symm_lsa_multicast_ptr(ctx_ptr, data_ptr, BACKEND).to(tl.int64)
    tl.store(out, everyones)
    if everyones != 0:
        written = tl.inline_asm_elementwise(
            "multimem.st.relaxed.sys.global.u64 [$1], $2; mov.u64 $0, $2;", "=l,l,l",
            [everyones, value.to(tl.int64)], dtype=tl.int64, is_pure=False, pack=1)
        tl.store(out + 1, written)


@jit
def signal_by_pointer(ctx_ptr, out, peer, index, value, BACKEND: tl.constexpr):
    """Stores to a signal of the peer, and waits for the signal of the other neighbour."""
    theirs = symm_lsa_signal_ptr(ctx_ptr, peer, BACKEND)
    if theirs != 0:
        tl.atomic_xchg((theirs + 8 * index).to(tl.pointer_type(tl.int64)), value.to(tl.int64), sem="release", scope="sys")
        tl.store(out, symm_signal_wait_until(ctx_ptr, index, SIGNAL_CMP_GE, 1, BACKEND))


@jit
def signal(ctx_ptr, out, peer, index, value, op, times, is_reset_first, cmp, wanted, BACKEND: tl.constexpr):
    status = 0
    if is_reset_first != 0:
        status = symm_signal_reset(ctx_ptr, index, BACKEND)
    for _ in range(times):
        status = tl.minimum(status, symm_signal(ctx_ptr, index, peer, value, op, BACKEND))
    tl.store(out, status)
    tl.store(out + 1, symm_signal_wait_until(ctx_ptr, index, cmp, wanted, BACKEND))


@triton.jit
def meet_once(ctx_ptr, kind, index, BACKEND: tl.constexpr):
    status = 0
    if kind == 0:
        status = symm_barrier(ctx_ptr, BACKEND)
    elif kind == 1:
        status = tl.minimum(symm_barrier_arrive(ctx_ptr, index, BACKEND), symm_barrier_wait(ctx_ptr, index, BACKEND))
    elif kind == 2:
        status = symm_lsa_barrier(ctx_ptr, None, BACKEND)
    else:
        status = tl.minimum(symm_lsa_barrier_arrive(ctx_ptr, index, BACKEND),
                            symm_lsa_barrier_wait(ctx_ptr, index, BACKEND))
    return status


@jit
def meet(ctx_ptr, data_ptr, out, kind, rounds, peer, late_ns, BACKEND: tl.constexpr):
    """In each round, sends a number to the next rank, waits at a barrier, and reads the number that the previous rank has sent. Some ranks
    are late. The number is sent by a put before a barrier of the whole team, and by a store before a barrier of the reachable ranks.
    Received numbers come first in memory, followed by sent numbers."""
    program = tl.program_id(0)
    rank = symm_team_rank(ctx_ptr, BACKEND)
    size = symm_team_size(ctx_ptr, BACKEND)
    before = (rank + size - 1) % size
    inbox = data_ptr + 2 * program
    theirs = symm_lsa_ptr(ctx_ptr, inbox, peer, BACKEND)
    mine = symm_lsa_ptr(ctx_ptr, inbox, before, BACKEND)
    is_told = (kind < 2) | (mine.to(tl.int64) != 0)
    status = 0
    wrong = 0
    for turn in range(1, rounds + 1):
        if turn % size == rank:
            idle(late_ns)
        if kind < 2:
            tl.store(inbox + 1, (turn * size + rank).to(tl.int64))
            tl.debug_barrier()
            status = tl.minimum(status, symm_put_async(ctx_ptr, inbox, inbox + 1, 1, None, peer, BACKEND))
        elif theirs.to(tl.int64) != 0:
            tl.store(theirs, (turn * size + rank).to(tl.int64))
        status = tl.minimum(status, meet_once(ctx_ptr, kind, program + 17, BACKEND))
        came = tl.load(inbox, volatile=True)
        wrong += (is_told & (came != turn * size + before)).to(tl.int32)
        status = tl.minimum(status, meet_once(ctx_ptr, kind, program + 17, BACKEND))
    tl.store(out + 2 * program, status)
    tl.store(out + 2 * program + 1, wrong)


@jit
def pass_a_message(ctx_ptr, data_ptr, flag_ptr, source, out, seen, peer, scope, count, BACKEND: tl.constexpr):
    """Stores a message to the peer, executes a fence, and sets a flag. Reads the message of the other neighbour once that neighbour's flag
    is set."""
    theirs = symm_lsa_ptr(ctx_ptr, data_ptr, peer, BACKEND)
    their_flag = symm_lsa_ptr(ctx_ptr, flag_ptr, peer, BACKEND)
    copy_out(theirs, source, count)
    status = symm_fence(ctx_ptr, scope, BACKEND)
    tl.debug_barrier()
    tl.store(their_flag, tl.full((), 1, tl.int64))
    start = globaltimer()
    flag = tl.load(flag_ptr, volatile=True)
    while (flag == 0) & (globaltimer() - start < MAX_POLL_NS):
        flag = tl.load(flag_ptr, volatile=True)
    status = tl.minimum(status, symm_fence(ctx_ptr, scope, BACKEND))
    tl.debug_barrier()
    copy_out(seen, data_ptr, count)
    tl.store(out, status)
    tl.store(out + 1, flag)


@jit
def ask_for_a_fence(ctx_ptr, out, scope, BACKEND: tl.constexpr):
    tl.store(out, symm_fence(ctx_ptr, scope, BACKEND))


@jit
def copy(ctx_ptr, destination, source, seen, out, kind, count, element_size, words, peer, index, late_ns,
         BACKEND: tl.constexpr):
    """Copies data to or from the next rank, and reads the data that came from the previous rank."""
    # With a wrong signal, or none, a rank would read before the data has arrived.
    idle(late_ns)
    status = 0
    more = 0
    if kind == 6:
        status = symm_get(ctx_ptr, destination, source, count, element_size, peer, BACKEND)
    elif kind == 5:
        status = symm_put_signal_async(ctx_ptr, destination, source, count, element_size, peer, index, backend=BACKEND)
    else:
        if kind == 0:
            status = symm_put_async(ctx_ptr, destination, source, words, None, peer, BACKEND)
        else:
            status = symm_put_async(ctx_ptr, destination, source, count, element_size, peer, BACKEND)
        if kind == 2:
            more = symm_quiet(ctx_ptr, BACKEND)
        elif kind == 3:
            more = symm_quiet_peer(ctx_ptr, peer, BACKEND)
        elif kind == 4:
            more = symm_flush(ctx_ptr, BACKEND)
            # It may be used again.
            for start in range(0, words, TILE):
                places = start + tl.arange(0, TILE)
                tl.store(source + places, places, places < words)
        tl.debug_barrier()
        more = tl.minimum(more, symm_signal(ctx_ptr, index, peer, 1, SIGNAL_OP_ADD, BACKEND))
    tl.store(out, status)
    tl.store(out + 1, more)
    if (kind != 6) & (status == 0):
        tl.store(out + 2, symm_signal_wait_until(ctx_ptr, index, SIGNAL_CMP_GE, 1, BACKEND))
    tl.debug_barrier()
    copy_out(seen, destination, words)


@jit
def use_words(ctx_ptr, data_ptr, out, peer, times, size, BACKEND: tl.constexpr):
    """Uses words at data_ptr: a counter on rank 0 from which all programs draw numbers, which are stored in `out`; a word that is written;
    a word that is swapped; and a word that is added to. Programs of all ranks run at the same time."""
    program = tl.program_id(0)
    rank = symm_team_rank(ctx_ptr, BACKEND)
    for i in range(times):
        tl.store(out + program * times + i, symm_fetch_add(ctx_ptr, data_ptr, 1, 0, BACKEND))
    if program == 0:
        more = out + tl.num_programs(0) * times
        status = symm_put_value(ctx_ptr, data_ptr + 8 + rank, 70 + rank, peer, BACKEND)
        tl.store(more + 1, symm_compare_swap(ctx_ptr, data_ptr + 2, 0, 5 + rank, peer, BACKEND))
        status = tl.minimum(status, symm_add(ctx_ptr, data_ptr + 3, 2, peer, BACKEND))
        tl.store(more, status)
        before = (rank + size - 1) % size
        if status == 0:
            tl.store(more + 2, symm_wait_until(ctx_ptr, data_ptr + 2, SIGNAL_CMP_NE, 0, BACKEND))
            tl.store(more + 3, symm_wait_until_all(ctx_ptr, data_ptr + 2, 2, SIGNAL_CMP_NE, 0, BACKEND))
            tl.store(more + 4, symm_wait_until_any(ctx_ptr, data_ptr + 8, size, SIGNAL_CMP_EQ, 70 + before, 0, BACKEND))


@jit
def copy_rows(ctx_ptr, destination, source, seen, out, peer, index, row_count, rows, stride, BACKEND: tl.constexpr):
    """Copies a part of a matrix to the next rank through a separate queue, and back."""
    status = symm_put_rows(ctx_ptr, destination, stride, source, row_count, row_count, rows, None, peer, BACKEND)
    tl.debug_barrier()
    status = tl.minimum(status, symm_signal_by(ctx_ptr, index, peer, -1, 1, SIGNAL_OP_ADD, BACKEND))
    status = tl.minimum(status, symm_put_async_by(ctx_ptr, destination, source, 0, None, peer, 1, BACKEND))
    tl.store(out, status)
    tl.store(out + 1, symm_signal_wait_until(ctx_ptr, index, SIGNAL_CMP_GE, 1, BACKEND))
    tl.debug_barrier()
    for row in range(rows):
        copy_out(seen + row * row_count, destination + row * stride, row_count)
    tl.store(out + 2, symm_quiet_peer(ctx_ptr, peer, BACKEND))
    tl.store(out + 3, symm_get_rows(ctx_ptr, seen + rows * row_count, row_count, destination, stride, row_count, rows, None,
                                    peer, BACKEND))
    request = symm_get_async(ctx_ptr, source, destination, row_count, None, peer, -1, BACKEND)
    tl.store(out + 4, request)
    tl.store(out + 5, symm_request_wait(ctx_ptr, request, BACKEND))


@jit
def put_pieces(ctx_ptr, pieces, count, out, peer, index, BACKEND: tl.constexpr):
    """Puts a list of pieces to the next rank, followed by a signal, and then an empty list."""
    tl.store(out, symm_put_pieces_signal(ctx_ptr, pieces, count, peer, index, 1, SIGNAL_OP_ADD, BACKEND))
    tl.store(out + 1, symm_signal_wait_until(ctx_ptr, index, SIGNAL_CMP_GE, 1, BACKEND))
    status = symm_put_pieces(ctx_ptr, pieces, 0, peer, BACKEND)
    tl.store(out + 2, tl.minimum(status, symm_quiet_peer(ctx_ptr, peer, BACKEND)))


@jit
def signal_for_all(ctx_ptr, destination, source, out, peer, index, count, BACKEND: tl.constexpr):
    """One signal behind two puts by different queues."""
    status = symm_put_async_by(ctx_ptr, destination, source, count, None, peer, 0, BACKEND)
    status = tl.minimum(status, symm_put_signal_async_by(ctx_ptr, destination + count, source + count, count, None, peer,
                                                         index + 1, 1, backend=BACKEND))
    status = tl.minimum(status, symm_signal_after_puts(ctx_ptr, index, peer, backend=BACKEND))
    tl.store(out, status)
    tl.store(out + 1, symm_signal_wait_until(ctx_ptr, index, SIGNAL_CMP_GE, 1, BACKEND))
    tl.store(out + 2, symm_flush(ctx_ptr, BACKEND))


@jit
def add_up(ctx_ptr, data_ptr, out, count, op, dtype, BACKEND: tl.constexpr):
    """Each program a piece of so many floats."""
    program = tl.program_id(0)
    tl.store(out + program, symm_all_reduce(ctx_ptr, data_ptr, program * count * 4, count, op, dtype, BACKEND))


KERNELS = (ask, write_at_all, signal_by_pointer, signal, meet, pass_a_message, ask_for_a_fence, copy, use_words, copy_rows,
           signal_for_all, add_up)
_POINTERS = ("data_ptr", "flag_ptr", "out", "seen", "source", "destination")


def make_signature(kernel):
    """Triton's types of the parameters, as the checks call it."""
    types = dict.fromkeys(kernel.arg_names, "i32") | {name: "*i64" for name in kernel.arg_names if name in _POINTERS}
    types |= {name: "i64" for name in kernel.arg_names if name in ("ctx_ptr", "address")}
    if kernel is add_up:
        types["data_ptr"] = "*fp32"
    return types | {"BACKEND": "constexpr"}
