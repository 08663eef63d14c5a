#!/usr/bin/env python3
"""What is fetched with pip has a hash in tools/lib/wheels.txt, and another archive is refused."""
import hashlib
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest
import zipfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
TOOLS = ROOT / "tools"


def read_wheels():
    """Returns {section: {requirement: [hash]}}."""
    sections, section = {}, None
    for line in (TOOLS / "lib/wheels.txt").read_text().replace("\\\n", " ").splitlines():
        if line.startswith("# --- "):
            section = sections.setdefault(line.removeprefix("# --- "), {})
        elif not line.startswith("#"):
            section.setdefault(line.split()[0], []).extend(re.findall(r"--hash=sha256:([0-9a-f]{64})", line))
    return sections


def list_asked():
    """Returns what tools/setup and tools/nccl-releases name with a version."""
    text = (TOOLS / "setup").read_text()
    asked = set(re.findall(r"[a-z][a-z0-9-]*==[0-9][0-9a-z.]*", text))
    asked |= {f"{name}=={version}" for name, version in re.findall(r"^(triton|torch)_version=(\S+)$", text, re.M)}
    rows = re.search(r"^engine_wheels=\((.*?)\)$", text, re.M | re.S).group(1)
    asked |= {f"{name}=={version}" for name, version in re.findall(r'"(\S+) (\S+) ', rows)}
    listed = subprocess.run([TOOLS / "nccl-releases", "list"], capture_output=True, text=True, check=True).stdout
    return asked | set(listed.split())


class Wheels(unittest.TestCase):
    def test_each_has_a_hash(self):
        sections = read_wheels()
        pinned = {requirement: hashes for section in sections.values() for requirement, hashes in section.items()}
        self.assertGreater(len(list_asked()), 20)
        for requirement in list_asked():
            self.assertTrue(pinned.get(requirement), f"{requirement}: run tools/setup --pin")
        for requirement, hashes in pinned.items():
            self.assertTrue(hashes, requirement)

    def test_pip_is_told_to_check(self):
        for path in [path for path in TOOLS.rglob("*") if path.is_file()] + sorted((ROOT / ".github").rglob("*.yml")):
            # pin_wheels.py resolves what there is; nothing of that is installed or kept.
            if path.name == "pin_wheels.py" or path.suffix not in {"", ".sh", ".py", ".yml"}:
                continue
            lines = path.read_text(errors="replace").splitlines()
            for number, line in enumerate(lines, 1):
                words = " ".join(lines[number - 1:number + 2])
                if re.search(r"""(pip["']?,? ["']?(--quiet )?(install|download)\b)""", line) and not line.lstrip().startswith(("#", "echo")):
                    self.assertRegex(words, "--require-hashes|--no-index", f"{path}:{number}")

    def test_another_archive_is_refused(self):
        with tempfile.TemporaryDirectory() as folder:
            scratch = pathlib.Path(folder)
            wheel = scratch / "engine-1.0-py3-none-any.whl"
            with zipfile.ZipFile(wheel, "w") as archive:
                archive.writestr("engine/file.py", "")
                archive.writestr("engine-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: engine\nVersion: 1.0\n")
                archive.writestr("engine-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
                archive.writestr("engine-1.0.dist-info/RECORD", "")
            digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
            environment = {**os.environ, "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": folder}
            for hashed, is_taken in ((f" --hash=sha256:{digest}", True), (f" --hash=sha256:{digest[::-1]}", False), ("", False)):
                target = scratch / f"target{len(hashed)}{is_taken}"
                done = subprocess.run([sys.executable, TOOLS / "lib/fetch_engine.py", "engine==1.0" + hashed, target, "engine"],
                                      env=environment, capture_output=True, text=True, timeout=200, check=False)
                self.assertEqual(done.returncode == 0, is_taken, done.stderr)
                self.assertEqual((target / "engine/file.py").exists(), is_taken)


if __name__ == "__main__":
    if subprocess.run([sys.executable, "-m", "pip", "--version"], capture_output=True, check=False).returncode != 0:
        print("skipped: no pip")
        sys.exit(77)
    unittest.main()
