#!/usr/bin/env python3
"""Fetches a wheel with pip and unpacks the Python files of some of its packages.

usage: fetch_engine.py REQUIREMENT FOLDER PACKAGE...   (such as: fetch_engine.py "$requirement" CACHE/vllm-0.33.0 vllm)
REQUIREMENT is a line of wheels.txt, with the hashes that are allowed.
FOLDER exists afterwards only if everything went well.
"""
import pathlib
import shutil
import subprocess
import sys
import tempfile
import zipfile

LIMIT_S = 900


def main():
    requirement, folder, packages = sys.argv[1], pathlib.Path(sys.argv[2]), sys.argv[3:]
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
        # A wheel for any release of Python will do: its files are read, not installed.
        asked = pathlib.Path(scratch) / "requirements.txt"
        asked.write_text(requirement + "\n")
        subprocess.run([sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:", "--require-hashes",
                        "--dest", scratch, "-r", asked], check=True, timeout=LIMIT_S, stdin=subprocess.DEVNULL)
        wheel, = pathlib.Path(scratch).glob("*.whl")
        unpacked = pathlib.Path(scratch) / "unpacked"
        with zipfile.ZipFile(wheel) as archive:
            wanted = [name for name in archive.namelist()
                      if name.endswith(".dist-info/METADATA")
                      or (name.endswith(".py") and any(name.startswith(f"{package}/") for package in packages))]
            archive.extractall(unpacked, wanted)
        shutil.rmtree(folder, ignore_errors=True)
        unpacked.rename(folder)


if __name__ == "__main__":
    main()
