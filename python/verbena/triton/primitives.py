"""The primitives for Triton kernels. Each primitive calls the function with the same name in verbena/device/symm_c.cuh, which describes the
function in detail.

`ctx_ptr` is the device_context of a team or workspace. Addresses are integers or pointers. All threads of a program make the
call, and the operation happens once per program. Unless a primitive returns something else, it returns a status, which is SYMM_DONE or, on
failure, a negative value. `backend` is a compile-time constant that names the backend whose function is called. With BACKEND_DEFAULT, the
function reads the backend from the context at run time."""
import functools
import inspect
from collections.abc import Callable
from typing import Any

import triton.language as tl
from triton.language import core

from verbena.triton.call import as_given, call, find_element_size, find_program, unwrap
from verbena.triton.constants import BACKEND_DEFAULT, SIGNAL_OP_ADD, SIGNAL_OP_SET

_i32, _i64 = tl.int32, tl.int64
# Types of arguments that may be None.
_program = "int32: None becomes the program's index, because programs that run at the same time need different barriers"
_size = "int32: None becomes the size of the elements of `src_ptr`"


def _primitive(returned: tl.dtype, *types: Any) -> Callable[[Any], Any]:
    """A decorator for functions. The decorated function emits a call of the bitcode's function with the same name. `types` are the types of
    the arguments that precede `backend`."""
    def decorate(function: Any) -> Any:
        signature, name = inspect.signature(function), function.__name__

        @core.extern
        @functools.wraps(function)
        def emit(*arguments: Any, **named: Any) -> Any:
            bound = signature.bind(*arguments, **named)
            bound.apply_defaults()
            *values, backend, semantic = bound.arguments.values()

            def convert(value: Any, kind: Any) -> tuple[Any, tl.dtype]:
                if kind is _program:
                    return (find_program(semantic) if unwrap(value) is None else value), _i32
                if kind is _size:
                    return find_element_size(name, value, bound.arguments["src_ptr"]), _i32
                return value, kind
            return call(semantic, backend, name, returned, *map(convert, values, types))
        return emit
    return decorate


@core.extern
def symm_lsa_ptr(ctx_ptr: Any, local_ptr: Any, peer: Any, backend: Any = BACKEND_DEFAULT, _semantic: Any = None) -> Any:
    """Translates `local_ptr`, an address in a window of this rank, to the address of the peer's memory at the same offset, for loads and
    stores. Returns 0 if the peer's memory is not mapped. Returns a pointer if `local_ptr` is a pointer."""
    address = call(_semantic, backend, "symm_lsa_ptr", _i64, (ctx_ptr, _i64), (local_ptr, _i64), (peer, _i32))
    return as_given(_semantic, address, local_ptr)


@core.extern
def symm_lsa_multicast_ptr(ctx_ptr: Any, local_ptr: Any, backend: Any = BACKEND_DEFAULT, _semantic: Any = None) -> Any:
    """Returns the multicast address that corresponds to `local_ptr`. A multimem instruction on this address accesses the memory of all
    ranks whose memory is mapped. Returns 0 if there is no multicast address. Returns a pointer if `local_ptr` is a pointer."""
    address = call(_semantic, backend, "symm_lsa_multicast_ptr", _i64, (ctx_ptr, _i64), (local_ptr, _i64))
    return as_given(_semantic, address, local_ptr)


@_primitive(_i64, _i64, _i32)
def symm_lsa_signal_ptr(ctx_ptr: Any, peer: Any, backend: Any = BACKEND_DEFAULT, _semantic: Any = None) -> Any:
    """Returns the address of the peer's signals, which are 64-bit words; 0 if the peer's memory is not mapped."""


@_primitive(_i32, _i64)
def symm_team_size(ctx_ptr: Any, backend: Any = BACKEND_DEFAULT, _semantic: Any = None) -> Any:
    ...


@_primitive(_i32, _i64)
def symm_team_rank(ctx_ptr: Any, backend: Any = BACKEND_DEFAULT, _semantic: Any = None) -> Any:
    ...


@_primitive(_i32, _i64)
def symm_team_lsa_size(ctx_ptr: Any, backend: Any = BACKEND_DEFAULT, _semantic: Any = None) -> Any:
    """Returns the number of ranks whose memory is mapped, including this rank."""


@_primitive(_i32, _i64, _i32)
def symm_team_lsa(ctx_ptr: Any, peer: Any, backend: Any = BACKEND_DEFAULT, _semantic: Any = None) -> Any:
    """Returns 1 if the peer's memory is mapped for loads and stores, else 0."""


@_primitive(_i32, _i64)
def symm_barrier(ctx_ptr: Any, backend: Any = BACKEND_DEFAULT, _semantic: Any = None) -> Any:
    """Waits until the program with the same index has made this call on all ranks. After the barrier, all members' earlier puts are
    complete."""


