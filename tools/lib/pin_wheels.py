#!/usr/bin/env python3
"""Writes wheels.txt, the hashes of all archives that our tools fetch with pip. `tools/setup --pin` calls it.

usage: pin_wheels.py SECTION OPTION REQUIREMENT... [/ SECTION OPTION REQUIREMENT...]...
OPTION is --no-deps, or an empty word: then what the requirements require is pinned too.

pip's own resolver chooses the archives: for Python 3.11 and 3.12, which the supported systems have and which must both be on
PATH, and for x86-64 and 64-bit Arm. An archive that does not exist for Arm is left out there.
"""
import json
import os
import pathlib
import subprocess
import sys
import tempfile

HEADER = """\
# The archives that tools/setup, tools/wheel and tools/nccl-releases fetch with pip, in its format of requirements. pip refuses
# any other archive (--require-hashes). After a change of a version there, `tools/setup --pin` writes this file again.
"""
PYTHONS = ("python3.11", "python3.12")
PLATFORMS = {"x86_64": None, "aarch64": [f"manylinux_2_{minor}_aarch64" for minor in range(17, 37)] + ["manylinux2014_aarch64"]}
LIMIT_S = 1800


def resolve(python, number, platforms, option, requirements, scratch):
    """Returns {(name, version): {hash}}; None if pip finds no solution. The archives suit every patch release of this Python."""
    command = [python, "-m", "pip", "install", "--quiet", "--dry-run", "--ignore-installed", "--only-binary=:all:", "--report", "-"]
    command += ["--target", str(scratch / "none"), "--python-version", f"{number}.0"]
    command += [word for name in platforms or () for word in ("--platform", name)] + ([option] if option else [])
    done = subprocess.run(command + requirements, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, timeout=LIMIT_S, check=False,
                          env={**os.environ, "PIP_FIND_LINKS": ""})
    if done.returncode != 0:
        return None
    found = {}
    for entry in json.loads(done.stdout)["install"]:
        name = entry["metadata"]["name"].lower().replace("_", "-").replace(".", "-")
        digest = entry["download_info"]["archive_info"]["hashes"]["sha256"]
        found.setdefault((name, entry["metadata"]["version"]), set()).add(digest)
    return found


def pin(pythons, option, requirements, scratch):
    """Returns the lines of a section."""
    hashes, users = {}, {}
    for number, python in pythons.items():
        for machine, platforms in PLATFORMS.items():
            groups = [[one] for one in requirements] if option else [requirements]  # alone: several versions of one package
            for group in groups:
                found = resolve(python, number, platforms if machine != os.uname().machine else None, option, group, scratch)
                if found is None and machine == os.uname().machine:
                    sys.exit(f"pin_wheels: pip cannot resolve {' '.join(group)} for Python {number}")
                for key, digests in (found or {}).items():
                    hashes.setdefault(key, set()).update(digests)
                    users.setdefault(key, set()).add(number)
    lines = []
    for name, version in sorted(hashes):
        is_split = sum(other == name for other, _ in hashes) > 1
        marker = " or ".join(f'python_version == "{number}"' for number in sorted(users[name, version])) if is_split else ""
        lines.append(f"{name}=={version}{' ; ' + marker if marker else ''} \\")
        lines += [f"  --hash=sha256:{digest} \\" for digest in sorted(hashes[name, version])]
        lines[-1] = lines[-1].removesuffix(" \\")
    return lines


def main():
    words, sections = sys.argv[1:], []
    while words:
        end = words.index("/") if "/" in words else len(words)
        sections.append((words[0], words[1], words[2:end]))
        words = words[end + 1:]
    with tempfile.TemporaryDirectory() as folder:
        scratch = pathlib.Path(folder)
        pythons = {}
        for name in PYTHONS:  # a current pip, which reads what an archive requires without fetching it
            subprocess.run([name, "-m", "venv", scratch / name], check=True)
            python = str(scratch / name / "bin/python")
            subprocess.run([python, "-m", "pip", "install", "--quiet", "--upgrade", "pip"], check=True, stdin=subprocess.DEVNULL)
            pythons[name.removeprefix("python")] = python
        text = HEADER
        for section, option, requirements in sections:
            print(f"pin_wheels: {section}: {' '.join(requirements)}", flush=True)
            text += f"# --- {section}\n" + "".join(line + "\n" for line in pin(pythons, option, requirements, scratch))
    pathlib.Path(__file__).with_name("wheels.txt").write_text(text)


if __name__ == "__main__":
    main()
