"""The primitives for kernels in Triton: functions of verbena/device/symm_c.cuh, which describes each.

`ctx_ptr` is a team's device_context. Addresses are numbers or pointers. All threads of a program call, and the operation
happens once for the program. Primitives that return no value return a status: SYMM_DONE, or less than 0. `backend`
names at compile time the backend whose function is called; BACKEND_DEFAULT reads it from the context."""
from typing import Any

import triton.language as tl
from triton.language import core

from verbena.triton.call import as_given, call, find_element_size, find_program, unwrap
from verbena.triton.constants import BACKEND_DEFAULT, SIGNAL_OP_ADD, SIGNAL_OP_SET

_i32, _i64 = tl.int32, tl.int64


@core.extern
def symm_lsa_ptr(ctx_ptr: Any, local_ptr: Any, peer: Any, backend: Any = BACKEND_DEFAULT, _semantic: Any = None) -> Any:
    """Returns the peer's address for this rank's address of the same memory, for loads and stores; 0 if they do not reach
    the peer. A pointer for a pointer."""
    address = call(_semantic, backend, "symm_lsa_ptr", _i64, (ctx_ptr, _i64), (local_ptr, _i64), (peer, _i32))
    return as_given(_semantic, address, local_ptr)


@core.extern
def symm_lsa_multicast_ptr(ctx_ptr: Any, local_ptr: Any, backend: Any = BACKEND_DEFAULT, _semantic: Any = None) -> Any:
    """Returns the multicast address of all ranks that loads and stores reach, for multimem instructions; 0: none. A pointer
    for a pointer."""
    address = call(_semantic, backend, "symm_lsa_multicast_ptr", _i64, (ctx_ptr, _i64), (local_ptr, _i64))
    return as_given(_semantic, address, local_ptr)


@core.extern
def symm_lsa_signal_ptr(ctx_ptr: Any, peer: Any, backend: Any = BACKEND_DEFAULT, _semantic: Any = None) -> Any:
    """Returns the address of the peer's signals, 64 bits each; 0 if loads and stores do not reach the peer."""
    return call(_semantic, backend, "symm_lsa_signal_ptr", _i64, (ctx_ptr, _i64), (peer, _i32))


@core.extern
def symm_team_size(ctx_ptr: Any, backend: Any = BACKEND_DEFAULT, _semantic: Any = None) -> Any:
    return call(_semantic, backend, "symm_team_size", _i32, (ctx_ptr, _i64))


@core.extern
def symm_team_rank(ctx_ptr: Any, backend: Any = BACKEND_DEFAULT, _semantic: Any = None) -> Any:
    return call(_semantic, backend, "symm_team_rank", _i32, (ctx_ptr, _i64))


@core.extern
def symm_team_lsa_size(ctx_ptr: Any, backend: Any = BACKEND_DEFAULT, _semantic: Any = None) -> Any:
    """Returns the number of ranks that loads and stores reach, this one included."""
    return call(_semantic, backend, "symm_team_lsa_size", _i32, (ctx_ptr, _i64))


@core.extern
def symm_team_lsa(ctx_ptr: Any, peer: Any, backend: Any = BACKEND_DEFAULT, _semantic: Any = None) -> Any:
    """Returns 1 if loads and stores reach the peer, else 0."""
    return call(_semantic, backend, "symm_team_lsa", _i32, (ctx_ptr, _i64), (peer, _i32))


@core.extern
def symm_barrier(ctx_ptr: Any, backend: Any = BACKEND_DEFAULT, _semantic: Any = None) -> Any:
    """Waits for the same program of all ranks; completes all members' puts."""
    return call(_semantic, backend, "symm_barrier", _i32, (ctx_ptr, _i64))


def _call_barrier(semantic: Any, name: str, ctx_ptr: Any, barrier_index: Any, backend: Any) -> Any:
    # Two programs at once use different barriers, hence their own number where none is given.
    index = find_program(semantic) if unwrap(barrier_index) is None else barrier_index
    return call(semantic, backend, name, _i32, (ctx_ptr, _i64), (index, _i32))


@core.extern
def symm_barrier_arrive(ctx_ptr: Any, barrier_index: Any = None, backend: Any = BACKEND_DEFAULT,
                        _semantic: Any = None) -> Any:
    """The first half of a barrier; symm_barrier_wait is the second. By default the barrier is the program's number."""
    return _call_barrier(_semantic, "symm_barrier_arrive", ctx_ptr, barrier_index, backend)


