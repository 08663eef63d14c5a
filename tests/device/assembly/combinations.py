"""Every call of the device library that is one machine instruction, and that instruction, written down from PTX's
manual and not from the headers: what the headers emit is compared with it."""
import itertools

SCOPES = {"kBlock": ".cta", "kCluster": ".cluster", "kGpu": ".gpu", "kSystem": ".sys"}
SPACES = {"kGeneric": "", "kGlobal": ".global"}
CACHES = {
    "kDefault": "",
    "kNoAllocate": ".L1::no_allocate",
    "kEvictFirst": ".L1::evict_first",
    "kEvictLast": ".L1::evict_last",
}
# The C++ type of an access and PTX's, of a weak one and of any other.
WEAK_TYPES = {"uint8_t": ".b8", "uint16_t": ".b16", "uint32_t": ".b32", "float": ".b32", "uint64_t": ".b64",
              "double": ".b64", "Vector16": ".v4.b32"}
STRONG_TYPES = {**WEAK_TYPES, "Vector16": ".v2.b64"}
WORDS = {"uint32_t": "u32", "int32_t": "s32", "uint64_t": "u64", "int64_t": "s64"}
UPDATE_ORDERS = {"kRelaxed": ".relaxed", "kAcquire": ".acquire", "kRelease": ".release",
                 "kAcquireRelease": ".acq_rel"}


def call_of(name, arguments, types, operands):
    return f"{name}<{', '.join(arguments)}>(static_cast<{types}*>(address){operands});"


def accesses(instruction, function, strong_orders):
    """(call, opcode) of all loads or all stores."""
    def call(order, scope, cache, space, value_type):
        pointer = f"const {value_type}" if function == "load" else value_type
        operand = f", {value_type}{{}}" if function == "store" else ""
        return call_of(function, [f"Order::{order}", f"Scope::{scope}", f"Cache::{cache}", f"Space::{space}"],
                       pointer, operand)

    for (space, dot_space), (value_type, dot_type) in itertools.product(SPACES.items(), WEAK_TYPES.items()):
        for cache, dot_cache in CACHES.items():
            yield (call("kWeak", "kThreads", cache, space, value_type),
                   f"{instruction}.weak{dot_space}{dot_cache}{dot_type}")
        if function == "load":
            for cache, dot_cache in (("kNonCoherent", ""), ("kNonCoherentNoAllocate", ".L1::no_allocate")):
                yield (call("kWeak", "kThreads", cache, space, value_type),
                       f"{instruction}.global.nc{dot_cache}{dot_type}")
    for (space, dot_space), (value_type, dot_type) in itertools.product(SPACES.items(), STRONG_TYPES.items()):
        yield (call("kVolatile", "kThreads", "kDefault", space, value_type),
               f"{instruction}.volatile{dot_space}{dot_type}")
        for (order, dot_order), (scope, dot_scope), (cache, dot_cache) in itertools.product(
                strong_orders.items(), SCOPES.items(), CACHES.items()):
            yield (call(order, scope, cache, space, value_type),
                   f"{instruction}{dot_order}{dot_scope}{dot_space}{dot_cache}{dot_type}")


def updates():
    """(call, opcode) of everything in atomic.cuh."""
    places = itertools.product(SCOPES.items(), SPACES.items(), WORDS.items())
    for (scope, dot_scope), (space, dot_space), (value_type, word) in places:
        bits = word[1:]
        add_type = f".u{bits}"  # of either sign
        operations = {"add": add_type, "min": f".{word}", "max": f".{word}", "and": f".b{bits}", "or": f".b{bits}",
                      "xor": f".b{bits}"}
        for order, dot_order in UPDATE_ORDERS.items():
            arguments = [f"Order::{order}", f"Scope::{scope}", f"Space::{space}"]
            for operation, dot_type in operations.items():
                yield (call_of(f"fetch_{operation}", arguments, value_type, ", 5"),
                       f"atom{dot_order}{dot_scope}{dot_space}.{operation}{dot_type}")
                if order in ("kRelaxed", "kRelease"):
                    yield (call_of(f"reduce_{operation}", arguments, value_type, ", 5"),
                           f"red{dot_order}{dot_scope}{dot_space}.{operation}{dot_type}")
            yield (call_of("exchange", arguments, value_type, ", 5"),
                   f"atom{dot_order}{dot_scope}{dot_space}.exch.b{bits}")
            yield (call_of("compare_exchange", arguments, value_type, ", 5, 6"),
                   f"atom{dot_order}{dot_scope}{dot_space}.cas.b{bits}")