@_primitive(_i32, _i64, _program)
def symm_barrier_arrive(ctx_ptr: Any, barrier_index: Any = None, backend: Any = BACKEND_DEFAULT,
                        _semantic: Any = None) -> Any:
    """Arrives at a barrier without waiting; symm_barrier_wait() then waits. By default, the barrier's number is the program's index."""


@_primitive(_i32, _i64, _program)
def symm_barrier_wait(ctx_ptr: Any, barrier_index: Any = None, backend: Any = BACKEND_DEFAULT,
                      _semantic: Any = None) -> Any:
    ...


@_primitive(_i32, _i64, _program)
def symm_lsa_barrier(ctx_ptr: Any, barrier_index: Any = None, backend: Any = BACKEND_DEFAULT,
                     _semantic: Any = None) -> Any:
    """Waits until the program with the same index has made this call on all ranks whose memory is mapped."""


@_primitive(_i32, _i64, _program)
def symm_lsa_barrier_arrive(ctx_ptr: Any, barrier_index: Any = None, backend: Any = BACKEND_DEFAULT,
                            _semantic: Any = None) -> Any:
    ...


@_primitive(_i32, _i64, _program)
def symm_lsa_barrier_wait(ctx_ptr: Any, barrier_index: Any = None, backend: Any = BACKEND_DEFAULT,
                          _semantic: Any = None) -> Any:
    ...


@_primitive(_i32, _i64, _i32)
def symm_fence(ctx_ptr: Any, scope: Any, backend: Any = BACKEND_DEFAULT, _semantic: Any = None) -> Any:
    """Orders each thread's earlier memory accesses before its later memory accesses. `scope` is one of FENCE_SCOPE_*."""


@_primitive(_i32, _i64)
def symm_quiet(ctx_ptr: Any, backend: Any = BACKEND_DEFAULT, _semantic: Any = None) -> Any:
    """Waits until all puts and signals of this program are complete at its peers."""


@_primitive(_i32, _i64, _i32)
def symm_quiet_peer(ctx_ptr: Any, peer: Any, backend: Any = BACKEND_DEFAULT, _semantic: Any = None) -> Any:
    ...


@_primitive(_i32, _i64)
def symm_flush(ctx_ptr: Any, backend: Any = BACKEND_DEFAULT, _semantic: Any = None) -> Any:
    """Waits until the sources of this program's puts may be reused."""


@_primitive(_i32, _i64, _i32, _i32, _i64, _i32)
def symm_signal(ctx_ptr: Any, signal_index: Any, dest_rank: Any, value: Any = 1, op: Any = SIGNAL_OP_SET,
                backend: Any = BACKEND_DEFAULT, _semantic: Any = None) -> Any:
    """Changes a signal of the peer. The change takes effect after this program's earlier puts to that peer. `op` is one of SIGNAL_OP_*."""


@_primitive(_i64, _i64, _i32, _i32, _i64)
def symm_signal_wait_until(ctx_ptr: Any, signal_index: Any, cmp: Any, value: Any, backend: Any = BACKEND_DEFAULT,
                           _semantic: Any = None) -> Any:
    """Waits until a signal of this rank satisfies the comparison `cmp` (SIGNAL_CMP_*, signed) with `value`. Returns the last value of the
    signal. If this value does not satisfy the comparison, the wait has failed or timed out."""


@_primitive(_i32, _i64, _i32)
def symm_signal_reset(ctx_ptr: Any, signal_index: Any, backend: Any = BACKEND_DEFAULT, _semantic: Any = None) -> Any:
    """Sets a signal of this rank to 0."""


@_primitive(_i32, _i64, _i64, _i64, _i32, _size, _i32)
def symm_put_async(ctx_ptr: Any, dest_ptr: Any, src_ptr: Any, count: Any, element_size: Any, dest_rank: Any,
                   backend: Any = BACKEND_DEFAULT, _semantic: Any = None) -> Any:
    """Copies `count` elements to the peer. `dest_ptr` is an address in a window of this rank; the call writes the peer's memory at the same
    offset. Returns before the data arrives. element_size is in bytes; None means the size of the pointer's elements."""


@_primitive(_i32, _i64, _i64, _i64, _i32, _size, _i32, _i32, _i64, _i32)
def symm_put_signal_async(ctx_ptr: Any, dest_ptr: Any, src_ptr: Any, count: Any, element_size: Any, dest_rank: Any,
                          signal_index: Any, signal_value: Any = 1, signal_op: Any = SIGNAL_OP_ADD,
                          backend: Any = BACKEND_DEFAULT, _semantic: Any = None) -> Any:
    """Puts data, then changes a signal of the peer. A peer that has waited for the signal sees the data."""


