"""What PTX does not have, and what seed code prints wrongly, does not compile, and the compiler says why.

usage: invalid_test.py [--compiler CXX]
Compiled as C++ for the host, where the same conditions hold, and by clang for a GPU if it is there.
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
#define CASE(name, ...) \\
  VERBENA_DEVICE void name(uint32_t* word, uint64_t* wide, uint8_t* byte, float* number, Three* three, Vector16* vector) { \\
    (void)word, (void)wide, (void)byte, (void)number, (void)three, (void)vector; \\
    __VA_ARGS__; \\
  }
"""
LOAD_ORDER = "a load must be weak, volatile, relaxed or acquire"
STORE_ORDER = "a store must be weak, volatile, relaxed or release"
LOAD_SCOPE = "weak and volatile loads need Scope::kThreads"
STORE_SCOPE = "weak and volatile stores need Scope::kThreads"
UPDATE_ORDER = "an update must be relaxed, acquire, release or acquire-release"
UPDATE_SIZE = "an update needs (a word|an integer) of 4 or 8 bytes"
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
            yield f"load<Order::{order}, SCOPE({scope}), Cache::{cache}>(word)", "a non-coherent load must be weak"
    for cache in ("kNoAllocate", "kEvictFirst", "kEvictLast"):
        yield f"load<Order::kVolatile, SCOPE(kThreads), Cache::{cache}>(word)", "a volatile load cannot have a cache hint"
        yield f"store<Order::kVolatile, SCOPE(kThreads), Cache::{cache}>(word, 1)", "a volatile store cannot have a cache hint"
    for cache in ("kNonCoherent", "kNonCoherentNoAllocate"):
        yield f"store<Order::kWeak, SCOPE(kThreads), Cache::{cache}>(word, 1)", "only loads can be non-coherent"
    yield "load<Order::kWeak, SCOPE(kThreads)>(three)", "an access needs 1, 2, 4, 8 or 16 bytes"
    yield "store<Order::kWeak, SCOPE(kThreads)>(three, Three{})", "an access needs 1, 2, 4, 8 or 16 bytes"
    yield from list_invalid_updates()
    yield from list_invalid_names()


def list_invalid_updates():
    for order in ("kWeak", "kVolatile", "kSequential"):
        yield f"fetch_add<Order::{order}, SCOPE(kGpu)>(word, 1)", UPDATE_ORDER
        yield f"exchange<Order::{order}, SCOPE(kGpu)>(word, 1)", UPDATE_ORDER
        yield f"compare_exchange<Order::{order}, SCOPE(kGpu)>(word, 1, 2)", UPDATE_ORDER
    for order in ("kWeak", "kAcquire", "kAcquireRelease", "kSequential"):
        yield f"reduce_add<Order::{order}, SCOPE(kGpu)>(word, 1)", "a reduction must be relaxed or release"
    yield "fetch_add<Order::kRelaxed, SCOPE(kThreads)>(word, 1)", "an update needs a scope"
    yield "reduce_add<Order::kRelaxed, SCOPE(kThreads)>(word, 1)", "a reduction needs a scope"
    yield "fetch_add<Order::kRelaxed, SCOPE(kGpu)>(byte, 1)", UPDATE_SIZE
    yield "fetch_add<Order::kRelaxed, SCOPE(kGpu)>(number, 1)", UPDATE_SIZE
    yield "exchange<Order::kRelaxed, SCOPE(kGpu)>(vector, Vector16{})", UPDATE_SIZE
    yield "update<Operation::kExchange, Order::kRelaxed, SCOPE(kGpu)>(word, 1)", "call exchange\\(\\) or compare_exchange"
    for order in ("kWeak", "kVolatile", "kRelaxed", "kAcquire", "kRelease"):
        yield f"fence<Order::{order}, SCOPE(kGpu)>()", "a fence must be acquire-release or sequentially consistent"
    yield "fence<Order::kSequential, SCOPE(kThreads)>()", "a fence needs a scope"


