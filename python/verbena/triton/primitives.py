"""The primitives for kernels in Triton: functions of verbena/device/symm_c.cuh, where each is described.

`ctx_ptr` is a team's device_context. Addresses are numbers or pointers. All threads of a program make the call, which
happens once for the program. What returns no value of its own returns a status: SYMM_DONE, or less than 0.
`backend` says at compile time whose function it is; BACKEND_DEFAULT leaves it to the context.
"""
from typing import Any

import triton.language as tl
from triton.language import core

from verbena.triton.call import as_given, call, find_element_size, find_program, unwrap
from verbena.triton.constants import BACKEND_DEFAULT, SIGNAL_OP_ADD, SIGNAL_OP_SET

_i32, _i64 = tl.int32, tl.int64


@core.extern
def symm_lsa_ptr(ctx_ptr: Any, local_ptr: Any, peer: Any, backend: Any = BACKEND_DEFAULT, _semantic: Any = None) -> Any:
    """The peer's place by this rank's address of it, for loads and stores; 0: out of reach. A pointer for a pointer."""
    address = call(_semantic, backend, "symm_lsa_ptr", _i64, (ctx_ptr, _i64), (local_ptr, _i64), (peer, _i32))
    return as_given(_semantic, address, local_ptr)


@core.extern
def symm_lsa_multicast_ptr(ctx_ptr: Any, local_ptr: Any, backend: Any = BACKEND_DEFAULT, _semantic: Any = None) -> Any:
    """The place of all ranks in reach at once, for multimem instructions; 0: none. A pointer for a pointer."""
    address = call(_semantic, backend, "symm_lsa_multicast_ptr", _i64, (ctx_ptr, _i64), (local_ptr, _i64))
    return as_given(_semantic, address, local_ptr)


@core.extern
def symm_lsa_signal_ptr(ctx_ptr: Any, peer: Any, backend: Any = BACKEND_DEFAULT, _semantic: Any = None) -> Any:
    """The peer's signals, 64 bits each; 0: out of reach."""
    return call(_semantic, backend, "symm_lsa_signal_ptr", _i64, (ctx_ptr, _i64), (peer, _i32))


@core.extern
def symm_team_size(ctx_ptr: Any, backend: Any = BACKEND_DEFAULT, _semantic: Any = None) -> Any:
    return call(_semantic, backend, "symm_team_size", _i32, (ctx_ptr, _i64))


@core.extern
def symm_team_rank(ctx_ptr: Any, backend: Any = BACKEND_DEFAULT, _semantic: Any = None) -> Any:
    return call(_semantic, backend, "symm_team_rank", _i32, (ctx_ptr, _i64))


@core.extern
def symm_team_lsa_size(ctx_ptr: Any, backend: Any = BACKEND_DEFAULT, _semantic: Any = None) -> Any:
    """How many ranks are in reach of loads and stores, this one among them."""
    return call(_semantic, backend, "symm_team_lsa_size", _i32, (ctx_ptr, _i64))


@core.extern
def symm_team_lsa(ctx_ptr: Any, peer: Any, backend: Any = BACKEND_DEFAULT, _semantic: Any = None) -> Any:
    """1 if the peer is one of them, or 0."""
    return call(_semantic, backend, "symm_team_lsa", _i32, (ctx_ptr, _i64), (peer, _i32))


@core.extern
def symm_barrier(ctx_ptr: Any, backend: Any = BACKEND_DEFAULT, _semantic: Any = None) -> Any:
    """Of the same programs of all ranks; completes all members' puts."""
    return call(_semantic, backend, "symm_barrier", _i32, (ctx_ptr, _i64))


def _call_barrier(semantic: Any, name: str, ctx_ptr: Any, barrier_index: Any, backend: Any) -> Any:
    # Two programs at once use different barriers, hence their own number where none is given.
    index = find_program(semantic) if unwrap(barrier_index) is None else barrier_index
    return call(semantic, backend, name, _i32, (ctx_ptr, _i64), (index, _i32))


