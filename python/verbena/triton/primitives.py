"""The primitives for Triton kernels. They call the functions of verbena/device/symm_c.cuh, which describes each in detail.

`ctx_ptr` is the device_context of a team or workspace. Addresses are integers or pointers. All threads of a program make the
call, and the operation happens once per program. Primitives without another result return a status: SYMM_DONE, or a negative
value on failure. `backend` is a compile-time constant, the backend whose function is called; BACKEND_DEFAULT reads the backend
from the context at run time."""
from typing import Any

import triton.language as tl
from triton.language import core

from verbena.triton.call import as_given, call, find_element_size, find_program, unwrap
from verbena.triton.constants import BACKEND_DEFAULT, SIGNAL_OP_ADD, SIGNAL_OP_SET

_i32, _i64 = tl.int32, tl.int64


@core.extern
def symm_lsa_ptr(ctx_ptr: Any, local_ptr: Any, peer: Any, backend: Any = BACKEND_DEFAULT, _semantic: Any = None) -> Any:
    """Translates this rank's address `local_ptr` in a window to the address of the same offset at the peer, for loads and
    stores. Returns 0 if the peer's memory is not mapped. Returns a pointer if `local_ptr` is a pointer."""
    address = call(_semantic, backend, "symm_lsa_ptr", _i64, (ctx_ptr, _i64), (local_ptr, _i64), (peer, _i32))
    return as_given(_semantic, address, local_ptr)


@core.extern
def symm_lsa_multicast_ptr(ctx_ptr: Any, local_ptr: Any, backend: Any = BACKEND_DEFAULT, _semantic: Any = None) -> Any:
    """Returns the multicast address of `local_ptr` for multimem instructions, which reach all ranks whose memory is mapped.
    Returns 0 if there is no multicast. Returns a pointer if `local_ptr` is a pointer."""
    address = call(_semantic, backend, "symm_lsa_multicast_ptr", _i64, (ctx_ptr, _i64), (local_ptr, _i64))
    return as_given(_semantic, address, local_ptr)


@core.extern
def symm_lsa_signal_ptr(ctx_ptr: Any, peer: Any, backend: Any = BACKEND_DEFAULT, _semantic: Any = None) -> Any:
    """Returns the address of the peer's signals, which are 64-bit words; 0 if the peer's memory is not mapped."""
    return call(_semantic, backend, "symm_lsa_signal_ptr", _i64, (ctx_ptr, _i64), (peer, _i32))


@core.extern
def symm_team_size(ctx_ptr: Any, backend: Any = BACKEND_DEFAULT, _semantic: Any = None) -> Any:
    return call(_semantic, backend, "symm_team_size", _i32, (ctx_ptr, _i64))


@core.extern
def symm_team_rank(ctx_ptr: Any, backend: Any = BACKEND_DEFAULT, _semantic: Any = None) -> Any:
    return call(_semantic, backend, "symm_team_rank", _i32, (ctx_ptr, _i64))


@core.extern
def symm_team_lsa_size(ctx_ptr: Any, backend: Any = BACKEND_DEFAULT, _semantic: Any = None) -> Any:
    """Returns the number of ranks whose memory is mapped, this rank included."""
    return call(_semantic, backend, "symm_team_lsa_size", _i32, (ctx_ptr, _i64))


@core.extern
def symm_team_lsa(ctx_ptr: Any, peer: Any, backend: Any = BACKEND_DEFAULT, _semantic: Any = None) -> Any:
    """Returns 1 if the peer's memory is mapped for loads and stores, else 0."""
    return call(_semantic, backend, "symm_team_lsa", _i32, (ctx_ptr, _i64), (peer, _i32))


@core.extern
def symm_barrier(ctx_ptr: Any, backend: Any = BACKEND_DEFAULT, _semantic: Any = None) -> Any:
    """Waits until the same program of all ranks has called it. Afterwards the puts of all members are complete."""
    return call(_semantic, backend, "symm_barrier", _i32, (ctx_ptr, _i64))


