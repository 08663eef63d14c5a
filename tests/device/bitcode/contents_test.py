"""The bitcode has every C function of the header, no undefined symbols, and no trace of the build machine.

usage: contents_test.py LIBRARY.bc [--needs PATTERN] [--calls]
  --needs PATTERN   of the functions, another library's, that it calls; without it, none
  --calls           it keeps calls of functions of its own
Exits with 77 where LLVM's programs are missing.
"""
import argparse
import pathlib
import re
import sys

import library

LAYOUT = "e-i64:64-i128:128-v16:16-v32:32-n16:32:64"
# In the assembly, and why not.
LEFTOVERS = {
    r"nvvm-reflect-ftz": "contradicts the flag of Triton's kernels",
    r'"target-(cpu|features)"': "keeps functions from being inlined",
    r'"no-builtins"': "keeps functions from being inlined",
    r"llvm\.(compiler\.)?used": "drags in functions that nobody calls",
    r"__nv_\w+": "is another library's",
    r"\.version\b": "is the assembler's business",
    r"llvm\.global_[cd]tors": "nobody runs them",
    r"\boptnone\b": "is for the inliner to decide",
    r"^@[^=]*= (?!linkonce_odr dso_local addrspace\(3\))": "is state outside the context",
}


LEFTOVERS_WITHOUT_CALLS = {
    r"\bnoinline\b": "is for the inliner to decide",
    r"^define (?!dso_local \w+ @symm_)": "is no function of ours",
}
LEFTOVERS_WITH_CALLS = {rf"^define (?!dso_local \w+ @symm_|linkonce_odr [^@]*@{library.OWN_FUNCTION}\()": "is no function of ours"}


def complain_of_functions(assembly):
    promised, defined = library.list_promised(), library.list_defined(assembly)
    for name in sorted(promised.keys() | defined.keys()):
        if promised.get(name) != defined.get(name):
            yield f"{name}: the header has {promised.get(name)}, the bitcode {defined.get(name)}"
    if len(promised) < 20:
        yield f"only {len(promised)} functions found in {library.HEADER}"


def complain_of_inlining(assembly):
    """Functions that stay calls cost a kernel its registers."""
    for name, group in re.findall(r"^define .*@(\w+)\(.*(#\d+) {$", assembly, re.M):
        if re.fullmatch(library.OWN_FUNCTION, name):
            continue  # complain_of_leftovers() knows whether it may be there
        if not re.search(rf"^attributes {group} = .*\balwaysinline\b", assembly, re.M):
            yield f"{name} is not always inlined"


def complain_of_symbols(path, needs):
    missing = [name for kind, name in library.list_symbols(path) if kind == "U"]
    for name in missing:
        if not re.fullmatch(needs, name):
            yield f"{name} is not defined"
    if needs and not missing:
        yield f"nothing of {needs} is called"


def complain_of_target(assembly):
    for wanted in (f'target datalayout = "{LAYOUT}"', 'target triple = "nvptx64-nvidia-cuda"',
                   'source_filename = "verbena"'):
        if wanted not in assembly:
            yield f"there is no line {wanted}"


def complain_of_leftovers(path, assembly, calls):
    for pattern, reason in (LEFTOVERS | (LEFTOVERS_WITH_CALLS if calls else LEFTOVERS_WITHOUT_CALLS)).items():
        found = re.search(pattern, assembly, re.M)
        if found:
            yield f"{found.group(0)}: {reason}"
    if calls and not re.search(rf"@{library.OWN_FUNCTION}\(", assembly):
        yield "no function of its own is called"
    for folder in (library.HEADER.parents[3], pathlib.Path.cwd()):
        if str(folder).encode() in path.read_bytes():
            yield f"it holds the path {folder}"


def complain(path, needs, calls):
    assembly = library.disassemble(path)
    yield from complain_of_functions(assembly)
    yield from complain_of_inlining(assembly)
    yield from complain_of_symbols(path, needs)
    yield from complain_of_target(assembly)
    yield from complain_of_leftovers(path, assembly, calls)
    print(f"{len(library.list_promised())} functions, {path.stat().st_size} bytes")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("library", type=pathlib.Path)
    parser.add_argument("--needs", default="")
    parser.add_argument("--calls", action="store_true")
    arguments = parser.parse_args()
    return library.report(lambda: complain(arguments.library, arguments.needs, arguments.calls))


if __name__ == "__main__":
    sys.exit(main())
