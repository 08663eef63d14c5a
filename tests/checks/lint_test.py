"""tools/lint is green on good files, and red on each kind of bad one, which it names."""
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROGRAMS = ("git", "clang-format-16", "shellcheck", "pyflakes3", "mypy", "ctags")

GOOD = {
    "plugin/README.md": "plugin\n",
    "plugin/base/README.md": "base\n",
    "plugin/base/text.h": "#pragma once\nextern int kGood;\n",
    "tools/good": '#!/bin/bash\ncd "$(dirname "$0")" || exit 1\necho "$@"\n',
    "tools/good.py": "import sys\n\nprint(sys.argv)\n",
    "tools/good-too": "#!/usr/bin/env python3\nimport sys\n\nprint(sys.argv)\n",
    "python/verbena/__init__.py": "def add(x: int) -> int:\n    return x + 1\n",
    "python/verbena/triton/__init__.py": "",
}
# Of what kind: where, what is in it, what the line about it says.
BAD = {
    "format": ("plugin/base/bad.h", "#pragma once\nextern  int kBad ;\n", "plugin/base/bad.h"),
    "format of a comment's rows": ("plugin/base/bad.h", "#pragma once\n//   post   " + "word " * 19 + "end\n//   it.\n//          More.\n",
                                   "plugin/base/bad.h:3: a row of a comment is torn apart"),
    "format of a long comment": ("plugin/base/bad.h", "#pragma once\n// " + "x" * 108 + "\n", "plugin/base/bad.h:2: a comment of 111 columns"),
    "format of a long block comment": ("plugin/base/bad.h", "#pragma once\n/* A\n * " + "x" * 108 + "\n */\n",
                                       "plugin/base/bad.h:3: a comment of 111 columns"),
    "layers": ("plugin/protocol/bad.h", '#pragma once\n#include <infiniband/verbs.h>\n', "plugin/protocol/bad.h"),
    "shell": ("tools/bad.sh", "cd /tmp\nrm -rf $1/*\ncd $2\n", "tools/bad.sh"),
    "shell by its first line": ("tools/bad", "#!/bin/sh\ncd $2\n", "tools/bad:"),
    "python": ("tools/bad.py", "import os\n", "tools/bad.py:1"),
    "python by its first line": ("tools/bad", "#!/usr/bin/env python3\nprint(name)\n", "tools/bad:2"),
    "types": ("python/verbena/bad.py", 'def add(x: int) -> int:\n    return "x"\n', "verbena/bad.py:2"),
}


class LintTest(unittest.TestCase):
    # One tree for all, as mypy reads Python's own types once a tree: each test leaves it as it was.
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.root = pathlib.Path(folder.name)
        for name in ("tools/lint", "tools/format-all", "tools/check_layers", "tools/list-large", ".clang-format", "python/pyproject.toml"):
            (cls.root / name).parent.mkdir(exist_ok=True)
            shutil.copy(ROOT / name, cls.root / name)
        for name, text in GOOD.items():
            cls.write(name, text)
        subprocess.run(["git", "init", "--quiet", cls.root], check=True)

    @classmethod
    def write(cls, name, text):
        path = cls.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def lint(self, *options):
        done = subprocess.run([self.root / "tools/lint", *options], text=True, timeout=100, stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        return done.returncode, done.stdout

    def test_good_files(self):
        status, said = self.lint("--check")
        self.assertEqual(status, 0, said)
        self.assertEqual(said, "".join(f"lint: {name}: clean\n" for name in ("format", "layers", "shell", "python", "types", "large")))

    def test_each_bad_file(self):
        for kind, (name, text, expected) in BAD.items():
            with self.subTest(kind):
                self.write(name, text)
                if kind == "layers":
                    self.write("plugin/protocol/README.md", "protocol\n")
                status, said = self.lint("--check")
                (self.root / name).unlink()
                self.assertEqual(status, 1, said)
                self.assertIn(expected, said)
                dirty = [line for line in said.splitlines() if line.startswith("lint: ") and not line.endswith(": clean")]
                self.assertEqual(dirty, [f"lint: {kind.split()[0]}:"])  # its own check and no other

    def test_formatting_is_mended_unless_only_checked(self):
        name, text, _ = BAD["format"]
        self.write(name, text)
        self.lint("--check")
        self.assertEqual((self.root / name).read_text(), text)
        status, said = self.lint()
        self.assertEqual(status, 0, said)
        self.assertEqual((self.root / name).read_text(), "#pragma once\nextern int kBad;\n")
        (self.root / name).unlink()

    def test_what_git_ignores_is_not_read(self):
        self.write("build/.gitignore", "*\n")
        self.write("build/bad.py", "import os\n")
        self.assertEqual(self.lint("--check")[0], 0)
        shutil.rmtree(self.root / "build")

    # At the limit: nothing. One more of each: listed, and no finding.
    def test_what_is_large_is_listed_and_no_finding(self):
        def write_sources(more):
            functions = "".join(f"  int f{i}();\n" for i in range(22 + more)) + "  int in_1();\n  int in_2();\n  int in_3();\n"
            members = "".join(f"  int m{i}_ = 0;\n" for i in range(20 + more))
            self.write("plugin/base/busy.h", f"#pragma once\nclass Busy {{\n public:\n{functions}}};\n")
            self.write("plugin/base/wide.cuh", f"#pragma once\nnamespace n {{\nstruct Wide {{\n{members}}};\n}}  // namespace n\n")
            for i in range(1, 3 + more):
                self.write(f"plugin/base/busy_{i}.cc", f'#include "base/busy.h"\nint Busy::in_{i}() {{\n  return {i};\n}}\n')
            self.write("plugin/base/long.cc", "int count() {\n  int n = 0;\n" + "  ++n;\n" * (56 + more) + "  return n;\n}\n")
            self.write("tools/long.py", "def count():\n    n = 0\n" + "    n += 1\n" * (57 + more) + "    return n\n")

        write_sources(0)
        status, said = self.lint("--check")
        self.assertEqual((status, said.splitlines()[-1]), (0, "lint: large: clean"), said)
        write_sources(1)
        status, said = self.lint("--check")
        self.assertEqual(status, 0, said)
        self.assertEqual(said.partition("lint: large, for a reader to judge:\n")[2].splitlines(), [
            "plugin/base/busy.h:2: Busy: 26 functions, 3 .cc files", "plugin/base/long.cc:1: count: 61 lines",
            "plugin/base/wide.cuh:3: n::Wide: 21 data members", "tools/long.py:1: count: 61 lines"])
        for name in ("busy.h", "wide.cuh", "busy_1.cc", "busy_2.cc", "busy_3.cc", "long.cc"):
            (self.root / "plugin/base" / name).unlink()
        (self.root / "tools/long.py").unlink()

    def test_unknown_option(self):
        self.assertEqual(self.lint("--chek")[0], 2)


if __name__ == "__main__":
    missing = [program for program in PROGRAMS if shutil.which(program) is None]
    if missing:
        print(f"skipped: no {', '.join(missing)} (tools/setup test)")
        sys.exit(77)
    unittest.main()