@core.extern
def symm_barrier_arrive(ctx_ptr: Any, barrier_index: Any = None, backend: Any = BACKEND_DEFAULT,
                        _semantic: Any = None) -> Any:
    """The first half of a barrier, and symm_barrier_wait the second; by the program's number unless one is given."""
    return _call_barrier(_semantic, "symm_barrier_arrive", ctx_ptr, barrier_index, backend)


@core.extern
def symm_barrier_wait(ctx_ptr: Any, barrier_index: Any = None, backend: Any = BACKEND_DEFAULT,
                      _semantic: Any = None) -> Any:
    return _call_barrier(_semantic, "symm_barrier_wait", ctx_ptr, barrier_index, backend)


@core.extern
def symm_lsa_barrier(ctx_ptr: Any, barrier_index: Any = None, backend: Any = BACKEND_DEFAULT,
                     _semantic: Any = None) -> Any:
    """Of the ranks in reach only."""
    return _call_barrier(_semantic, "symm_lsa_barrier", ctx_ptr, barrier_index, backend)


@core.extern
def symm_lsa_barrier_arrive(ctx_ptr: Any, barrier_index: Any = None, backend: Any = BACKEND_DEFAULT,
                            _semantic: Any = None) -> Any:
    return _call_barrier(_semantic, "symm_lsa_barrier_arrive", ctx_ptr, barrier_index, backend)


@core.extern
def symm_lsa_barrier_wait(ctx_ptr: Any, barrier_index: Any = None, backend: Any = BACKEND_DEFAULT,
                          _semantic: Any = None) -> Any:
    return _call_barrier(_semantic, "symm_lsa_barrier_wait", ctx_ptr, barrier_index, backend)


@core.extern
def symm_fence(ctx_ptr: Any, scope: Any, backend: Any = BACKEND_DEFAULT, _semantic: Any = None) -> Any:
    """Each thread's own; FENCE_SCOPE_*."""
    return call(_semantic, backend, "symm_fence", _i32, (ctx_ptr, _i64), (scope, _i32))


@core.extern
def symm_quiet(ctx_ptr: Any, backend: Any = BACKEND_DEFAULT, _semantic: Any = None) -> Any:
    """All that this program has put and signalled is done at its peers."""
    return call(_semantic, backend, "symm_quiet", _i32, (ctx_ptr, _i64))


@core.extern
def symm_quiet_peer(ctx_ptr: Any, peer: Any, backend: Any = BACKEND_DEFAULT, _semantic: Any = None) -> Any:
    return call(_semantic, backend, "symm_quiet_peer", _i32, (ctx_ptr, _i64), (peer, _i32))


@core.extern
def symm_flush(ctx_ptr: Any, backend: Any = BACKEND_DEFAULT, _semantic: Any = None) -> Any:
    """The sources of this program's puts may be used again."""
    return call(_semantic, backend, "symm_flush", _i32, (ctx_ptr, _i64))


@core.extern
def symm_signal(ctx_ptr: Any, signal_index: Any, dest_rank: Any, value: Any = 1, op: Any = SIGNAL_OP_SET,
                backend: Any = BACKEND_DEFAULT, _semantic: Any = None) -> Any:
    """`op` is SIGNAL_OP_*. After what this program put there before."""
    return call(_semantic, backend, "symm_signal", _i32, (ctx_ptr, _i64), (signal_index, _i32), (dest_rank, _i32),
                (value, _i64), (op, _i32))


@core.extern
def symm_signal_wait_until(ctx_ptr: Any, signal_index: Any, cmp: Any, value: Any, backend: Any = BACKEND_DEFAULT,
                           _semantic: Any = None) -> Any:
    """The signal as the wait left it; it does not compare so (SIGNAL_CMP_*, signed) if the wait timed out."""
    return call(_semantic, backend, "symm_signal_wait_until", _i64, (ctx_ptr, _i64), (signal_index, _i32), (cmp, _i32),
                (value, _i64))


