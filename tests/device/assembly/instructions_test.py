"""Each call of the device library becomes the instruction that PTX's manual has for it, and ptxas accepts it.

usage: instructions_test.py text|ptxas [--all-architectures]
  text    the assembly that clang writes without a toolkit
  ptxas   the assembly that nvcc writes, assembled
Exits with 77 where the compiler is missing.
"""
import functools
import re
import sys

import combinations
import toolchain

SKIPPED = 77
INLINE_ASSEMBLY = re.compile(r"// begin inline asm\n(.*?)// end inline asm", re.S)
PROLOGUE = """#include "verbena/device/async_copy.cuh"
#include "verbena/device/atomic.cuh"
#include "verbena/device/machine.cuh"
#include "verbena/device/multimem.cuh"
#include "verbena/device/packed.cuh"
using namespace verbena::device;
#if VERBENA_FREESTANDING
#define VERBENA_KERNEL extern "C" __attribute__((global))
#else
#define VERBENA_KERNEL extern "C" __global__
#endif
"""


def opcodes_of(assembly):
    """The first words of all inline assembly, in order."""
    return [block.split()[0].rstrip(";") for block in INLINE_ASSEMBLY.findall(assembly)]


def lower_for(architecture, opcode):
    return opcode if architecture >= 90 else opcode.replace(".cluster", ".gpu")


def compare(name, expected, found):
    """Complaints about the first difference."""
    for (call, wanted), got in zip(expected, found):
        if wanted != got:
            return [f"{name}: {call} became {got}, not {wanted}"]
    if len(expected) != len(found):
        return [f"{name}: {len(found)} instructions, not {len(expected)}"]
    return []


def test_family(name, pairs, architecture, compile_to_assembly, workplace):
    body = "\n  ".join(call for call, _ in pairs)
    source = workplace.write(f"{name}.cu", f"{PROLOGUE}VERBENA_KERNEL void {name}([[maybe_unused]] void* address) "
                                           f"{{\n  {body}\n}}\n")
    assembly, complaint = compile_to_assembly(source, architecture)
    if complaint:
        return [f"{name} for sm_{architecture}: {complaint}"]
    expected = [(call, lower_for(architecture, opcode)) for call, opcode in pairs]
    return [f"sm_{architecture}: {text}" for text in compare(name, expected, opcodes_of(assembly))]


def test_machine(architecture, compile_to_assembly, workplace):
    """One kernel calls them all; each instruction that stays must follow the one of the call before it."""
    pairs = [pair for pair in combinations.machine() if architecture >= pair[2]]
    body = "\n  ".join(call for call, _, _ in pairs)
    source = workplace.write("machine.cu", f"{PROLOGUE}{combinations.MACHINE_KERNEL}  {body}\n}}\n")
    assembly, complaint = compile_to_assembly(source, architecture)
    if complaint:
        return [f"machine for sm_{architecture}: {complaint}"], len(pairs)
    text, position = "\n".join(INLINE_ASSEMBLY.findall(assembly)), 0
    for call, opcode, _ in pairs:
        is_movable = opcode in combinations.MOVABLE
        found = text.find(opcode, 0 if is_movable else position)
        if found < 0:
            return [f"machine for sm_{architecture}: {call} lacks {opcode}"], len(pairs)
        if not is_movable:
            position = found + len(opcode)
    return [], len(pairs)


def test_packed(architecture, compile_to_assembly, workplace):
    """Conversions by the architecture's own instructions, where it has them."""
    cases = list(combinations.packed())
    body = "\n  ".join(call for call, _, _ in cases)
    source = workplace.write("packed.cu", f"{PROLOGUE}{combinations.PACKED_KERNEL}\n  {body}\n}}\n")
    assembly, complaint = compile_to_assembly(source, architecture)
    if complaint:
        return [f"packed for sm_{architecture}: {complaint}"], len(cases)
    text = "\n".join(INLINE_ASSEMBLY.findall(assembly))
    return [f"packed for sm_{architecture}: {call} {'has' if opcode in text else 'lacks'} {opcode}"
            for call, opcode, first in cases if (opcode in text) != (architecture >= first)], len(cases)


def compile_by(command, option, workplace, *ptxas):
    def compile_one(source, architecture):
        output = workplace.path / "output.ptx"
        succeeded, said = toolchain.run(command(architecture, source, option, "-o", str(output)))
        if succeeded and ptxas:
            succeeded, said = toolchain.run([*ptxas, f"-arch=sm_{architecture}", str(output), "-o", "/dev/null"])
        return (output.read_text(), "") if succeeded else ("", said)
    return compile_one


def list_compilers(mode, workplace):
    if mode == "text":
        return {clang: compile_by(functools.partial(toolchain.clang_command, clang), "-S", workplace)
                for clang in toolchain.find_clangs()}
    tools = toolchain.find_nvcc()
    if not tools:
        return {}
    nvcc, ptxas = tools
    return {nvcc: compile_by(functools.partial(toolchain.nvcc_command, nvcc), "-ptx", workplace, ptxas)}


def main():
    mode = sys.argv[1]
    everything = "--all-architectures" in sys.argv
    # Below and from sm_90 on the instructions differ; clang 16 knows no newer architecture.
    architectures = toolchain.ALL_ARCHITECTURES if everything and mode == "ptxas" else (80, 90)
    complaints, count = [], 0
    with toolchain.Workplace() as workplace:
        compilers = list_compilers(mode, workplace)
        if not compilers:
            print(f"skipped: {'clang++-16' if mode == 'text' else 'nvcc with ptxas'} is not installed")
            return SKIPPED
        for compile_one in compilers.values():
            for architecture in architectures:
                for name, pairs in combinations.families().items():
                    complaints += test_family(name, pairs, architecture, compile_one, workplace)
                    count += len(pairs)
                if architecture >= 90:
                    pairs = list(combinations.multimem())
                    complaints += test_family("multimem", pairs, architecture, compile_one, workplace)
                    count += len(pairs)
                for test in (test_machine, test_packed):
                    more, listed = test(architecture, compile_one, workplace)
                    complaints += more
                    count += listed
    print("\n".join(complaints))
    print(f"{count} instructions by {', '.join(compilers)} for {architectures}: {len(complaints)} complaints")
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main())