def fences():
    for (order, dot_order), (scope, dot_scope) in itertools.product(
            {"kAcquireRelease": ".acq_rel", "kSequential": ".sc"}.items(), SCOPES.items()):
        yield f"fence<Order::{order}, Scope::{scope}>();", f"fence{dot_order}{dot_scope}"


def multimem():
    """(call, opcode) of multimem.cuh, of sm_90 alone."""
    for value_type, word in WORDS.items():
        bits = word[1:]
        types = {"kAdd": f".add.u{bits}", "kMin": f".min.{word}", "kMax": f".max.{word}", "kAnd": f".and.b{bits}",
                 "kOr": f".or.b{bits}", "kXor": f".xor.b{bits}"}
        for operation, dot_type in types.items():
            yield (call_of("multimem_load_reduce", [f"Operation::{operation}"], value_type, ""),
                   f"multimem.ld_reduce.relaxed.sys.global{dot_type}")
        yield f"multimem_store(static_cast<{value_type}*>(address), 5);", f"multimem.st.relaxed.sys.global.b{bits}"
        yield f"multimem_add(static_cast<{value_type}*>(address), 5);", f"multimem.red.relaxed.sys.global.add.u{bits}"
    for number, dot_type in {"float": ".v4.f32", "Half": ".v4.f16x2", "Bfloat16": ".v4.bf16x2"}.items():
        pointer, packed = f"static_cast<{number}*>(address)", f"Packed<{number}>{{}}"
        in_float = "" if number == "float" else ".acc::f32"
        yield f"multimem_load_sum({pointer});", f"multimem.ld_reduce.relaxed.sys.global.add{in_float}{dot_type}"
        yield f"multimem_store_packed({pointer}, {packed});", "multimem.st.relaxed.sys.global.v4.f32"
        yield f"multimem_add_packed({pointer}, {packed});", f"multimem.red.relaxed.sys.global.add{dot_type}"
    yield "fence_multicast();", "fence.proxy.alias"


MACHINE_KERNEL = """#if VERBENA_FREESTANDING
#define __shared__ __attribute__((shared))
#endif
VERBENA_KERNEL void machine(uint32_t* word) {
  __shared__ CopyBarrier barrier;
  __shared__ Vector16 stage[4];
  word[15] = get_shared_address(&barrier) + get_shared_address(stage);
"""


# What only computes, a compiler may move; the others stay in the order of the calls.
MOVABLE = ("shf.r.wrap.b32", "prmt.b32", "%laneid", "mapa.u64", "%cluster_nctarank")


