"""A kernel links with the bitcode, is compiled, and assembled for sm_80 and sm_90, the way Triton does it.

usage: link_test.py LIBRARY.bc [--ptxas] [--needs PATTERN] [--calls]
  Without --ptxas: what LLVM makes of a kernel that calls every function, and of one that calls only symm_team_rank: no
  calls are left but of functions like PATTERN, and with --calls of the library's own, nothing else comes along. With it:
  ptxas takes the first.
Exits with 77 where LLVM's programs, or ptxas, are missing.
"""
import argparse
import pathlib
import re
import sys
import tempfile

import library

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "assembly"))
import toolchain  # noqa: E402  (found only now)

ARCHITECTURES = (80, 90)
# As Triton's: its flag, and a target that only the last step has.
KERNEL = """target datalayout = "e-i64:64-i128:128-v16:16-v32:32-n16:32:64"
target triple = "nvptx64-nvidia-cuda"
{declarations}
define void @kernel(i64 %context, i64 %wide, i32 %narrow, ptr addrspace(1) %out) {{
{calls}
  ret void
}}
!llvm.module.flags = !{{!0}}
!0 = !{{i32 4, !"nvvm-reflect-ftz", i32 1}}
!nvvm.annotations = !{{!1}}
!1 = !{{ptr @kernel, !"kernel", i32 1}}
"""


def write_kernel(functions):
    """Calls each, and keeps what they return."""
    declarations, calls = [], []
    for number, (name, (result, parameters)) in enumerate(sorted(functions.items())):
        declarations.append(f"declare {result} @{name}({', '.join(parameters)})")
        given = [{"i64": "i64 %wide", "i32": "i32 %narrow"}[kind] for kind in parameters]
        if parameters[0] == "i64":
            given[0] = "i64 %context"
        calls.append(f"  %r{number} = call {result} @{name}({', '.join(given)})\n"
                     f"  store volatile {result} %r{number}, ptr addrspace(1) %out")
    return KERNEL.format(declarations="\n".join(declarations), calls="\n".join(calls))


def link_kernel(path, functions, workplace):
    """LLVM's assembly after the passes. Without a triple they run for no target, as Triton's do."""
    kernel, linked, passed = (workplace / name for name in ("kernel.ll", "linked.ll", "passed.ll"))
    kernel.write_text(write_kernel(functions), encoding="utf-8")
    library.run(library.find_llvm("link"), "--only-needed", "--internalize", "-S", kernel, path, "-o", linked)
    linked.write_text(re.sub("^target triple.*$", "", linked.read_text(encoding="utf-8"), flags=re.M), encoding="utf-8")
    library.run(library.find_llvm("opt"), "-O3", "-S", linked, "-o", passed)
    return passed


def compile_kernel(passed, architecture, workplace):
    """PTX's file."""
    ptx = workplace / "kernel.ptx"
    library.run(library.find_llvm("llc"), "-mtriple=nvptx64-nvidia-cuda", f"-mcpu=sm_{architecture}", "-mattr=+ptx78",
                passed, "-o", ptx)
    return ptx


def complain_of_code(name, assembly, ptx, needs):
    defined = [function for function in re.findall(r"^define .*@(\w+)\(", assembly, re.M)
               if not needs or not re.fullmatch(needs, function)]
    if defined != ["kernel"]:
        yield f"{name}: not inlined, or not asked for: {defined}"
    called = re.findall(r"^\s*call\.uni (?:\(\w+\),)?\s*(\w+),", ptx, re.M)
    for function in called + re.findall(r"^\s*\.(?:extern|weak) \.func(?: +\([^)]*\))? +(\w+)", ptx, re.M):
        if not re.fullmatch(needs, function):
            yield f"{name}: {function} is not inlined"
    if not needs and re.search(r"^\s*call\b", ptx, re.M):
        yield f"{name}: a call is left"


def complain_of_kernels(path, needs, workplace):
    promised = library.list_promised()
    passed = link_kernel(path, {"symm_team_rank": promised["symm_team_rank"]}, workplace)
    ptx = compile_kernel(passed, ARCHITECTURES[0], workplace).read_text(encoding="utf-8")
    yield from complain_of_code("one function", passed.read_text(encoding="utf-8"), ptx, "")
    if "barrier" in ptx:
        yield "one function: others are with it"
    passed = link_kernel(path, promised, workplace)
    for architecture in ARCHITECTURES:
        ptx = compile_kernel(passed, architecture, workplace).read_text(encoding="utf-8")
        yield from complain_of_code(f"sm_{architecture}", passed.read_text(encoding="utf-8"), ptx, needs)


def assemble_kernel(path, ptxas, workplace):
    """Fails where ptxas does. Relocatable: other libraries' functions may be missing. NCCL's inline assembly is of a newer
    PTX than LLVM 16 knows, which is not its business."""
    passed = link_kernel(path, library.list_promised(), workplace)
    for architecture in ARCHITECTURES:
        ptx = compile_kernel(passed, architecture, workplace)
        text = ptx.read_text(encoding="utf-8")
        ptx.write_text(re.sub(r"^\.version .*$", ".version 8.3", text, flags=re.M), encoding="utf-8")
        library.run(ptxas, f"-arch=sm_{architecture}", "--compile-only", ptx, "-o", workplace / "kernel.cubin")
        print(f"sm_{architecture}: assembled")


def complain(arguments, workplace):
    if not arguments.ptxas:
        allowed = [arguments.needs] * bool(arguments.needs) + [library.OWN_FUNCTION] * arguments.calls
        yield from complain_of_kernels(arguments.library, "|".join(allowed), workplace)
        return
    tools = toolchain.find_nvcc()
    if not tools:
        raise library.MissingTool("ptxas")
    assemble_kernel(arguments.library, tools[1], workplace)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("library", type=pathlib.Path)
    parser.add_argument("--ptxas", action="store_true")
    parser.add_argument("--needs", default="")
    parser.add_argument("--calls", action="store_true")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="verbena-bitcode-") as folder:
        return library.report(lambda: complain(arguments, pathlib.Path(folder)))


if __name__ == "__main__":
    sys.exit(main())