def list_invalid_names():
    """TileScale's own: what its registration of combinations leaves out."""
    yield "tl::st<Semantic::ACQUIRE, ::Scope::GPU, false>(word, 1u)", STORE_ORDER
    yield "tl::ld<Semantic::RELEASE, ::Scope::GPU, false, false>(word, *word)", LOAD_ORDER
    yield "tl::ld<Semantic::RELAXED, ::Scope::GPU, true, false>(word, *word)", "a non-coherent load must be weak"
    yield "tl::ld<Semantic::ACQUIRE, ::Scope::SYS, true, true>(word, *word)", "a non-coherent load must be weak"
    yield "tl::ld<Semantic::VOLATILE, ::Scope::CTA, false, true>(word, *word)", "a volatile load cannot have a cache hint"
    yield "tl::st<Semantic::VOLATILE, ::Scope::CTA, true>(word, 1u)", "a volatile store cannot have a cache hint"
    yield "tl::tl_shuffle_elect<16>()", "thread_extent must be a multiple of 32"
    yield "wait_until<Relation::kEqual, SCOPE(kGpu)>(vector, *vector, WaitLimits{})", "a wait needs a word of at most 8 bytes"


# The same calls with nothing wrong, so that a case above fails for its own reason.
VALID = ("load<Order::kRelaxed, SCOPE(kGpu)>(word)", "store<Order::kVolatile, SCOPE(kThreads)>(byte, 1)",
         "load<Order::kWeak, SCOPE(kThreads), Cache::kNonCoherent>(vector)",
         "store<Order::kRelease, SCOPE(kSystem)>(number, 1)",
         "fetch_add<Order::kAcquireRelease, SCOPE(kGpu)>(word, 1)", "exchange<Order::kAcquire, SCOPE(kGpu)>(number, 1)",
         "compare_exchange<Order::kRelaxed, SCOPE(kGpu)>(wide, 1, 2)", "reduce_add<Order::kRelease, SCOPE(kGpu)>(word, 1)",
         "fence<Order::kSequential, SCOPE(kSystem)>()", "tl::st<Semantic::RELEASE, ::Scope::GPU, true>(word, 1u)",
         "tl::ld<Semantic::WEAK, ::Scope::GPU, false, true>(word, *word)", "tl::tl_shuffle_elect<0>()",
         "tl::ld<Semantic::WEAK, ::Scope::SYS, true, true>(word, *word)")


def list_compilers(host):
    """Commands that a source's path completes."""
    yield lambda source: toolchain.host_command(host, 17, source, "-fsyntax-only", "-Wno-unused-function")
    for clang in toolchain.find_clangs()[:1]:
        yield lambda source: toolchain.clang_command(clang, 90, source, "-fsyntax-only", "-Wno-unused-function",
                                                     "-ferror-limit=0")


def compile_together(workplace, compiler, statements):
    """(succeeded, output) of compiling each statement in a function, on its own line."""
    lines = [f"CASE(case_{number}, {statement})\n" for number, statement in enumerate(statements)]
    return toolchain.run(compiler(workplace.write("case.cu", PROLOGUE + "".join(lines))))


def split_by_statement(said, count):
    """{statement's number: what was said of it}. gcc names the statement before the error, clang after it."""
    start = r"\S+: In " if ": In " in said else r"\S+:\d+:\d+: error: "
    first_line = PROLOGUE.count("\n") + 1
    about = {}
    for part in re.split(f"\n(?={start})", said):
        for line in set(re.findall(r"case\.cu:(\d+):", part)):
            number = int(line) - first_line
            if 0 <= number < count:
                about[number] = about.get(number, "") + part
    return about


def complain_of_invalid(workplace, compiler, cases):
    """All at once, in which each mostly tells its reason; those that did not, alone."""
    _, said = compile_together(workplace, compiler, [statement for statement, _ in cases])
    about = split_by_statement(said, len(cases))
    for number, (statement, reason) in enumerate(cases):
        if re.search(f"verbena: .*{reason}", about.get(number, "")):
            continue
        succeeded, said = compile_together(workplace, compiler, [statement])
        if succeeded:
            yield f"{statement} compiles"
        elif not re.search(f"verbena: .*{reason}", said):
            yield f"{statement}: not because {reason}: {said}"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--compiler", default="g++")
    arguments = parser.parse_args()
    complaints, cases = [], list(list_invalid())
    with toolchain.Workplace() as workplace:
        for compiler in list_compilers(arguments.compiler):
            succeeded, said = compile_together(workplace, compiler, VALID)
            if not succeeded:
                complaints.append(f"a valid call does not compile: {said}")
            complaints += complain_of_invalid(workplace, compiler, cases)
    print("\n".join(complaints))
    print(f"{len(VALID)} valid calls, {len(cases)} invalid ones: {len(complaints)} complaints")
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main())
