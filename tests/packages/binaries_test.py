"""What every binary of ours must be, in the build and as it is installed and packed.

usage: binaries_test.py BUILD [TEST...]
"""
import pathlib
import re
import sys
import tempfile
import unittest

import stage

BUILD = pathlib.Path(sys.argv.pop(1)).resolve()


class BinariesTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        prefix = pathlib.Path(cls.folder.name)
        # The packages hold what is installed, which deb_test.py makes sure of.
        stage.install(BUILD, prefix)
        cls.shipped = sorted(path for path in prefix.rglob("*") if stage.is_elf(path))
        names = {path.name for path in cls.shipped}
        built = [path for folder in ("bin", "lib") for path in (BUILD / folder).rglob("*") if stage.is_elf(path)]
        cls.built = sorted(built)
        cls.ours = cls.shipped + [path for path in cls.built if path.name in names]

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def test_all_are_looked_at(self):
        names = {path.name for path in self.ours}
        for name in ("libibverbs.so.1", "libnccl-net-verbena.so", "verbena-perf", "verbena-info", "nccl-perf"):
            self.assertIn(name, names)
        self.assertTrue(any(name.startswith("libverbena.so.") for name in names))

    # An empty part means the current folder: its owner could replace our libraries.
    def test_no_library_comes_from_the_current_folder(self):
        for path in self.shipped + self.built:
            said = stage.run("readelf", "-d", path)
            for found in re.findall(r"R(?:UN)?PATH.*\[(.*)\]", said):
                for part in found.split(":"):
                    self.assertRegex(part, r"^(/|\$ORIGIN($|/))", f"{path}: [{found}]")

    # What cmake/hardening.cmake asks for. A program or library of few lines may have nothing that needs the first two.
    def test_all_are_hardened(self):
        protected, checked = set(), set()
        for path in self.ours:
            said = stage.run("readelf", "-hldW", "--dyn-syms", path)
            with self.subTest(path=str(path)):
                for pattern, lacks in ((r"Type:\s+DYN", "it is loaded at fixed addresses"), (r"GNU_RELRO", "its tables stay writable"),
                                       (r"\(FLAGS_1\).*\bNOW\b|\(FLAGS\).*BIND_NOW", "its table of functions stays writable"),
                                       (r"GNU_STACK.* RW +0x", "its stack is executable")):
                    self.assertTrue(re.search(pattern, said), lacks)
                self.assertFalse("TEXTREL" in said, "its code is writable")
            protected |= {path.name.split(".")[0]} if "__stack_chk_fail" in said else set()
            checked |= {path.name.split(".")[0]} if re.search(r"UND __\w+_chk\b", said) else set()
        for name in ("libibverbs", "libnccl-net-verbena", "libverbena", "verbena-perf", "verbena-info", "nccl-perf"):
            self.assertIn(name, protected, "no stack protector")
            self.assertIn(name, checked, "no _FORTIFY_SOURCE")


if __name__ == "__main__":
    stage.leave_if_missing("readelf")
    unittest.main()
