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
