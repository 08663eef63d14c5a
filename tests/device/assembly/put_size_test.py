"""Kernels with puts stay small: of one with a single put the PTX and the processor time that nvcc takes for it, of the
examples' ring the registers, none of which spills.

usage: put_size_test.py
Exits with 77 where nvcc is missing.
"""
import re
import resource
import sys

import toolchain

SKIPPED = 77
# What a kernel's own code may have, and with it the functions that it calls, which stand once in a module.
MAX_LINES, MAX_MODULE_LINES, MAX_S = 250, 1000, 2.0
MAX_REGISTERS = 128  # 512 threads a block
KERNEL = """#include "verbena/device/symm_put.cuh"
extern "C" __global__ void put(const __grid_constant__ verbena::SymmContext context, uint64_t* place, const uint64_t* own,
                               int peer, int* status) {
  *status = static_cast<int>(verbena::device::symm_put_async(context, place, own, 8, peer));
}
"""


def measure_put(nvcc, workplace):
    source, output = workplace.write("put.cu", KERNEL), workplace.path / "put.ptx"
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    succeeded, said = toolchain.run(toolchain.nvcc_command(nvcc, 90, source, "-ptx", "-o", str(output)))
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if not succeeded:
        print(said)
        return False
    module = output.read_text(encoding="utf-8")
    lines, all_lines = re.search(r"\.entry put\(.*?^\}", module, re.S | re.M).group(0).count("\n"), module.count("\n")
    taken_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    print(f"one put: {lines} lines of PTX, at most {MAX_LINES}; {all_lines} with what it calls, at most {MAX_MODULE_LINES}; "
          f"{taken_s:.2f} s of nvcc, at most {MAX_S}")
    return lines <= MAX_LINES and all_lines <= MAX_MODULE_LINES and taken_s <= MAX_S


def measure_ring(nvcc, workplace):
    source = toolchain.INCLUDE.parent / "examples/ring_reduce_scatter.cu"
    succeeded, said = toolchain.run(
        toolchain.nvcc_command(nvcc, 90, source, "--expt-relaxed-constexpr", "--expt-extended-lambda", "-Xptxas", "-v", "-cubin",
                               "-o", str(workplace.path / "ring.cubin")))
    used = re.search(r"Used (\d+) registers", said)
    if not succeeded or not used:
        print(said)
        return False
    registers = int(used.group(1))
    spilled = sum(map(int, re.findall(r"(\d+) bytes spill (?:stores|loads)", said)))
    print(f"the ring: {registers} registers, at most {MAX_REGISTERS}; {spilled} bytes are spilled")
    return registers <= MAX_REGISTERS and spilled == 0


def main():
    tools = toolchain.find_nvcc()
    if not tools:
        print("skipped: nvcc is not installed")
        return SKIPPED
    with toolchain.Workplace() as workplace:
        results = [measure(tools[0], workplace) for measure in (measure_put, measure_ring)]
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
