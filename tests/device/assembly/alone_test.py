"""Each header of the device library compiles alone and without a warning, and so does a kernel that uses them.

usage: alone_test.py host|clang|nvcc [--compiler CXX] [--all-architectures]
  host    as C++17 and C++20, for the emulation
  clang   without any header but our own, to bitcode, by clang 16 and 19
  nvcc    for the GPU
Exits with 77 where the compiler is missing.
"""
import argparse
import itertools
import pathlib
import sys

import toolchain

SKIPPED = 77
USAGE = pathlib.Path(__file__).resolve().parent / "usage.cu"
# What TileScale generates, which has CUDA's own names; sm_90a has warpgroups.
GENERATED = USAGE.with_name("generated.cu")


def list_sources(workplace):
    """A file for each header that includes it twice, and nothing else; and kernels."""
    folder = toolchain.INCLUDE / "verbena" / "device"
    for header in sorted([*folder.glob("*.cuh"), *folder.glob("collectives/*.cuh")]):
        line = f'#include "{header.relative_to(toolchain.INCLUDE)}"\n'
        yield workplace.write(f"{header.stem}.cu", line + line)
    yield USAGE
    # All symm_* calls with what is compiled in for tests and profilers.
    defines = "#define VERBENA_DEVICE_FAULTS\n#define VERBENA_DEVICE_PROBES\n"
    yield workplace.write("probed.cu", defines + '#include "verbena/device/symm_c.cuh"\n')


def list_commands(arguments, sources, workplace):
    output = str(workplace.path / "output")
    if arguments.mode == "host":
        for standard, source in itertools.product((17, 20), sources):
            yield toolchain.host_command(arguments.compiler, standard, source, "-c", "-o", output)
    elif arguments.mode == "clang":
        # sm_70: what bitcode is built for, whichever GPU it is linked for later.
        for clang, architecture, source in itertools.product(toolchain.find_clangs(), (70, 90), sources):
            yield toolchain.clang_command(clang, architecture, source, "-emit-llvm", "-c", "-o", output)
    elif toolchain.find_nvcc():
        nvcc, _ = toolchain.find_nvcc()
        architectures = toolchain.ALL_ARCHITECTURES if arguments.all_architectures else (80, 90)
        for architecture in architectures:
            yield toolchain.nvcc_command(nvcc, architecture, USAGE, "-cubin", "-o", output)
        for architecture in (80, "90a"):
            yield toolchain.nvcc_command(nvcc, architecture, GENERATED, f"-I{toolchain.INCLUDE / 'verbena/tilescale'}", "-cubin",
                                         "-o", output)
        # The host's pass too.
        for standard in (17, 20):
            yield toolchain.nvcc_command(nvcc, 90, USAGE, f"-std=c++{standard}", "-c", "-o", output)
        for source in sources if arguments.all_architectures else []:
            yield toolchain.nvcc_command(nvcc, 90, source, "-c", "-o", output)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("mode", choices=["host", "clang", "nvcc"])
    parser.add_argument("--compiler", default="g++")
    parser.add_argument("--all-architectures", action="store_true")
    arguments = parser.parse_args()
    failures, count = 0, 0
    with toolchain.Workplace() as workplace:
        for command in list_commands(arguments, list(list_sources(workplace)), workplace):
            succeeded, said = toolchain.run(command)
            count += 1
            if not succeeded or said.strip():
                failures += 1
                print(f"{' '.join(command)}\n{said}")
    if count == 0:
        print(f"skipped: {'clang++-16' if arguments.mode == 'clang' else 'nvcc with ptxas'} is not installed")
        return SKIPPED
    print(f"{count} compilations, {failures} with a complaint")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
