"""Kernels that the tests compile."""
import triton
import triton.language as tl

from verbena.triton import *


@triton.jit
def call_everything(ctx_ptr, data_ptr, address, statuses, peer, value, ADDRESS_BACKEND: tl.constexpr):
    """Each primitive once, with arguments of every type that it takes; what they return is stored."""
    pointer = symm_lsa_ptr(ctx_ptr, data_ptr, peer)
    tl.store(pointer, tl.load(pointer) + 1.0)
    tl.store(statuses, symm_lsa_ptr(ctx_ptr, address, 1, ADDRESS_BACKEND))
    tl.store(symm_lsa_multicast_ptr(ctx_ptr, data_ptr), 1.0)
    tl.store(statuses + 1, symm_lsa_signal_ptr(ctx_ptr, peer))
    tl.store(statuses + 2, symm_team_size(ctx_ptr) + symm_team_rank(ctx_ptr) + symm_team_lsa_size(ctx_ptr)
             + symm_team_lsa(ctx_ptr, peer))
    tl.store(statuses + 3, symm_barrier(ctx_ptr))
    tl.store(statuses + 4, symm_barrier_arrive(ctx_ptr) + symm_barrier_wait(ctx_ptr, 3))
    tl.store(statuses + 5, symm_lsa_barrier(ctx_ptr, peer) + symm_lsa_barrier_arrive(ctx_ptr)
             + symm_lsa_barrier_wait(ctx_ptr))
    symm_fence(ctx_ptr, FENCE_SCOPE_CTA)
    symm_fence(ctx_ptr, FENCE_SCOPE_SYSTEM)
    tl.store(statuses + 6, symm_quiet(ctx_ptr) + symm_quiet_peer(ctx_ptr, peer) + symm_flush(ctx_ptr))
    symm_signal(ctx_ptr, 0, peer)
    symm_signal(ctx_ptr, 0, peer, value, SIGNAL_OP_ADD)
    tl.store(statuses + 7, symm_signal_wait_until(ctx_ptr, 0, SIGNAL_CMP_GE, value))
    symm_signal_reset(ctx_ptr, 255)
    symm_put_async(ctx_ptr, data_ptr, data_ptr, 1024, None, peer)
    symm_put_async(ctx_ptr, address, address, value, 2, peer)
    symm_put_signal_async(ctx_ptr, data_ptr, data_ptr, 1024, 4, peer, 7)
    symm_get(ctx_ptr, data_ptr, address, 16, 8, peer, backend=BACKEND_VERBENA)
    symm_put_async_by(ctx_ptr, data_ptr, data_ptr, 1024, None, peer, 2)
    symm_put_signal_async_by(ctx_ptr, data_ptr, data_ptr, 1024, 4, peer, 7, -1)
    symm_signal_by(ctx_ptr, 0, peer, 3, value)
    symm_signal_after_puts(ctx_ptr, 0, peer)
    request = symm_get_async(ctx_ptr, data_ptr, address, 16, 8, peer)
    tl.store(statuses + 10, symm_request_wait(ctx_ptr, request))
    symm_put_rows(ctx_ptr, data_ptr, 64, data_ptr, value, 16, 4, None, peer)
    symm_get_rows(ctx_ptr, address, 64, address, 32, 16, 4, 8, peer)
    symm_put_pieces(ctx_ptr, data_ptr, value, peer)
    symm_put_pieces_signal(ctx_ptr, address, 4, peer, 7)
    symm_put_value(ctx_ptr, statuses, value, peer)
    symm_add(ctx_ptr, address, 1, peer)
    tl.store(statuses + 11, symm_fetch_add(ctx_ptr, statuses, 1, peer) + symm_compare_swap(ctx_ptr, address, 0, value, peer))
    tl.store(statuses + 12, symm_wait_until(ctx_ptr, statuses, SIGNAL_CMP_EQ, value))
    tl.store(statuses + 13, symm_wait_until_all(ctx_ptr, statuses, 4, SIGNAL_CMP_GE, 1)
             + symm_wait_until_any(ctx_ptr, statuses, peer, SIGNAL_CMP_GE, 1) + symm_wait_until_any(
                 ctx_ptr, address, 4, SIGNAL_CMP_GE, value, data_ptr))
    tl.store(statuses + 8, symm_all_reduce(ctx_ptr, data_ptr, 0, 64, REDUCE_OP_SUM, DTYPE_FLOAT32))
    tl.store(statuses + 9, symm_widen(symm_narrow(peer, 3), 3))


EVERYTHING_SIGNATURE = {"ctx_ptr": "i64", "data_ptr": "*fp32", "address": "i64", "statuses": "*i64", "peer": "i32",
                        "value": "i64", "ADDRESS_BACKEND": "constexpr"}


@triton.jit
def ask_for_the_size(ctx_ptr, sizes, BACKEND: tl.constexpr):
    tl.store(sizes, symm_team_size(ctx_ptr, BACKEND))


SIZE_SIGNATURE = {"ctx_ptr": "i64", "sizes": "*i32", "BACKEND": "constexpr"}


@triton.jit
def signal_each_element(ctx_ptr):
    symm_signal(ctx_ptr, tl.arange(0, 32), 0)


@triton.jit
def signal_a_fraction(ctx_ptr):
    symm_signal(ctx_ptr, 0, 0, 0.5)


@triton.jit
def name_a_peer_beyond_numbers(ctx_ptr):
    symm_team_lsa(ctx_ptr, 1 << 32)


@triton.jit
def put_without_a_size(ctx_ptr):
    symm_put_async(ctx_ptr, 0, 0, 1, None, 0)