@core.extern
def symm_barrier_wait(ctx_ptr: Any, barrier_index: Any = None, backend: Any = BACKEND_DEFAULT,
                      _semantic: Any = None) -> Any:
    return _call_barrier(_semantic, "symm_barrier_wait", ctx_ptr, barrier_index, backend)


@core.extern
def symm_lsa_barrier(ctx_ptr: Any, barrier_index: Any = None, backend: Any = BACKEND_DEFAULT,
                     _semantic: Any = None) -> Any:
    """Waits for the same program of the ranks that loads and stores reach."""
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
    """Orders each thread's earlier accesses before its later ones. `scope` is FENCE_SCOPE_*."""
    return call(_semantic, backend, "symm_fence", _i32, (ctx_ptr, _i64), (scope, _i32))


@core.extern
def symm_quiet(ctx_ptr: Any, backend: Any = BACKEND_DEFAULT, _semantic: Any = None) -> Any:
    """Waits until all that this program has put and signalled is complete at its peers."""
    return call(_semantic, backend, "symm_quiet", _i32, (ctx_ptr, _i64))


@core.extern
def symm_quiet_peer(ctx_ptr: Any, peer: Any, backend: Any = BACKEND_DEFAULT, _semantic: Any = None) -> Any:
    return call(_semantic, backend, "symm_quiet_peer", _i32, (ctx_ptr, _i64), (peer, _i32))


@core.extern
def symm_flush(ctx_ptr: Any, backend: Any = BACKEND_DEFAULT, _semantic: Any = None) -> Any:
    """Waits until the sources of this program's puts may be reused."""
    return call(_semantic, backend, "symm_flush", _i32, (ctx_ptr, _i64))


@core.extern
def symm_signal(ctx_ptr: Any, signal_index: Any, dest_rank: Any, value: Any = 1, op: Any = SIGNAL_OP_SET,
                backend: Any = BACKEND_DEFAULT, _semantic: Any = None) -> Any:
    """Changes the peer's signal, after what this program has put there. `op` is SIGNAL_OP_*."""
    return call(_semantic, backend, "symm_signal", _i32, (ctx_ptr, _i64), (signal_index, _i32), (dest_rank, _i32),
                (value, _i64), (op, _i32))


@core.extern
def symm_signal_wait_until(ctx_ptr: Any, signal_index: Any, cmp: Any, value: Any, backend: Any = BACKEND_DEFAULT,
                           _semantic: Any = None) -> Any:
    """Waits until a signal of this rank compares with `value` (SIGNAL_CMP_*, signed). Returns the signal; if it does not
    compare, the wait timed out."""
    return call(_semantic, backend, "symm_signal_wait_until", _i64, (ctx_ptr, _i64), (signal_index, _i32), (cmp, _i32),
                (value, _i64))


@core.extern
def symm_signal_reset(ctx_ptr: Any, signal_index: Any, backend: Any = BACKEND_DEFAULT, _semantic: Any = None) -> Any:
    """Sets a signal of this rank to 0."""
    return call(_semantic, backend, "symm_signal_reset", _i32, (ctx_ptr, _i64), (signal_index, _i32))


def _call_copy(semantic: Any, backend: Any, name: str, ctx_ptr: Any, dest_ptr: Any, src_ptr: Any, count: Any,
               element_size: Any, rank: Any, *more: tuple[Any, tl.dtype]) -> Any:
    size = find_element_size(name, element_size, src_ptr)
    return call(semantic, backend, name, _i32, (ctx_ptr, _i64), (dest_ptr, _i64), (src_ptr, _i64), (count, _i32),
                (size, _i32), (rank, _i32), *more)


@core.extern
def symm_put_async(ctx_ptr: Any, dest_ptr: Any, src_ptr: Any, count: Any, element_size: Any, dest_rank: Any,
                   backend: Any = BACKEND_DEFAULT, _semantic: Any = None) -> Any:
    """Puts `count` elements to the peer's memory at this rank's address `dest_ptr`. element_size None: the pointer's."""
    return _call_copy(_semantic, backend, "symm_put_async", ctx_ptr, dest_ptr, src_ptr, count, element_size, dest_rank)


@core.extern
def symm_put_signal_async(ctx_ptr: Any, dest_ptr: Any, src_ptr: Any, count: Any, element_size: Any, dest_rank: Any,
                          signal_index: Any, signal_value: Any = 1, signal_op: Any = SIGNAL_OP_ADD,
                          backend: Any = BACKEND_DEFAULT, _semantic: Any = None) -> Any:
    """Puts data and then signals the peer: after waiting for the signal the peer sees the data."""
    return _call_copy(_semantic, backend, "symm_put_signal_async", ctx_ptr, dest_ptr, src_ptr, count, element_size,
                      dest_rank, (signal_index, _i32), (signal_value, _i64), (signal_op, _i32))


