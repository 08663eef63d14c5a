"""A kernel for one backend, chosen by template argument, holds nothing of the others: its PTX is the same, letter by
letter, in a program that knows them all and in one that knows only it. By clang, and by nvcc with NCCL's headers too.

usage: static_test.py clang|nvcc
Exits with 77 where the compiler, or NCCL's headers, are missing.
"""
import pathlib
import re
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "assembly"))
import toolchain  # noqa: E402  (found only now)

SKIPPED = 77
ROOT = toolchain.INCLUDE.parent
KERNEL = """
template <typename Context>
__attribute__((global)) void kernel(Context context, float* data, int64_t* seen) {
  using namespace verbena;
  using namespace verbena::device;
  const BlockGroup block;
  const auto add = SymmSignalOperation::kAdd;
  int32_t result = static_cast<int32_t>(symm_put_signal_async(context, data, data, 64, 1, 0, 1, add, block));
  const auto equal = SymmCompare::kEqual;
  result += static_cast<int32_t>(symm_signal_wait_until<int64_t>(context, 0, equal, 1, seen, block));
  result += static_cast<int32_t>(symm_barrier(context, 0, block)) + static_cast<int32_t>(symm_quiet(context, block));
  *seen = result;
}
"""
INSTANCE = "template __attribute__((global)) void kernel(verbena::%s, float*, int64_t*);\n"
OURS = ('#include "verbena/device/symm.cuh"\n', "SymmContext")
STUB = (f'#include "{ROOT}/tests/device/symm/stub_backend.cuh"\n', "StubSymmContext")
NVSHMEM = ('#define VERBENA_NVSHMEM_BY_NAME\n#include "verbena/device/backends/nvshmem.cuh"\n', "NvshmemSymmContext")
NCCL = ('#include "verbena/device/backends/nccl.cuh"\n', "NcclSymmContext")


def compile_kernel(workplace, compiler, includes, context):
    """PTX without comments."""
    output = workplace.path / "kernel.ptx"
    source = workplace.write("kernel.cu", "".join(includes) + KERNEL + INSTANCE % context)
    succeeded, said = toolchain.run(compiler(source, output))
    if not succeeded:
        raise SystemExit(said)
    return re.sub(r"//[^\n]*", "", output.read_text(encoding="utf-8"))


def complain(workplace, compiler, backends):
    together = [include for include, _ in backends]
    alone = {}
    for include, context in backends:
        alone[context] = compile_kernel(workplace, compiler, [include], context)
        if compile_kernel(workplace, compiler, together, context) != alone[context]:
            yield f"the kernel of {context} is another one beside other backends"
    if len(set(alone.values())) != len(backends):
        yield "two backends have the same kernel"
    for context, text in alone.items():
        if ("nvshmem_" in text.replace("_ZN", "")) != (context == "NvshmemSymmContext"):
            yield f"the kernel of {context} calls NVSHMEM's functions, or NVSHMEM's does not"


def main():
    backends = [OURS, STUB, NVSHMEM]
    clangs, tools = toolchain.find_clangs(), toolchain.find_nvcc()
    if sys.argv[1] == "clang" and clangs:
        def compiler(source, output):
            return toolchain.clang_command(clangs[0], 80, source, "-S", "-o", output)
    elif sys.argv[1] == "nvcc" and tools and list(pathlib.Path(tools[0]).resolve().parents[1].rglob("nccl_device.h")):
        backends.append(NCCL)

        def compiler(source, output):
            return [tools[0], "-std=c++17", "-arch=sm_80", f"-I{toolchain.INCLUDE}", "-ptx", "-o", str(output),
                    str(source)]
    else:
        print(f"skipped: no {sys.argv[1]}, or no nccl_device.h beside it")
        return SKIPPED
    with toolchain.Workplace() as workplace:
        complaints = list(complain(workplace, compiler, backends))
    print("\n".join(complaints))
    print(f"{len(backends)} backends: {len(complaints)} complaints")
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main())
