"""tools/tidy reads sources together, finds what is planted in any of them, and cannot be led astray by equal names."""
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

TIDY = pathlib.Path(__file__).resolve().parents[2] / "tools/tidy"
CLEAN = "namespace {\nint kName = 1;\n}\nint first() { return kName; }\n"
SAME_NAME = "namespace {\nlong kName = 2;\n}\nlong second() { return kName; }\n"
CLONE = "int third(int x) {\n  if (x > 1)\n    return 4;\n  else\n    return 4;\n}\n"
# Only a walk along the paths sees it.
NULL = "int fourth(int x) {\n  int* p = nullptr;\n  if (x > 1) p = &x;\n  return *p;\n}\n"


class TidyTest(unittest.TestCase):
    def setUp(self):
        self.root = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory())).resolve()
        (self.root / "build/default").mkdir(parents=True)
        (self.root / "plugin/part").mkdir(parents=True)
        (self.root / ".clang-tidy").write_text("Checks: '-*,bugprone-*,clang-analyzer-core.*'\nWarningsAsErrors: '*'\n"
                                               "HeaderFilterRegex: 'plugin/.*'\n")

    def run_tidy(self, sources, *options, extra=()):
        compiled = list(extra)
        for name, text in sources.items():
            path = self.root / "plugin/part" / name
            path.write_text(text)
            compiled.append(path)
        commands = [{"directory": str(self.root), "file": str(path), "command": f"c++ -std=c++20 -O2 -c {path}"}
                    for path in compiled]
        (self.root / "build/default/compile_commands.json").write_text(json.dumps(commands))
        environment = dict(os.environ, XDG_CACHE_HOME=str(self.root / "cache"))
        done = subprocess.run([TIDY, "--root", self.root, *options], text=True, timeout=120, env=environment,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        return done.returncode, done.stdout

    def test_clean_together(self):
        status, output = self.run_tidy({"a.cc": CLEAN, "b.cc": CLEAN.replace("first", "other").replace("kName", "kOther")})
        self.assertEqual(status, 0, output)
        self.assertIn("2 files\n", output)

    def test_equal_names_are_no_finding(self):
        status, output = self.run_tidy({"a.cc": CLEAN, "b.cc": SAME_NAME})
        self.assertEqual(status, 0, output)

    def test_finding_in_any_file(self):
        for files in ({"a.cc": CLONE, "b.cc": CLEAN}, {"a.cc": CLEAN, "b.cc": SAME_NAME + CLONE}):
            status, output = self.run_tidy(files)
            self.assertEqual(status, 1, output)
            self.assertIn("bugprone-branch-clone", output)

    def test_finding_in_a_source_of_a_unity_build(self):
        folder = self.root / "build/default/CMakeFiles/part.dir/Unity"
        folder.mkdir(parents=True)
        sources = [self.root / "plugin/part" / name for name in ("a.cc", "b.cc")]
        for source, text in zip(sources, (CLEAN, CLONE)):
            source.write_text(text)
        unity = folder / "unity_0_cxx.cxx"
        unity.write_text("".join(f'/* NOLINT */\n#include "{source}"\n' for source in sources))
        status, output = self.run_tidy({}, extra=[unity])
        self.assertEqual(status, 1, output)
        self.assertIn("bugprone-branch-clone", output)

    def test_paths_are_followed_in_full_only(self):
        status, output = self.run_tidy({"a.cc": NULL, "b.cc": CLEAN})
        self.assertEqual(status, 0, output)
        status, output = self.run_tidy({"a.cc": NULL, "b.cc": CLEAN}, "--full")
        self.assertEqual(status, 1, output)
        self.assertIn("NullDereference", output)

    def read_pieces(self, sources, *options):
        status, output = self.run_tidy(sources, *options)
        self.assertEqual(status, 0, output)
        return int(re.search(r"(\d+) pieces not known", output)[1])

    def test_what_was_clean_is_not_read_again(self):
        header = self.root / "plugin/part/header.h"
        header.write_text("inline int fifth() { return 5; }\n")
        files = {"a.cc": '#include "header.h"\n' + CLEAN}
        self.assertEqual(self.read_pieces(files), 1)
        self.assertEqual(self.read_pieces(files), 0)
        self.assertEqual(self.read_pieces(files, "--full"), 1)
        self.assertEqual(self.read_pieces(files, "--fresh"), 1)
        header.write_text("inline int fifth() { return 6; }\n")
        self.assertEqual(self.read_pieces(files), 1)
        rules = self.root / ".clang-tidy"
        rules.write_text(rules.read_text().replace("analyzer-core", "analyzer-cplusplus"))
        self.assertEqual(self.read_pieces(files), 1)

    def test_a_finding_stays(self):
        for _ in range(2):
            status, output = self.run_tidy({"a.cc": CLONE})
            self.assertEqual(status, 1, output)

    def test_does_not_compile(self):
        status, output = self.run_tidy({"a.cc": "int broken( {\n"})
        self.assertEqual(status, 1, output)

    def test_nothing_to_read(self):
        status, output = self.run_tidy({})
        self.assertEqual(status, 2, output)


if __name__ == "__main__":
    if not shutil.which("clang-tidy-16"):
        sys.exit(77)
    unittest.main()