@core.extern
def symm_get(ctx_ptr: Any, dest_ptr: Any, src_ptr: Any, count: Any, element_size: Any, src_rank: Any,
             backend: Any = BACKEND_DEFAULT, _semantic: Any = None) -> Any:
    """Gets `count` elements from the peer's memory at this rank's address `src_ptr`, and waits for them."""
    return _call_copy(_semantic, backend, "symm_get", ctx_ptr, dest_ptr, src_ptr, count, element_size, src_rank)


@core.extern
def symm_put_async_by(ctx_ptr: Any, dest_ptr: Any, src_ptr: Any, count: Any, element_size: Any, dest_rank: Any, queue: Any,
                      backend: Any = BACKEND_DEFAULT, _semantic: Any = None) -> Any:
    """The same by a put queue of the caller's choice, modulo their number; -1: the program's. Operations through one queue
    to one peer take effect there in order."""
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
def symm_signal_after_puts(ctx_ptr: Any, signal_index: Any, dest_rank: Any, value: Any = 1, op: Any = SIGNAL_OP_ADD,
                           backend: Any = BACKEND_DEFAULT, _semantic: Any = None) -> Any:
    """Signals the peer after what all programs have put there before the call, such as before a barrier of the grid."""
    return call(_semantic, backend, "symm_signal_after_puts", _i32, (ctx_ptr, _i64), (signal_index, _i32),
                (dest_rank, _i32), (value, _i64), (op, _i32))


@core.extern
def symm_get_async(ctx_ptr: Any, dest_ptr: Any, src_ptr: Any, count: Any, element_size: Any, src_rank: Any,
                   queue: Any = -1, backend: Any = BACKEND_DEFAULT, _semantic: Any = None) -> Any:
    """Starts a get. Returns a request for symm_request_wait, or a status below 0."""
    size = find_element_size("symm_get_async", element_size, src_ptr)
    return call(_semantic, backend, "symm_get_async", _i64, (ctx_ptr, _i64), (dest_ptr, _i64), (src_ptr, _i64),
                (count, _i32), (size, _i32), (src_rank, _i32), (queue, _i32))


@core.extern
def symm_request_wait(ctx_ptr: Any, request: Any, backend: Any = BACKEND_DEFAULT, _semantic: Any = None) -> Any:
    """Waits for the data of a symm_get_async()."""
    return call(_semantic, backend, "symm_request_wait", _i32, (ctx_ptr, _i64), (request, _i64))


def _call_rows(semantic: Any, backend: Any, name: str, ctx_ptr: Any, dest_ptr: Any, dest_stride: Any, src_ptr: Any,
               src_stride: Any, row_count: Any, rows: Any, element_size: Any, rank: Any) -> Any:
    size = find_element_size(name, element_size, src_ptr)
    return call(semantic, backend, name, _i32, (ctx_ptr, _i64), (dest_ptr, _i64), (dest_stride, _i64), (src_ptr, _i64),
                (src_stride, _i64), (row_count, _i32), (rows, _i32), (size, _i32), (rank, _i32))


@core.extern
def symm_put_rows(ctx_ptr: Any, dest_ptr: Any, dest_stride: Any, src_ptr: Any, src_stride: Any, row_count: Any, rows: Any,
                  element_size: Any, dest_rank: Any, backend: Any = BACKEND_DEFAULT, _semantic: Any = None) -> Any:
    """Puts `rows` rows of `row_count` elements, with strides in elements: one request of the network."""
    return _call_rows(_semantic, backend, "symm_put_rows", ctx_ptr, dest_ptr, dest_stride, src_ptr, src_stride, row_count,
                      rows, element_size, dest_rank)


@core.extern
def symm_get_rows(ctx_ptr: Any, dest_ptr: Any, dest_stride: Any, src_ptr: Any, src_stride: Any, row_count: Any, rows: Any,
                  element_size: Any, src_rank: Any, backend: Any = BACKEND_DEFAULT, _semantic: Any = None) -> Any:
    """Gets rows, and waits for them."""
    return _call_rows(_semantic, backend, "symm_get_rows", ctx_ptr, dest_ptr, dest_stride, src_ptr, src_stride, row_count,
                      rows, element_size, src_rank)


@core.extern
def symm_put_value(ctx_ptr: Any, word_ptr: Any, value: Any, dest_rank: Any, backend: Any = BACKEND_DEFAULT,
                   _semantic: Any = None) -> Any:
    """Writes a 64-bit word of the peer, after what this program has put there."""
    return call(_semantic, backend, "symm_put_value", _i32, (ctx_ptr, _i64), (word_ptr, _i64), (value, _i64),
                (dest_rank, _i32))