@core.extern
def symm_signal_reset(ctx_ptr: Any, signal_index: Any, backend: Any = BACKEND_DEFAULT, _semantic: Any = None) -> Any:
    """This rank's own, to 0."""
    return call(_semantic, backend, "symm_signal_reset", _i32, (ctx_ptr, _i64), (signal_index, _i32))


def _call_copy(semantic: Any, backend: Any, name: str, ctx_ptr: Any, dest_ptr: Any, src_ptr: Any, count: Any,
               element_size: Any, rank: Any, *more: tuple[Any, tl.dtype]) -> Any:
    size = find_element_size(name, element_size, src_ptr)
    return call(semantic, backend, name, _i32, (ctx_ptr, _i64), (dest_ptr, _i64), (src_ptr, _i64), (count, _i32),
                (size, _i32), (rank, _i32), *more)


@core.extern
def symm_put_async(ctx_ptr: Any, dest_ptr: Any, src_ptr: Any, count: Any, element_size: Any, dest_rank: Any,
                   backend: Any = BACKEND_DEFAULT, _semantic: Any = None) -> Any:
    """`count` elements to the place that this rank calls `dest_ptr`. An element_size of None is the pointer's."""
    return _call_copy(_semantic, backend, "symm_put_async", ctx_ptr, dest_ptr, src_ptr, count, element_size, dest_rank)


@core.extern
def symm_put_signal_async(ctx_ptr: Any, dest_ptr: Any, src_ptr: Any, count: Any, element_size: Any, dest_rank: Any,
                          signal_index: Any, signal_value: Any = 1, signal_op: Any = SIGNAL_OP_ADD,
                          backend: Any = BACKEND_DEFAULT, _semantic: Any = None) -> Any:
    """Who has waited for the signal sees the data."""
    return _call_copy(_semantic, backend, "symm_put_signal_async", ctx_ptr, dest_ptr, src_ptr, count, element_size,
                      dest_rank, (signal_index, _i32), (signal_value, _i64), (signal_op, _i32))


@core.extern
def symm_get(ctx_ptr: Any, dest_ptr: Any, src_ptr: Any, count: Any, element_size: Any, src_rank: Any,
             backend: Any = BACKEND_DEFAULT, _semantic: Any = None) -> Any:
    """From the place that this rank calls `src_ptr`; done when it returns."""
    return _call_copy(_semantic, backend, "symm_get", ctx_ptr, dest_ptr, src_ptr, count, element_size, src_rank)


@core.extern
def symm_put_async_by(ctx_ptr: Any, dest_ptr: Any, src_ptr: Any, count: Any, element_size: Any, dest_rank: Any, queue: Any,
                      backend: Any = BACKEND_DEFAULT, _semantic: Any = None) -> Any:
    """By a put queue of the caller's choice, modulo their number; -1: the program's own. What goes by one queue to one peer
    takes effect there in order."""
    return _call_copy(_semantic, backend, "symm_put_async_by", ctx_ptr, dest_ptr, src_ptr, count, element_size, dest_rank,
                      (queue, _i32))


@core.extern
def symm_put_signal_async_by(ctx_ptr: Any, dest_ptr: Any, src_ptr: Any, count: Any, element_size: Any, dest_rank: Any,
                             signal_index: Any, queue: Any, signal_value: Any = 1, signal_op: Any = SIGNAL_OP_ADD,
                             backend: Any = BACKEND_DEFAULT, _semantic: Any = None) -> Any:
    return _call_copy(_semantic, backend, "symm_put_signal_async_by", ctx_ptr, dest_ptr, src_ptr, count, element_size,
                      dest_rank, (signal_index, _i32), (signal_value, _i64), (signal_op, _i32), (queue, _i32))


@core.extern
def symm_signal_by(ctx_ptr: Any, signal_index: Any, dest_rank: Any, queue: Any, value: Any = 1, op: Any = SIGNAL_OP_SET,
                   backend: Any = BACKEND_DEFAULT, _semantic: Any = None) -> Any:
    return call(_semantic, backend, "symm_signal_by", _i32, (ctx_ptr, _i64), (signal_index, _i32), (dest_rank, _i32),
                (value, _i64), (op, _i32), (queue, _i32))