def _call_barrier(semantic: Any, name: str, ctx_ptr: Any, barrier_index: Any, backend: Any) -> Any:
    # Programs that run at the same time need different barriers: the default is the program's index.
    index = find_program(semantic) if unwrap(barrier_index) is None else barrier_index
    return call(semantic, backend, name, _i32, (ctx_ptr, _i64), (index, _i32))


@core.extern
def symm_barrier_arrive(ctx_ptr: Any, barrier_index: Any = None, backend: Any = BACKEND_DEFAULT,
                        _semantic: Any = None) -> Any:
    """Arrives at a barrier without waiting; symm_barrier_wait() then waits. The default barrier is the program's index."""
    return _call_barrier(_semantic, "symm_barrier_arrive", ctx_ptr, barrier_index, backend)


@core.extern
def symm_barrier_wait(ctx_ptr: Any, barrier_index: Any = None, backend: Any = BACKEND_DEFAULT,
                      _semantic: Any = None) -> Any:
    return _call_barrier(_semantic, "symm_barrier_wait", ctx_ptr, barrier_index, backend)


@core.extern
def symm_lsa_barrier(ctx_ptr: Any, barrier_index: Any = None, backend: Any = BACKEND_DEFAULT,
                     _semantic: Any = None) -> Any:
    """Waits until the same program of all ranks whose memory is mapped has called it."""
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
    """Waits until all puts and signals of this program are complete at its peers."""
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
    """Changes a signal of the peer, after this program's earlier puts to that peer. `op` is SIGNAL_OP_*."""
    return call(_semantic, backend, "symm_signal", _i32, (ctx_ptr, _i64), (signal_index, _i32), (dest_rank, _i32),
                (value, _i64), (op, _i32))


@core.extern
def symm_signal_wait_until(ctx_ptr: Any, signal_index: Any, cmp: Any, value: Any, backend: Any = BACKEND_DEFAULT,
                           _semantic: Any = None) -> Any:
    """Waits until a signal of this rank satisfies the comparison `cmp` (SIGNAL_CMP_*, signed) with `value`. Returns the last
    value of the signal; if it does not satisfy the comparison, the wait timed out."""
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
    """Copies `count` elements to the peer, to the offset of this rank's address `dest_ptr` in its window. Returns before the
    data arrives. element_size is in bytes; None for the size of the pointer's elements."""
    return _call_copy(_semantic, backend, "symm_put_async", ctx_ptr, dest_ptr, src_ptr, count, element_size, dest_rank)


@core.extern
def symm_put_signal_async(ctx_ptr: Any, dest_ptr: Any, src_ptr: Any, count: Any, element_size: Any, dest_rank: Any,
                          signal_index: Any, signal_value: Any = 1, signal_op: Any = SIGNAL_OP_ADD,
                          backend: Any = BACKEND_DEFAULT, _semantic: Any = None) -> Any:
    """Puts data, then changes a signal of the peer. A peer that has waited for the signal sees the data."""
    return _call_copy(_semantic, backend, "symm_put_signal_async", ctx_ptr, dest_ptr, src_ptr, count, element_size,
                      dest_rank, (signal_index, _i32), (signal_value, _i64), (signal_op, _i32))


@core.extern
def symm_get(ctx_ptr: Any, dest_ptr: Any, src_ptr: Any, count: Any, element_size: Any, src_rank: Any,
             backend: Any = BACKEND_DEFAULT, _semantic: Any = None) -> Any:
    """Copies `count` elements from the peer, from the offset of this rank's address `src_ptr` in its window, and waits until
    they have arrived."""
    return _call_copy(_semantic, backend, "symm_get", ctx_ptr, dest_ptr, src_ptr, count, element_size, src_rank)


@core.extern
def symm_put_async_by(ctx_ptr: Any, dest_ptr: Any, src_ptr: Any, count: Any, element_size: Any, dest_rank: Any, queue: Any,
                      backend: Any = BACKEND_DEFAULT, _semantic: Any = None) -> Any:
    """Like symm_put_async(), through the put queue with index `queue`, modulo the number of queues; -1 for the program's own
    queue. Operations through one queue to one peer take effect in order."""
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
    """Changes a signal of the peer after the puts of all programs that were made before this call, for example before a
    barrier of the grid."""
    return call(_semantic, backend, "symm_signal_after_puts", _i32, (ctx_ptr, _i64), (signal_index, _i32),
                (dest_rank, _i32), (value, _i64), (op, _i32))


