"""tools/coverage tells the lines that ran from those that did not, counts a file that never ran, and fails below its minimum."""
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

COVERAGE = pathlib.Path(__file__).resolve().parents[2] / "tools/coverage"
# Called with 1: two of the three lines of `choose` run.
HALF = "int choose(int x) {\n  if (x > 1)\n    return 4;\n  return 5;\n}\n"
NEVER = "int never(int x) {\n  return x;\n}\n"
MAIN = "int choose(int);\nint main() { return choose(1) - 5; }\n"


class CoverageTest(unittest.TestCase):
    def setUp(self):
        self.root = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory())).resolve()
        self.build = self.root / "build/coverage"
        self.build.mkdir(parents=True)
        for name, text in {"plugin/base/half.cc": HALF, "device/api/never.cc": NEVER, "tests/main.cc": MAIN}.items():
            path = self.root / name
            path.parent.mkdir(parents=True)
            path.write_text(text)
            subprocess.run(["g++", "--coverage", "-c", path], cwd=self.build, check=True, timeout=60)
        subprocess.run(["g++", "--coverage", "half.o", "never.o", "main.o", "-o", "program"], cwd=self.build, check=True,
                       timeout=60)

    def report(self, *options):
        done = subprocess.run([COVERAGE, "--report", "--root", self.root, *options], text=True, timeout=120,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        return done.returncode, re.sub(" +", " ", done.stdout)

    def test_table(self):
        subprocess.run([self.build / "program"], check=True, timeout=60)
        status, output = self.report("--minimum", "50")
        self.assertEqual(status, 0, output)
        self.assertIn("plugin/base 3 4 75.0 %", output)
        self.assertIn("device/api/never.cc 0 2 0.0 %", output)
        self.assertIn("plugin 3 4 75.0 %", output)
        self.assertIn("in all 3 6 50.0 %", output)
        self.assertNotIn("tests/main.cc", output)

    def test_below_the_minimum(self):
        subprocess.run([self.build / "program"], check=True, timeout=60)
        status, output = self.report("--minimum", "51")
        self.assertEqual(status, 1, output)
        self.assertIn("below 51 %", output)

    def test_nothing_ran(self):
        status, output = self.report("--minimum", "0")
        self.assertEqual(status, 2, output)


if __name__ == "__main__":
    if not shutil.which("gcovr"):
        sys.exit(77)
    unittest.main()
