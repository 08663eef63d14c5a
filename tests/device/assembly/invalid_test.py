"""What PTX does not have, and what seed code prints wrongly, does not compile, and the compiler says why.

usage: invalid_test.py [--compiler CXX]
Each case is compiled as C++ for the host, where the same conditions hold, and by clang for a GPU if it is there.
"""
import argparse
import re
import sys

import toolchain

PROLOGUE = """#include "verbena/device/tilescale.cuh"
using namespace verbena::device;
using Order = verbena::device::Order;
#define SCOPE(scope) verbena::device::Scope::scope
struct Three { char bytes[3]; };
VERBENA_DEVICE void use(uint32_t* word, uint64_t* wide, uint8_t* byte, float* number, Three* three, Vector16* vector) {
  (void)word, (void)wide, (void)byte, (void)number, (void)three, (void)vector;
  STATEMENT;
}
"""
LOAD_ORDER = "a load is weak, volatile, relaxed or acquire"
STORE_ORDER = "a store is weak, volatile, relaxed or release"
LOAD_SCOPE = "weak and volatile loads have Scope::kThreads"
STORE_SCOPE = "weak and volatile stores have Scope::kThreads"
UPDATE_ORDER = "an update is relaxed, acquire, release or acquire-release"
UPDATE_SIZE = "an update is of (an integer of )?4 or 8 bytes"
SCOPES = ("kBlock", "kCluster", "kGpu", "kSystem")


def list_invalid():
    """(statement, what the compiler says)"""
    for order in ("kRelease", "kAcquireRelease", "kSequential"):
        yield f"load<Order::{order}, SCOPE(kGpu)>(word)", LOAD_ORDER
    for order in ("kAcquire", "kAcquireRelease", "kSequential"):
        yield f"store<Order::{order}, SCOPE(kGpu)>(word, 1)", STORE_ORDER
    for order in ("kWeak", "kVolatile"):
        for scope in SCOPES:
            yield f"load<Order::{order}, SCOPE({scope})>(word)", LOAD_SCOPE
            yield f"store<Order::{order}, SCOPE({scope})>(word, 1)", STORE_SCOPE
    for order in ("kRelaxed", "kAcquire"):
        yield f"load<Order::{order}, SCOPE(kThreads)>(word)", LOAD_SCOPE
    for order in ("kRelaxed", "kRelease"):
        yield f"store<Order::{order}, SCOPE(kThreads)>(word, 1)", STORE_SCOPE
    for order, scope in (("kRelaxed", "kGpu"), ("kAcquire", "kSystem"), ("kVolatile", "kThreads")):
        for cache in ("kNonCoherent", "kNonCoherentNoAllocate"):
            yield f"load<Order::{order}, SCOPE({scope}), Cache::{cache}>(word)", "a non-coherent load is weak"
    for cache in ("kNoAllocate", "kEvictFirst", "kEvictLast"):
        yield f"load<Order::kVolatile, SCOPE(kThreads), Cache::{cache}>(word)", "a volatile load has no cache hint"
        yield f"store<Order::kVolatile, SCOPE(kThreads), Cache::{cache}>(word, 1)", "a volatile store has no cache hint"
    for cache in ("kNonCoherent", "kNonCoherentNoAllocate"):
        yield f"store<Order::kWeak, SCOPE(kThreads), Cache::{cache}>(word, 1)", "only loads are non-coherent"
    yield "load<Order::kWeak, SCOPE(kThreads)>(three)", "an access is of 1, 2, 4, 8 or 16 bytes"
    yield "store<Order::kWeak, SCOPE(kThreads)>(three, Three{})", "an access is of 1, 2, 4, 8 or 16 bytes"
    yield from list_invalid_updates()
    yield from list_invalid_names()


