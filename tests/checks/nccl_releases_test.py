"""tools/nccl-releases keeps the code of one architecture, and says which release gave wrong data or failed."""
import importlib.machinery
import importlib.util
import lzma
import pathlib
import struct
import subprocess
import sys
import tempfile
import unittest

TOOL = pathlib.Path(__file__).resolve().parents[2] / "tools/nccl-releases"
LOADER = importlib.machinery.SourceFileLoader("nccl_releases", str(TOOL))
SPEC = importlib.util.spec_from_loader("nccl_releases", LOADER)
RELEASES = importlib.util.module_from_spec(SPEC)
sys.dont_write_bytecode = True
LOADER.exec_module(RELEASES)

# nccl-perf as far as the tool sees it. What it says depends on what the library holds and on its options.
FAKE = """#!/usr/bin/env python3
import json, pathlib, sys
words = sys.argv
holds = pathlib.Path(words[words.index("--nccl") + 1]).read_bytes()
if b"broken" in holds and "--graph" in words:
    sys.exit("the reason")
rows = [{"wrong": 5 if b"wrong" in holds and "LL128" in words else 0}]
pathlib.Path(words[words.index("--json") + 1]).write_text(json.dumps({"details": {"variants": [{"rows": rows}]}}))
"""


def fat_binary(entries):
    body = b"".join(RELEASES.FAT_ENTRY.pack(kind, 0, 64, len(code), 0, 0, 0, 0, arch).ljust(64, b"\0") + code
                    for kind, arch, code in entries)
    return RELEASES.FAT_BINARY.pack(RELEASES.FAT_BINARY_MAGIC, 1, 16, len(body)) + body


def shared_object(sections):
    """An ELF file's header, its sections, and their headers."""
    names = b"\0"
    image = bytearray(64)
    headers = [struct.pack("<IIQQQQ24x", 0, 0, 0, 0, 0, 0)]
    for name, data in [*sections, (".names", b"")]:
        offset = len(image)
        if name == ".names":
            data = names + b".names\0"
        headers.append(struct.pack("<IIQQQQ24x", len(names), 1, 0, 0, offset, len(data)))
        names += name.encode() + b"\0"
        image += data + bytes(-len(data) % 8)
    struct.pack_into("<Q", image, 40, len(image))
    struct.pack_into("<HHH", image, 58, 64, len(headers), len(headers) - 1)
    return image + b"".join(headers)


class NcclReleasesTest(unittest.TestCase):
    def setUp(self):
        self.root = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))

    def test_keeps_one_architecture(self):
        image = shared_object([
            (".text", b"text" * 4), ("__nv_relfatbin", fat_binary([(2, 90, b"linker" * 8)])),
            (".nv_fatbin", fat_binary([(2, 80, b"eighty" * 8), (2, 90, b"ninety" * 8), (1, 90, b"source" * 8)]) +
             fat_binary([(2, 100, b"hundred!" * 8)]) + fat_binary([(2, 90, b"second" * 8)]))])
        before = len(image)
        RELEASES.clear_other_code(image, 90)
        self.assertEqual(len(image), before)
        for kept in (b"text" * 4, b"ninety" * 8, b"second" * 8):
            self.assertIn(kept, image)
        for cleared in (b"eighty", b"linker", b"source", b"hundred!"):
            self.assertNotIn(cleared, image)

    def run_over(self, libraries):
        tool = self.root / "build/bin/nccl-perf"
        tool.parent.mkdir(parents=True)
        tool.write_text(FAKE)
        tool.chmod(0o755)
        for version, holds in libraries.items():
            (self.root / f"{version}.xz").write_bytes(lzma.compress(holds))
        return subprocess.run([TOOL, "run", "--limit", "20", self.root, self.root / "build"], text=True, timeout=120,
                              capture_output=True, check=False)

    def test_table_of_right_releases(self):
        done = self.run_over({"2.30.7": b"right", "2.19.3": b"right"})
        self.assertEqual(done.returncode, 0, done.stderr)
        rows = [line.split("  ") for line in done.stdout.splitlines()[-3:]]
        self.assertEqual([row[0].strip() for row in rows], ["NCCL", "2.19.3", "2.30.7"])
        self.assertEqual(done.stdout.count("| - |"), 1, "PAT is younger than 2.19")

    def test_wrong_data_and_failures(self):
        done = self.run_over({"2.28.9": b"wrong", "2.29.3": b"broken"})
        self.assertEqual(done.returncode, 1)
        self.assertIn("5 wrong of 1", done.stdout)
        self.assertIn("FAILED (1)", done.stdout)
        self.assertIn("the reason", done.stderr)


if __name__ == "__main__":
    unittest.main()