@core.extern
def symm_add(ctx_ptr: Any, word_ptr: Any, value: Any, dest_rank: Any, backend: Any = BACKEND_DEFAULT,
             _semantic: Any = None) -> Any:
    return call(_semantic, backend, "symm_add", _i32, (ctx_ptr, _i64), (word_ptr, _i64), (value, _i64), (dest_rank, _i32))


@core.extern
def symm_fetch_add(ctx_ptr: Any, word_ptr: Any, value: Any, dest_rank: Any, backend: Any = BACKEND_DEFAULT,
                   _semantic: Any = None) -> Any:
    """Adds to a word of the peer. Returns the value before; -2**63 if it failed."""
    return call(_semantic, backend, "symm_fetch_add", _i64, (ctx_ptr, _i64), (word_ptr, _i64), (value, _i64),
                (dest_rank, _i32))


@core.extern
def symm_compare_swap(ctx_ptr: Any, word_ptr: Any, expected: Any, desired: Any, dest_rank: Any,
                      backend: Any = BACKEND_DEFAULT, _semantic: Any = None) -> Any:
    """Sets a word of the peer to `desired` if it is `expected`. Returns the value before; -2**63 if it failed."""
    return call(_semantic, backend, "symm_compare_swap", _i64, (ctx_ptr, _i64), (word_ptr, _i64), (expected, _i64),
                (desired, _i64), (dest_rank, _i32))


@core.extern
def symm_wait_until(ctx_ptr: Any, word_ptr: Any, cmp: Any, value: Any, backend: Any = BACKEND_DEFAULT,
                    _semantic: Any = None) -> Any:
    """Waits until a word of this rank compares with `value` (SIGNAL_CMP_*). Returns the word; if it does not compare, the
    wait timed out."""
    return call(_semantic, backend, "symm_wait_until", _i64, (ctx_ptr, _i64), (word_ptr, _i64), (cmp, _i32), (value, _i64))


@core.extern
def symm_wait_until_all(ctx_ptr: Any, words_ptr: Any, count: Any, cmp: Any, value: Any, backend: Any = BACKEND_DEFAULT,
                        _semantic: Any = None) -> Any:
    """Waits until each of `count` contiguous words compares with `value`."""
    return call(_semantic, backend, "symm_wait_until_all", _i32, (ctx_ptr, _i64), (words_ptr, _i64), (count, _i32),
                (cmp, _i32), (value, _i64))


@core.extern
def symm_wait_until_any(ctx_ptr: Any, words_ptr: Any, count: Any, cmp: Any, value: Any, skipped_ptr: Any = 0,
                        backend: Any = BACKEND_DEFAULT, _semantic: Any = None) -> Any:
    """Waits until one of `count` words compares with `value`. Returns its index, or a status below 0. `skipped_ptr`:
    `count` int32; a word whose number is not 0 is ignored."""
    return call(_semantic, backend, "symm_wait_until_any", _i32, (ctx_ptr, _i64), (words_ptr, _i64), (count, _i32),
                (cmp, _i32), (value, _i64), (skipped_ptr, _i64))


@core.extern
def symm_all_reduce(ctx_ptr: Any, local_ptr: Any, byte_offset: Any, num_elements: Any, reduce_op: Any, dtype: Any,
                    backend: Any = BACKEND_DEFAULT, _semantic: Any = None) -> Any:
    """Sums in place across the ranks that loads and stores reach: REDUCE_OP_SUM of DTYPE_FLOAT32. A demonstration."""
    return call(_semantic, backend, "symm_all_reduce", _i32, (ctx_ptr, _i64), (local_ptr, _i64), (byte_offset, _i32),
                (num_elements, _i32), (reduce_op, _i32), (dtype, _i32))


@core.extern
def symm_widen(bits: Any, element_type: Any, backend: Any = BACKEND_DEFAULT, _semantic: Any = None) -> Any:
    """Returns the bits of a float with the value of a smaller number: `element_type` 1 half, 2 bfloat16, 3 e4m3, 4 e5m2."""
    return call(_semantic, backend, "symm_widen", _i32, (bits, _i32), (element_type, _i32))


@core.extern
def symm_narrow(float_bits: Any, element_type: Any, backend: Any = BACKEND_DEFAULT, _semantic: Any = None) -> Any:
    """Converts the bits of a float to the smaller type, rounded to nearest, ties to even."""
    return call(_semantic, backend, "symm_narrow", _i32, (float_bits, _i32), (element_type, _i32))