@core.extern
def symm_signal_behind_all(ctx_ptr: Any, signal_index: Any, dest_rank: Any, value: Any = 1, op: Any = SIGNAL_OP_ADD,
                           backend: Any = BACKEND_DEFAULT, _semantic: Any = None) -> Any:
    """Behind what all programs have put to the peer, as far as this one knows of it: behind a barrier of the grid."""
    return call(_semantic, backend, "symm_signal_behind_all", _i32, (ctx_ptr, _i64), (signal_index, _i32),
                (dest_rank, _i32), (value, _i64), (op, _i32))


@core.extern
def symm_get_async(ctx_ptr: Any, dest_ptr: Any, src_ptr: Any, count: Any, element_size: Any, src_rank: Any,
                   queue: Any = -1, backend: Any = BACKEND_DEFAULT, _semantic: Any = None) -> Any:
    """A request for symm_request_wait, or a status below 0."""
    size = find_element_size("symm_get_async", element_size, src_ptr)
    return call(_semantic, backend, "symm_get_async", _i64, (ctx_ptr, _i64), (dest_ptr, _i64), (src_ptr, _i64),
                (count, _i32), (size, _i32), (src_rank, _i32), (queue, _i32))


@core.extern
def symm_request_wait(ctx_ptr: Any, request: Any, backend: Any = BACKEND_DEFAULT, _semantic: Any = None) -> Any:
    """The data that was asked for is here when it returns."""
    return call(_semantic, backend, "symm_request_wait", _i32, (ctx_ptr, _i64), (request, _i64))


def _call_rows(semantic: Any, backend: Any, name: str, ctx_ptr: Any, dest_ptr: Any, dest_stride: Any, src_ptr: Any,
               src_stride: Any, row_count: Any, rows: Any, element_size: Any, rank: Any) -> Any:
    size = find_element_size(name, element_size, src_ptr)
    return call(semantic, backend, name, _i32, (ctx_ptr, _i64), (dest_ptr, _i64), (dest_stride, _i64), (src_ptr, _i64),
                (src_stride, _i64), (row_count, _i32), (rows, _i32), (size, _i32), (rank, _i32))


@core.extern
def symm_put_rows(ctx_ptr: Any, dest_ptr: Any, dest_stride: Any, src_ptr: Any, src_stride: Any, row_count: Any, rows: Any,
                  element_size: Any, dest_rank: Any, backend: Any = BACKEND_DEFAULT, _semantic: Any = None) -> Any:
    """`rows` rows of `row_count` elements, so many elements from one to the next: one request of the network."""
    return _call_rows(_semantic, backend, "symm_put_rows", ctx_ptr, dest_ptr, dest_stride, src_ptr, src_stride, row_count,
                      rows, element_size, dest_rank)


@core.extern
def symm_get_rows(ctx_ptr: Any, dest_ptr: Any, dest_stride: Any, src_ptr: Any, src_stride: Any, row_count: Any, rows: Any,
                  element_size: Any, src_rank: Any, backend: Any = BACKEND_DEFAULT, _semantic: Any = None) -> Any:
    """Back; done when it returns."""
    return _call_rows(_semantic, backend, "symm_get_rows", ctx_ptr, dest_ptr, dest_stride, src_ptr, src_stride, row_count,
                      rows, element_size, src_rank)


@core.extern
def symm_put_value(ctx_ptr: Any, word_ptr: Any, value: Any, dest_rank: Any, backend: Any = BACKEND_DEFAULT,
                   _semantic: Any = None) -> Any:
    """The peer's word of 64 bits becomes the value, after what this program put there before."""
    return call(_semantic, backend, "symm_put_value", _i32, (ctx_ptr, _i64), (word_ptr, _i64), (value, _i64),
                (dest_rank, _i32))


@core.extern
def symm_add(ctx_ptr: Any, word_ptr: Any, value: Any, dest_rank: Any, backend: Any = BACKEND_DEFAULT,
             _semantic: Any = None) -> Any:
    return call(_semantic, backend, "symm_add", _i32, (ctx_ptr, _i64), (word_ptr, _i64), (value, _i64), (dest_rank, _i32))