def list_invalid_updates():
    for order in ("kWeak", "kVolatile", "kSequential"):
        yield f"fetch_add<Order::{order}, SCOPE(kGpu)>(word, 1)", UPDATE_ORDER
        yield f"exchange<Order::{order}, SCOPE(kGpu)>(word, 1)", UPDATE_ORDER
        yield f"compare_exchange<Order::{order}, SCOPE(kGpu)>(word, 1, 2)", UPDATE_ORDER
    for order in ("kWeak", "kAcquire", "kAcquireRelease", "kSequential"):
        yield f"reduce_add<Order::{order}, SCOPE(kGpu)>(word, 1)", "a reduction is relaxed or release"
    yield "fetch_add<Order::kRelaxed, SCOPE(kThreads)>(word, 1)", "an update has a scope"
    yield "reduce_add<Order::kRelaxed, SCOPE(kThreads)>(word, 1)", "a reduction has a scope"
    yield "fetch_add<Order::kRelaxed, SCOPE(kGpu)>(byte, 1)", UPDATE_SIZE
    yield "fetch_add<Order::kRelaxed, SCOPE(kGpu)>(number, 1)", UPDATE_SIZE
    yield "exchange<Order::kRelaxed, SCOPE(kGpu)>(vector, Vector16{})", UPDATE_SIZE
    yield "update<Operation::kExchange, Order::kRelaxed, SCOPE(kGpu)>(word, 1)", "exchange\\(\\) and compare_exchange"
    for order in ("kWeak", "kVolatile", "kRelaxed", "kAcquire", "kRelease"):
        yield f"fence<Order::{order}, SCOPE(kGpu)>()", "a fence is acquire-release or sequentially consistent"
    yield "fence<Order::kSequential, SCOPE(kThreads)>()", "a fence has a scope"


def list_invalid_names():
    """TileScale's own: what its registration of combinations leaves out."""
    yield "tl::st<Semantic::ACQUIRE, ::Scope::GPU, false>(word, 1u)", STORE_ORDER
    yield "tl::ld<Semantic::RELEASE, ::Scope::GPU, false, false>(word, *word)", LOAD_ORDER
    yield "tl::ld<Semantic::RELAXED, ::Scope::GPU, true, false>(word, *word)", "a non-coherent load is weak"
    yield "tl::ld<Semantic::ACQUIRE, ::Scope::SYS, true, true>(word, *word)", "a non-coherent load is weak"
    yield "tl::ld<Semantic::VOLATILE, ::Scope::CTA, false, true>(word, *word)", "a volatile load has no cache hint"
    yield "tl::st<Semantic::VOLATILE, ::Scope::CTA, true>(word, 1u)", "a volatile store has no cache hint"
    yield "tl::tl_shuffle_elect<16>()", "an extent is of whole warps"
    yield "wait_until<Relation::kEqual, SCOPE(kGpu)>(vector, *vector, WaitLimits{})", "a word of at most 8 bytes"


# The same calls with nothing wrong, so that a case above fails for its own reason.
VALID = ("load<Order::kRelaxed, SCOPE(kGpu)>(word)", "store<Order::kVolatile, SCOPE(kThreads)>(byte, 1)",
         "load<Order::kWeak, SCOPE(kThreads), Cache::kNonCoherent>(vector)",
         "store<Order::kRelease, SCOPE(kSystem)>(number, 1)",
         "fetch_add<Order::kAcquireRelease, SCOPE(kGpu)>(word, 1)", "exchange<Order::kAcquire, SCOPE(kGpu)>(number, 1)",
         "compare_exchange<Order::kRelaxed, SCOPE(kGpu)>(wide, 1, 2)", "reduce_add<Order::kRelease, SCOPE(kGpu)>(word, 1)",
         "fence<Order::kSequential, SCOPE(kSystem)>()", "tl::st<Semantic::RELEASE, ::Scope::GPU, true>(word, 1u)",
         "tl::ld<Semantic::WEAK, ::Scope::GPU, false, true>(word, *word)", "tl::tl_shuffle_elect<0>()",
         "tl::ld<Semantic::WEAK, ::Scope::SYS, true, true>(word, *word)")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--compiler", default="g++")
    compiler = parser.parse_args().compiler
    complaints = []
    with toolchain.Workplace() as workplace:
        def compile_all(statement):
            source = workplace.write("case.cu", PROLOGUE.replace("STATEMENT", statement))
            yield toolchain.run(toolchain.host_command(compiler, 17, source, "-fsyntax-only", "-Wno-unused-function"))
            for clang in toolchain.find_clangs()[:1]:
                yield toolchain.run(toolchain.clang_command(clang, 90, source, "-fsyntax-only", "-Wno-unused-function"))

        for statement in VALID:
            complaints += [f"{statement}: {said}" for succeeded, said in compile_all(statement) if not succeeded]
        cases = list(list_invalid())
        for statement, reason in cases:
            for succeeded, said in compile_all(statement):
                if succeeded:
                    complaints.append(f"{statement} compiles")
                elif not re.search(f"verbena: .*{reason}", said):
                    complaints.append(f"{statement}: not because {reason}: {said}")
    print("\n".join(complaints))
    print(f"{len(VALID)} valid calls, {len(cases)} invalid ones: {len(complaints)} complaints")
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main())