def machine():
    """(call, instruction, first architecture) of machine.cuh and async_copy.cuh."""
    yield "sync_block();", "barrier.sync.aligned 0;", 75
    yield "sync_named(3, 64);", "barrier.sync.aligned %r", 75
    yield "word[0] = sync_block_any(word[0] != 0);", "barrier.red.or.pred.aligned q, 0, p", 75
    yield "arrive_at_cluster(); await_cluster();", "barrier.cluster.arrive.release.aligned", 90
    yield "", "barrier.cluster.wait.acquire.aligned", 90
    yield "arrive_at_cluster_relaxed(); await_cluster();", "barrier.cluster.arrive.relaxed.aligned", 90
    yield "", "barrier.cluster.wait.acquire.aligned", 90
    yield ("word[11] = static_cast<uint32_t>(reinterpret_cast<uint64_t>(find_in_cluster(word + block_in_cluster(), 1)));",
           "mapa.u64", 90)
    yield "word[12] = blocks_per_cluster();", "%cluster_nctarank", 90
    yield "word[0] = sync_named_any(3, 64, word[0] != 0);", "barrier.red.or.pred.aligned", 75
    yield "sync_warp(word[0]);", "bar.warp.sync", 75
    yield "word[1] = shuffle(kFullWarp, word[2], 5);", "shfl.sync.idx.b32", 75
    yield "word[3] = ballot(kFullWarp, word[4] != 0);", "vote.sync.ballot.b32", 75
    yield "word[5] = elect_one();", "elect.sync", 90
    yield "word[6] = static_cast<uint32_t>(clock_ns());", "%globaltimer", 75
    yield "pause(20);", "nanosleep.u32", 75
    yield "copy_async_global_to_shared(stage, word + 16);", "cp.async.cg.shared.global", 80
    yield "commit_async_group();", "cp.async.commit_group", 80
    yield "wait_async_groups<1>();", "cp.async.wait_group 1", 80
    yield "init_copy_barrier(&barrier, 1);", "mbarrier.init.shared.b64", 90
    yield "", "fence.mbarrier_init.release.cluster", 90
    yield "arrive_expecting(&barrier, 64);", "mbarrier.arrive.expect_tx.release.cta.shared.b64", 90
    yield "arrive(&barrier);", "mbarrier.arrive.release.cta.shared.b64", 90
    yield ("copy_bulk_global_to_shared(stage, word, 64, &barrier);",
           "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes", 90)
    yield ("word[7] = try_wait_parity(&barrier, 0);", "mbarrier.try_wait.parity.acquire.cta.shared.b64", 90)
    yield "fence_async_proxy_shared();", "fence.proxy.async.shared::cta", 90
    yield "fence_async_proxy();", "fence.proxy.async;", 90
    yield "copy_bulk_shared_to_global(word, stage, 64);", "cp.async.bulk.global.shared::cta.bulk_group", 90
    yield "commit_bulk_group();", "cp.async.bulk.commit_group", 90
    yield "wait_bulk_groups<1>();", "cp.async.bulk.wait_group 1", 90
    yield "wait_bulk_groups_read<2>();", "cp.async.bulk.wait_group.read 2", 90
    yield "destroy_copy_barrier(&barrier);", "mbarrier.inval.shared.b64", 90
    yield "word[8] = shift_right_wrap(word[8], word[9], word[10]);", "shf.r.wrap.b32", 75
    yield ("word[9] = permute_bytes(word[12], word[13], word[14]);", "prmt.b32", 75)
    yield "word[10] = lane();", "%laneid", 75


PACKED_KERNEL = "VERBENA_KERNEL void packed(uint32_t* word, float* numbers) {"


def packed():
    """(call, instruction, first architecture with it) of packed.cuh. Below it nothing stands there but arithmetic."""
    yield "Element<Half>::widen(word[0], numbers);", "cvt.f32.f16", 75
    yield "word[1] = Element<Half>::narrow(numbers + 2);", "cvt.rn.f16x2.f32", 80
    yield "word[2] = Element<Bfloat16>::narrow(numbers + 4);", "cvt.rn.bf16x2.f32", 80
    yield "Element<E4m3>::widen(word[3], numbers + 6);", "cvt.rn.f16x2.e4m3x2", 89
    yield "word[4] = Element<E4m3>::narrow(numbers + 10);", "cvt.rn.satfinite.e4m3x2.f32", 89
    yield "Element<E5m2>::widen(word[5], numbers + 14);", "cvt.rn.f16x2.e5m2x2", 89
    yield "word[6] = Element<E5m2>::narrow(numbers + 18);", "cvt.rn.satfinite.e5m2x2.f32", 89


def families():
    """{name: [(call, opcode)]}"""
    return {
        "loads": list(accesses("ld", "load", {"kRelaxed": ".relaxed", "kAcquire": ".acquire"})),
        "stores": list(accesses("st", "store", {"kRelaxed": ".relaxed", "kRelease": ".release"})),
        "updates": list(updates()),
        "fences": list(fences()),
    }