@core.extern
def symm_fetch_add(ctx_ptr: Any, word_ptr: Any, value: Any, dest_rank: Any, backend: Any = BACKEND_DEFAULT,
                   _semantic: Any = None) -> Any:
    """What the word was before; -2**63 where that failed."""
    return call(_semantic, backend, "symm_fetch_add", _i64, (ctx_ptr, _i64), (word_ptr, _i64), (value, _i64),
                (dest_rank, _i32))


@core.extern
def symm_compare_swap(ctx_ptr: Any, word_ptr: Any, expected: Any, desired: Any, dest_rank: Any,
                      backend: Any = BACKEND_DEFAULT, _semantic: Any = None) -> Any:
    """What the word was before: it is `desired` now if that was `expected`. -2**63 where it failed."""
    return call(_semantic, backend, "symm_compare_swap", _i64, (ctx_ptr, _i64), (word_ptr, _i64), (expected, _i64),
                (desired, _i64), (dest_rank, _i32))


@core.extern
def symm_wait_until(ctx_ptr: Any, word_ptr: Any, cmp: Any, value: Any, backend: Any = BACKEND_DEFAULT,
                    _semantic: Any = None) -> Any:
    """This rank's word as the wait left it; it does not compare so (SIGNAL_CMP_*) if the wait timed out."""
    return call(_semantic, backend, "symm_wait_until", _i64, (ctx_ptr, _i64), (word_ptr, _i64), (cmp, _i32), (value, _i64))


@core.extern
def symm_wait_until_all(ctx_ptr: Any, words_ptr: Any, count: Any, cmp: Any, value: Any, backend: Any = BACKEND_DEFAULT,
                        _semantic: Any = None) -> Any:
    """For each of `count` words, one behind the other."""
    return call(_semantic, backend, "symm_wait_until_all", _i32, (ctx_ptr, _i64), (words_ptr, _i64), (count, _i32),
                (cmp, _i32), (value, _i64))


@core.extern
def symm_wait_until_any(ctx_ptr: Any, words_ptr: Any, count: Any, cmp: Any, value: Any, skipped_ptr: Any = 0,
                        backend: Any = BACKEND_DEFAULT, _semantic: Any = None) -> Any:
    """The number of one of them that compares so, or a status below 0. `skipped_ptr`: as many int32, of which others than 0
    leave out their word."""
    return call(_semantic, backend, "symm_wait_until_any", _i32, (ctx_ptr, _i64), (words_ptr, _i64), (count, _i32),
                (cmp, _i32), (value, _i64), (skipped_ptr, _i64))


@core.extern
def symm_all_reduce(ctx_ptr: Any, local_ptr: Any, byte_offset: Any, num_elements: Any, reduce_op: Any, dtype: Any,
                    backend: Any = BACKEND_DEFAULT, _semantic: Any = None) -> Any:
    """In place, by the ranks in reach: REDUCE_OP_SUM of DTYPE_FLOAT32. A demonstration."""
    return call(_semantic, backend, "symm_all_reduce", _i32, (ctx_ptr, _i64), (local_ptr, _i64), (byte_offset, _i32),
                (num_elements, _i32), (reduce_op, _i32), (dtype, _i32))


@core.extern
def symm_widen(bits: Any, number_type: Any, backend: Any = BACKEND_DEFAULT, _semantic: Any = None) -> Any:
    """The bits of the float that a number of fewer bits is: `number_type` 1 half, 2 bfloat16, 3 e4m3, 4 e5m2."""
    return call(_semantic, backend, "symm_widen", _i32, (bits, _i32), (number_type, _i32))


@core.extern
def symm_narrow(float_bits: Any, number_type: Any, backend: Any = BACKEND_DEFAULT, _semantic: Any = None) -> Any:
    """Back, rounded to nearest, ties to even."""
    return call(_semantic, backend, "symm_narrow", _i32, (float_bits, _i32), (number_type, _i32))