@_primitive(_i32, _i64, _i64, _i64, _i32, _size, _i32)
def symm_get(ctx_ptr: Any, dest_ptr: Any, src_ptr: Any, count: Any, element_size: Any, src_rank: Any,
             backend: Any = BACKEND_DEFAULT, _semantic: Any = None) -> Any:
    """Copies `count` elements from the peer, and waits until they have arrived. `src_ptr` is an address in a window of this rank; the call
    reads the peer's memory at the same offset."""


@_primitive(_i32, _i64, _i64, _i64, _i32, _size, _i32, _i32)
def symm_put_async_by(ctx_ptr: Any, dest_ptr: Any, src_ptr: Any, count: Any, element_size: Any, dest_rank: Any, queue: Any,
                      backend: Any = BACKEND_DEFAULT, _semantic: Any = None) -> Any:
    """Like symm_put_async(), but the put goes through queue number `queue` modulo the backend's number of queues. Pass -1 to use the
    program's own queue. Operations on the same peer that use the same queue take effect in order."""


@core.extern
def symm_put_signal_async_by(ctx_ptr: Any, dest_ptr: Any, src_ptr: Any, count: Any, element_size: Any, dest_rank: Any,
                             signal_index: Any, queue: Any, signal_value: Any = 1, signal_op: Any = SIGNAL_OP_ADD,
                             backend: Any = BACKEND_DEFAULT, _semantic: Any = None) -> Any:
    size = find_element_size("symm_put_signal_async_by", element_size, src_ptr)
    return call(_semantic, backend, "symm_put_signal_async_by", _i32, (ctx_ptr, _i64), (dest_ptr, _i64), (src_ptr, _i64),
                (count, _i32), (size, _i32), (dest_rank, _i32), (signal_index, _i32), (signal_value, _i64), (signal_op, _i32),
                (queue, _i32))


@core.extern
def symm_signal_by(ctx_ptr: Any, signal_index: Any, dest_rank: Any, queue: Any, value: Any = 1, op: Any = SIGNAL_OP_SET,
                   backend: Any = BACKEND_DEFAULT, _semantic: Any = None) -> Any:
    return call(_semantic, backend, "symm_signal_by", _i32, (ctx_ptr, _i64), (signal_index, _i32), (dest_rank, _i32),
                (value, _i64), (op, _i32), (queue, _i32))


@_primitive(_i32, _i64, _i32, _i32, _i64, _i32)
def symm_signal_after_puts(ctx_ptr: Any, signal_index: Any, dest_rank: Any, value: Any = 1, op: Any = SIGNAL_OP_ADD,
                           backend: Any = BACKEND_DEFAULT, _semantic: Any = None) -> Any:
    """Changes a signal of the peer. The change takes effect after all puts that any program made before this call, for example before a
    barrier of the grid."""


@_primitive(_i64, _i64, _i64, _i64, _i32, _size, _i32, _i32)
def symm_get_async(ctx_ptr: Any, dest_ptr: Any, src_ptr: Any, count: Any, element_size: Any, src_rank: Any,
                   queue: Any = -1, backend: Any = BACKEND_DEFAULT, _semantic: Any = None) -> Any:
    """Starts a get. Returns a request for symm_request_wait(), or a negative status."""


@_primitive(_i32, _i64, _i64)
def symm_request_wait(ctx_ptr: Any, request: Any, backend: Any = BACKEND_DEFAULT, _semantic: Any = None) -> Any:
    """Waits for the data of a symm_get_async()."""


@_primitive(_i32, _i64, _i64, _i64, _i64, _i64, _i32, _i32, _size, _i32)
def symm_put_rows(ctx_ptr: Any, dest_ptr: Any, dest_stride: Any, src_ptr: Any, src_stride: Any, row_count: Any, rows: Any,
                  element_size: Any, dest_rank: Any, backend: Any = BACKEND_DEFAULT, _semantic: Any = None) -> Any:
    """Puts `rows` rows of `row_count` elements as one network request. Strides are in elements."""


@_primitive(_i32, _i64, _i64, _i32, _i32)
def symm_put_pieces(ctx_ptr: Any, pieces_ptr: Any, count: Any, dest_rank: Any, backend: Any = BACKEND_DEFAULT,
                    _semantic: Any = None) -> Any:
    """Puts `count` pieces as one batch. pieces_ptr points to int64 [count, 3] in GPU memory: for each piece, the destination (as this
    rank's address), the source, and the length in bytes. Pieces must not overlap at the peer."""


@_primitive(_i32, _i64, _i64, _i32, _i32, _i32, _i64, _i32)
def symm_put_pieces_signal(ctx_ptr: Any, pieces_ptr: Any, count: Any, dest_rank: Any, signal_index: Any,
                           signal_value: Any = 1, signal_op: Any = SIGNAL_OP_ADD, backend: Any = BACKEND_DEFAULT,
                           _semantic: Any = None) -> Any:
    """Like symm_put_pieces(), but then also changes a signal of the peer. A peer that has waited for the signal sees all pieces."""


