"""What the bitcode holds, as LLVM's own programs tell it, and what the header promises."""
import pathlib
import re
import shutil
import subprocess

HEADER = pathlib.Path(__file__).resolve().parents[3] / "include" / "verbena" / "device" / "symm_c.cuh"
OWN_FUNCTION = r"_ZN7verbena6device6detail\w+"  # of its own, below those that the header promises
LIMIT_S = 120
SKIPPED = 77
LLVM_TYPES = {"int64_t": "i64", "int32_t": "i32"}


class MissingTool(Exception):
    """Of a tool that is not installed."""


def find_llvm(name):
    """Of the version that made the bitcode: the oldest one reads no newer file, and every newer one reads this."""
    path = shutil.which(f"llvm-{name}-16") or shutil.which(f"{name}-16")
    if not path:
        raise MissingTool(f"{name} of LLVM 16")
    return path


def run(*command):
    """What it printed; fails with what it complained of."""
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=LIMIT_S)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(map(str, command))}\n{done.stdout}{done.stderr}")
    return done.stdout


def report(complain):
    """A script's exit status: prints what `complain()` yields; 77 where a tool is missing."""
    try:
        complaints = list(complain())
    except MissingTool as missing:
        print(f"skipped: {missing} is not installed")
        return SKIPPED
    print("\n".join(complaints))
    print(f"{len(complaints)} complaints")
    return 1 if complaints else 0


def disassemble(library):
    return run(find_llvm("dis"), library, "-o", "-")


def list_promised():
    """{function: (what it returns, its parameters)}, in LLVM's words, of every function with a C name."""
    text = re.sub(r"//[^\n]*", "", HEADER.read_text(encoding="utf-8"))
    # The barriers are written once, by a macro of their name.
    shape = re.search(r"VERBENA_SYMM_FUNCTION (\w+) name\((.*?)\)", text)
    promised = {name: shape.groups() for name in re.findall(r"VERBENA_SYMM_BARRIER\((symm_\w+),", text)}
    for result, name, parameters in re.findall(r"VERBENA_SYMM_FUNCTION (\w+) (symm_\w+)\((.*?)\)", text, re.S):
        promised[name] = (result, parameters)
    return {name: (LLVM_TYPES[result], [LLVM_TYPES[word.split()[0]] for word in parameters.split(",")])
            for name, (result, parameters) in promised.items()}


def list_defined(assembly):
    """The same of what the library defines."""
    found = re.findall(r"^define (?:dso_local )?(\w+) @(\w+)\((.*?)\)", assembly, re.M)
    return {name: (result, [word.split()[0] for word in parameters.split(",")]) for result, name, parameters in found}


def list_symbols(library):
    """(kind, name), as nm prints them: T is defined, U is missing."""
    lines = run(find_llvm("nm"), "--format=posix", library).splitlines()
    return [(line.split()[1], line.split()[0]) for line in lines if line.strip()]
