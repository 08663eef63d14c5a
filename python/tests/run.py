"""Runs this folder's tests with the first Python interpreter that has the modules that the tests need: the interpreter that tools/setup has
installed, or one of the system's interpreters.

usage: run.py MODULES COMMAND...   (such as: run.py pytest,torch? -m pytest groups_test.py)
A module with a question mark is one that some tests want: a Python that has it comes before others. PYTHONS=system: the system's alone.
Exits with 77 where no Python has all other modules.
"""
import os
import pathlib
import shutil
import subprocess
import sys

SKIPPED = 77
LOOK_LIMIT_S = 60
FOLDER = pathlib.Path(__file__).resolve().parent


def list_pythons():
    if os.environ.get("PYTHONS") == "system":
        return ["/usr/bin/python3"]
    cache = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache")
    return [str(cache / "verbena" / "python" / "bin" / "python"), sys.executable, "/usr/bin/python3"]


def has_modules(python, modules):
    code = f"import importlib.util, sys; sys.exit(None in map(importlib.util.find_spec, {modules!r}))"
    return shutil.which(python) and subprocess.run([python, "-c", code], timeout=LOOK_LIMIT_S, check=False).returncode == 0


def main():
    modules, command = sys.argv[1].split(","), sys.argv[2:]
    needed = [module for module in modules if not module.endswith("?")]
    wanted = [module.rstrip("?") for module in modules]
    for python, looked_for in [(python, those) for those in (wanted, needed) for python in list_pythons()]:
        if has_modules(python, looked_for):
            os.chdir(FOLDER)
            os.environ["PYTHONPATH"] = str(FOLDER.parent)
            os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
            os.execv(python, [python, *command])
    print(f"skipped: no Python has {' and '.join(needed)} (tools/setup test triton torch)")
    return SKIPPED


if __name__ == "__main__":
    sys.exit(main())