@core.extern
def symm_get_async(ctx_ptr: Any, dest_ptr: Any, src_ptr: Any, count: Any, element_size: Any, src_rank: Any,
                   queue: Any = -1, backend: Any = BACKEND_DEFAULT, _semantic: Any = None) -> Any:
    """Starts a get. Returns a request for symm_request_wait(), or a negative status."""
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
    """Puts `rows` rows of `row_count` elements as one network request. Strides are in elements."""
    return _call_rows(_semantic, backend, "symm_put_rows", ctx_ptr, dest_ptr, dest_stride, src_ptr, src_stride, row_count,
                      rows, element_size, dest_rank)


@core.extern
def symm_put_pieces(ctx_ptr: Any, pieces_ptr: Any, count: Any, dest_rank: Any, backend: Any = BACKEND_DEFAULT,
                    _semantic: Any = None) -> Any:
    """Puts `count` pieces as one batch. pieces_ptr points to int64 [count, 3] in GPU memory: for each piece the destination
    (this rank's address), the source and the length in bytes. Pieces must not overlap at the peer."""
    return call(_semantic, backend, "symm_put_pieces", _i32, (ctx_ptr, _i64), (pieces_ptr, _i64), (count, _i32),
                (dest_rank, _i32))


@core.extern
def symm_put_pieces_signal(ctx_ptr: Any, pieces_ptr: Any, count: Any, dest_rank: Any, signal_index: Any,
                           signal_value: Any = 1, signal_op: Any = SIGNAL_OP_ADD, backend: Any = BACKEND_DEFAULT,
                           _semantic: Any = None) -> Any:
    """Like symm_put_pieces(), and then changes a signal of the peer. A peer that has waited for the signal sees all pieces."""
    return call(_semantic, backend, "symm_put_pieces_signal", _i32, (ctx_ptr, _i64), (pieces_ptr, _i64), (count, _i32),
                (dest_rank, _i32), (signal_index, _i32), (signal_value, _i64), (signal_op, _i32))


@core.extern
def symm_get_rows(ctx_ptr: Any, dest_ptr: Any, dest_stride: Any, src_ptr: Any, src_stride: Any, row_count: Any, rows: Any,
                  element_size: Any, src_rank: Any, backend: Any = BACKEND_DEFAULT, _semantic: Any = None) -> Any:
    """Gets rows, with the same arguments as symm_put_rows(), and waits until they have arrived."""
    return _call_rows(_semantic, backend, "symm_get_rows", ctx_ptr, dest_ptr, dest_stride, src_ptr, src_stride, row_count,
                      rows, element_size, src_rank)


@core.extern
def symm_put_value(ctx_ptr: Any, word_ptr: Any, value: Any, dest_rank: Any, backend: Any = BACKEND_DEFAULT,
                   _semantic: Any = None) -> Any:
    """Writes a 64-bit word of the peer, after this program's earlier puts to that peer."""
    return call(_semantic, backend, "symm_put_value", _i32, (ctx_ptr, _i64), (word_ptr, _i64), (value, _i64),
                (dest_rank, _i32))


@core.extern
def symm_add(ctx_ptr: Any, word_ptr: Any, value: Any, dest_rank: Any, backend: Any = BACKEND_DEFAULT,
             _semantic: Any = None) -> Any:
    return call(_semantic, backend, "symm_add", _i32, (ctx_ptr, _i64), (word_ptr, _i64), (value, _i64), (dest_rank, _i32))


@core.extern
def symm_fetch_add(ctx_ptr: Any, word_ptr: Any, value: Any, dest_rank: Any, backend: Any = BACKEND_DEFAULT,
                   _semantic: Any = None) -> Any:
    """Adds `value` to a 64-bit word of the peer. Returns the word's previous value, or -2**63 on failure."""
    return call(_semantic, backend, "symm_fetch_add", _i64, (ctx_ptr, _i64), (word_ptr, _i64), (value, _i64),
                (dest_rank, _i32))