@_primitive(_i32, _i64, _i64, _i64, _i64, _i64, _i32, _i32, _size, _i32)
def symm_get_rows(ctx_ptr: Any, dest_ptr: Any, dest_stride: Any, src_ptr: Any, src_stride: Any, row_count: Any, rows: Any,
                  element_size: Any, src_rank: Any, backend: Any = BACKEND_DEFAULT, _semantic: Any = None) -> Any:
    """Gets rows, with the same arguments as symm_put_rows(), and waits until they have arrived."""


@_primitive(_i32, _i64, _i64, _i64, _i32)
def symm_put_value(ctx_ptr: Any, word_ptr: Any, value: Any, dest_rank: Any, backend: Any = BACKEND_DEFAULT,
                   _semantic: Any = None) -> Any:
    """Writes a 64-bit word of the peer. The write takes effect after this program's earlier puts to that peer."""


@_primitive(_i32, _i64, _i64, _i64, _i32)
def symm_add(ctx_ptr: Any, word_ptr: Any, value: Any, dest_rank: Any, backend: Any = BACKEND_DEFAULT,
             _semantic: Any = None) -> Any:
    ...


@_primitive(_i64, _i64, _i64, _i64, _i32)
def symm_fetch_add(ctx_ptr: Any, word_ptr: Any, value: Any, dest_rank: Any, backend: Any = BACKEND_DEFAULT,
                   _semantic: Any = None) -> Any:
    """Adds `value` to a 64-bit word of the peer. Returns the word's previous value, or -2**63 on failure."""


@_primitive(_i64, _i64, _i64, _i64, _i64, _i32)
def symm_compare_swap(ctx_ptr: Any, word_ptr: Any, expected: Any, desired: Any, dest_rank: Any,
                      backend: Any = BACKEND_DEFAULT, _semantic: Any = None) -> Any:
    """Sets a 64-bit word of the peer to `desired` if the word equals `expected`. Returns the word's previous value, or -2**63 on
    failure."""


@_primitive(_i64, _i64, _i64, _i32, _i64)
def symm_wait_until(ctx_ptr: Any, word_ptr: Any, cmp: Any, value: Any, backend: Any = BACKEND_DEFAULT,
                    _semantic: Any = None) -> Any:
    """Waits until a 64-bit word of this rank satisfies the comparison `cmp` (SIGNAL_CMP_*) with `value`. Returns the last value of the
    word. If this value does not satisfy the comparison, the wait has failed or timed out."""


@_primitive(_i32, _i64, _i64, _i32, _i32, _i64)
def symm_wait_until_all(ctx_ptr: Any, words_ptr: Any, count: Any, cmp: Any, value: Any, backend: Any = BACKEND_DEFAULT,
                        _semantic: Any = None) -> Any:
    """Waits until all of `count` contiguous words satisfy the comparison with `value`."""


@_primitive(_i32, _i64, _i64, _i32, _i32, _i64, _i64)
def symm_wait_until_any(ctx_ptr: Any, words_ptr: Any, count: Any, cmp: Any, value: Any, skipped_ptr: Any = 0,
                        backend: Any = BACKEND_DEFAULT, _semantic: Any = None) -> Any:
    """Waits until one of `count` contiguous words satisfies the comparison with `value`. Returns the word's index, or a negative status.
    `skipped_ptr` is 0 or the address of `count` int32 values, one for each word; the call skips words whose value is not 0."""


@_primitive(_i32, _i64, _i64, _i32, _i32, _i32, _i32)
def symm_all_reduce(ctx_ptr: Any, local_ptr: Any, byte_offset: Any, num_elements: Any, reduce_op: Any, dtype: Any,
                    backend: Any = BACKEND_DEFAULT, _semantic: Any = None) -> Any:
    """Sums elements in place across all ranks whose memory is mapped. This primitive is a demonstration, and supports only REDUCE_OP_SUM of
    DTYPE_FLOAT32."""


@_primitive(_i32, _i32, _i32)
def symm_widen(bits: Any, element_type: Any, backend: Any = BACKEND_DEFAULT, _semantic: Any = None) -> Any:
    """Converts the bits of a smaller type to the bits of a float32. `element_type` is 1 (half), 2 (bfloat16), 3 (e4m3) or 4
    (e5m2)."""


@_primitive(_i32, _i32, _i32)
def symm_narrow(float_bits: Any, element_type: Any, backend: Any = BACKEND_DEFAULT, _semantic: Any = None) -> Any:
    """Converts the bits of a float32 to the bits of a smaller type; rounds to nearest even. `element_type` is the same as in
    symm_widen()."""
