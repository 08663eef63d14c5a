"""A kernel with one put stays small: its PTX, and the processor time that nvcc takes for it.

usage: put_size_test.py
Exits with 77 where nvcc is missing.
"""
import re
import resource
import sys

import toolchain

SKIPPED = 77
MAX_LINES, MAX_S = 250, 2.0
KERNEL = """#include "verbena/device/symm_put.cuh"
extern "C" __global__ void put(const __grid_constant__ verbena::SymmContext context, uint64_t* place, const uint64_t* own,
                               int peer, int* status) {
  *status = static_cast<int>(verbena::device::symm_put_async(context, place, own, 8, peer));
}
"""


def main():
    tools = toolchain.find_nvcc()
    if not tools:
        print("skipped: nvcc is not installed")
        return SKIPPED
    with toolchain.Workplace() as workplace:
        source, output = workplace.write("put.cu", KERNEL), workplace.path / "put.ptx"
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        succeeded, said = toolchain.run(toolchain.nvcc_command(tools[0], 90, source, "-ptx", "-o", str(output)))
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        if not succeeded:
            print(said)
            return 1
        kernel = re.search(r"\.entry put\(.*?^\}", output.read_text(encoding="utf-8"), re.S | re.M).group(0)
    lines, taken_s = kernel.count("\n"), after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    print(f"{lines} lines of PTX, at most {MAX_LINES}; {taken_s:.2f} s of nvcc, at most {MAX_S}")
    return 0 if lines <= MAX_LINES and taken_s <= MAX_S else 1


if __name__ == "__main__":
    sys.exit(main())