@core.extern
def symm_compare_swap(ctx_ptr: Any, word_ptr: Any, expected: Any, desired: Any, dest_rank: Any,
                      backend: Any = BACKEND_DEFAULT, _semantic: Any = None) -> Any:
    """Sets a 64-bit word of the peer to `desired` if it equals `expected`. Returns the word's previous value, or -2**63 on
    failure."""
    return call(_semantic, backend, "symm_compare_swap", _i64, (ctx_ptr, _i64), (word_ptr, _i64), (expected, _i64),
                (desired, _i64), (dest_rank, _i32))


@core.extern
def symm_wait_until(ctx_ptr: Any, word_ptr: Any, cmp: Any, value: Any, backend: Any = BACKEND_DEFAULT,
                    _semantic: Any = None) -> Any:
    """Waits until a 64-bit word of this rank satisfies the comparison `cmp` (SIGNAL_CMP_*) with `value`. Returns the last value
    of the word; if it does not satisfy the comparison, the wait timed out."""
    return call(_semantic, backend, "symm_wait_until", _i64, (ctx_ptr, _i64), (word_ptr, _i64), (cmp, _i32), (value, _i64))


@core.extern
def symm_wait_until_all(ctx_ptr: Any, words_ptr: Any, count: Any, cmp: Any, value: Any, backend: Any = BACKEND_DEFAULT,
                        _semantic: Any = None) -> Any:
    """Waits until all of `count` contiguous words satisfy the comparison with `value`."""
    return call(_semantic, backend, "symm_wait_until_all", _i32, (ctx_ptr, _i64), (words_ptr, _i64), (count, _i32),
                (cmp, _i32), (value, _i64))


@core.extern
def symm_wait_until_any(ctx_ptr: Any, words_ptr: Any, count: Any, cmp: Any, value: Any, skipped_ptr: Any = 0,
                        backend: Any = BACKEND_DEFAULT, _semantic: Any = None) -> Any:
    """Waits until one of `count` contiguous words satisfies the comparison with `value`. Returns the word's index, or a negative
    status. `skipped_ptr` is 0 or the address of `count` int32; words whose entry is not 0 are ignored."""
    return call(_semantic, backend, "symm_wait_until_any", _i32, (ctx_ptr, _i64), (words_ptr, _i64), (count, _i32),
                (cmp, _i32), (value, _i64), (skipped_ptr, _i64))


@core.extern
def symm_all_reduce(ctx_ptr: Any, local_ptr: Any, byte_offset: Any, num_elements: Any, reduce_op: Any, dtype: Any,
                    backend: Any = BACKEND_DEFAULT, _semantic: Any = None) -> Any:
    """Sums in place across all ranks whose memory is mapped. A demonstration: supports only REDUCE_OP_SUM of DTYPE_FLOAT32."""
    return call(_semantic, backend, "symm_all_reduce", _i32, (ctx_ptr, _i64), (local_ptr, _i64), (byte_offset, _i32),
                (num_elements, _i32), (reduce_op, _i32), (dtype, _i32))


@core.extern
def symm_widen(bits: Any, element_type: Any, backend: Any = BACKEND_DEFAULT, _semantic: Any = None) -> Any:
    """Converts the bits of a smaller type to the bits of a float32. `element_type` is 1 (half), 2 (bfloat16), 3 (e4m3) or 4
    (e5m2)."""
    return call(_semantic, backend, "symm_widen", _i32, (bits, _i32), (element_type, _i32))


@core.extern
def symm_narrow(float_bits: Any, element_type: Any, backend: Any = BACKEND_DEFAULT, _semantic: Any = None) -> Any:
    """Converts the bits of a float32 to the bits of a smaller type; rounds to nearest even. `element_type` as in symm_widen()."""
    return call(_semantic, backend, "symm_narrow", _i32, (float_bits, _i32), (element_type, _i32))
