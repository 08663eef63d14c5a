"""The packages that cpack makes: what they hold and ask for, and what lintian says of them.

usage: deb_test.py BUILD [TEST...]
"""
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

import stage

BUILD = pathlib.Path(sys.argv.pop(1)).resolve()
NAMES = {"verbena", "python3-verbena", "verbena-nccl-default"}


class DebTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.root = pathlib.Path(cls.folder.name)
        cls.packages = stage.make_packages(BUILD, cls.root / "packages")
        for name, file in cls.packages.items():
            stage.run("dpkg-deb", "-x", file, cls.root / name)

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def get_field(self, package, field):
        return stage.run("dpkg-deb", "-f", self.packages[package], field).strip()

    def test_three_packages(self):
        self.assertEqual(set(self.packages), NAMES)

    def test_they_hold_what_is_installed(self):
        stage.install(BUILD, self.root / "plain/usr")
        plain = stage.list_files(self.root / "plain")
        held = {name: stage.list_files(self.root / name) for name in NAMES}
        packed = set().union(*held.values())
        self.assertEqual(plain - packed, set())
        own = "|".join(NAMES)
        added = re.compile(rf"usr/share/(doc/({own})/(copyright|changelog(\.Debian)?\.gz)|lintian/overrides/({own}))")
        self.assertEqual([name for name in packed - plain if not added.fullmatch(name)], [])
        for one in NAMES:
            for other in NAMES - {one}:
                self.assertEqual(held[one] & held[other], set())

    def test_only_the_one_package_changes_what_nccl_takes_unasked(self):
        for name in NAMES:
            found = [path for path in stage.list_files(self.root / name) if path.endswith("/libnccl-net.so")]
            self.assertEqual(len(found), name == "verbena-nccl-default", f"{name}: {found}")

    def test_pages_and_completions_of_every_tool(self):
        usr = self.root / "verbena/usr"
        for tool in sorted(path.name for path in (usr / "bin").iterdir()):
            page = stage.run("man", "-l", usr / f"share/man/man1/{tool}.1.gz", environment={"MANPAGER": "cat"})
            for part in ("NAME", "SYNOPSIS", "OPTIONS", "--version"):
                self.assertIn(part, page, tool)
            self.assertNotIn("/build/", page)
            self.assertTrue((usr / f"share/zsh/vendor-completions/_{tool}").exists())
        completions = usr / "share/bash-completion/completions/verbena-perf"

        def complete(*words):
            script = (f". {completions}; COMP_WORDS=(verbena-perf {' '.join(words)}); COMP_CWORD={len(words)};"
                      "_verbena_perf; echo ${COMPREPLY[*]}")
            return stage.run("bash", "-c", script).split()

        self.assertEqual(complete("--mo"), ["--mode"])
        self.assertEqual(complete("--mode", "lat"), ["latency"])
        self.assertEqual(complete("--mode", "=", "b"), ["bandwidth", "both"])
        self.assertEqual(complete("--plugin", "x"), [])

    def test_what_they_ask_for(self):
        wanted = self.get_field("verbena", "Depends")
        self.assertIn("libc6 (>= ", wanted)
        for name in NAMES:
            self.assertNotRegex(self.get_field(name, "Depends"), "(?i)cuda|nvidia|nccl[0-9]")
        # Found at run time, so nothing that dpkg-shlibdeps sees.
        self.assertNotIn("libibverbs", wanted)
        self.assertIn("libibverbs1", self.get_field("verbena", "Recommends"))
        version = self.get_field("verbena", "Version")
        self.assertEqual(self.get_field("verbena-nccl-default", "Depends"), f"verbena (= {version})")

    @unittest.skipIf(stage.find_missing("lintian"), "no lintian")
    def test_lintian(self):
        done = subprocess.run(["lintian", "--allow-root", "--fail-on", "error,warning", *self.packages.values()], text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=300)
        self.assertEqual(done.returncode, 0, done.stdout)


if __name__ == "__main__":
    stage.leave_if_missing("cpack", "dpkg-deb", "dpkg-shlibdeps", "man", "help2man")
    unittest.main()
