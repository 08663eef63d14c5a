"""The runner of others' programs goes red when a program fails, says the wrong thing, hangs or uses another library."""

import os
import re
import shutil
import sys
import tempfile
import unittest

FOREIGN = os.path.join(os.path.dirname(os.path.realpath(__file__)), "..", "foreign")
sys.path.insert(0, FOREIGN)

import pyverbs_suite  # noqa: E402
from cases import Case  # noqa: E402
from pair import Failure, Network, find_missing, run_case  # noqa: E402

# A "server" that listens, and ends when a "client" came. Both load a library by the name of libibverbs.
SERVER = """import ctypes, socket, sys
port = int(sys.argv[1])
if "idle" not in sys.argv:
    ctypes.CDLL("libibverbs.so.1")
if "127.0.0.1" in sys.argv:
    socket.create_connection(("127.0.0.1", port)).close()
    print("client was here")
else:
    with socket.create_server(("127.0.0.1", port)) as server:
        server.accept()
"""
LOADS = f"{sys.executable} -c \"import ctypes; ctypes.CDLL('libibverbs.so.1'); print('softverbs0')\""


def find_some_library():
    """Any that the dynamic linker initialises."""
    with open("/proc/self/maps", encoding="utf-8") as maps:
        return next(path for path in (line.split()[-1] for line in maps) if re.search(r"/lib(z|c|expat|lzma)[-.][^/]*so", path))


class RunCaseTest(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        library_folder = os.path.join(self.folder.name, "build", "lib", "softverbs")
        os.makedirs(library_folder)
        shutil.copy(find_some_library(), os.path.join(library_folder, "libibverbs.so.1"))

    def run_one(self, command, **more):
        run_case(Case("test", command, **{"limit_s": 60, **more}), os.path.join(self.folder.name, "build"), self.folder.name)

    def expect_failure(self, text, command, **more):
        with self.assertRaisesRegex(Failure, text):
            self.run_one(command, **more)

    def write_server(self):
        path = os.path.join(self.folder.name, "server.py")
        with open(path, "w", encoding="ascii") as script:
            script.write(SERVER)
        return f"{sys.executable} {path} {{port}}"

    def test_passes(self):
        self.run_one(LOADS, expect="softverbs0")

    def test_exit_status(self):
        self.expect_failure("exit status 1", "false")

    def test_output(self):
        self.expect_failure("no 'softverbs1'", LOADS, expect="softverbs1")

    def test_hang(self):
        self.expect_failure("did not end in time", "sleep 60", limit_s=1)

    def test_what_a_hanging_program_has_started_ends_too(self):
        self.expect_failure("did not end in time", "sh -c 'echo $$ >{folder}/../pid; sleep 60 & wait'", limit_s=1)
        with open(os.path.join(self.folder.name, "pid"), encoding="ascii") as file:
            self.assertFalse(os.path.exists(f"/proc/{file.read().strip()}"))

    def test_does_not_build(self):
        self.expect_failure("does not build", LOADS, build="sh -c 'echo why >&2; false'")

    def test_builds(self):
        load_and_run = "import ctypes; ctypes.CDLL('libibverbs.so.1'); exec(open('made.py').read())"
        self.run_one(f'{sys.executable} -c "{load_and_run}"', build="sh -c 'echo \"print(17)\" >made.py'", expect="17")

    def test_server_that_ends_early(self):
        self.expect_failure("ended early with 1", "false", client="127.0.0.1")

    def test_without_the_library(self):
        self.expect_failure("0 processes have loaded", "echo softverbs0")

    def test_client_without_the_library(self):
        self.expect_failure("1 processes have loaded", self.write_server(), client="127.0.0.1 idle")

    def test_too_few_processes_with_the_library(self):
        self.expect_failure("1 processes have loaded", LOADS, users=2)

    def test_pair_with_its_library(self):
        self.run_one(self.write_server(), client="127.0.0.1", expect="client was here")

    def test_what_is_missing(self):
        self.assertEqual(find_missing(Case("test", "", needs=("sh", "/bin/sh", f"{sys.executable}:os"))), "")
        self.assertEqual(find_missing(Case("test", "", needs=("sh", "no-such-program"))), "no-such-program")
        self.assertEqual(find_missing(Case("test", "", needs=("/no/such/file",))), "/no/such/file")
        self.assertEqual(find_missing(Case("test", "", needs=(f"{sys.executable}:no_such_module",))), "no_such_module")
        self.assertEqual(find_missing(Case("test", "", needs=("/no/python:os",))), "os")


class PyverbsListTest(unittest.TestCase):
    def count(self, outcomes, listed):
        real = pyverbs_suite.run_tests, pyverbs_suite.read_list
        self.addCleanup(lambda: setattr(pyverbs_suite, "run_tests", real[0]))
        self.addCleanup(lambda: setattr(pyverbs_suite, "read_list", real[1]))
        pyverbs_suite.run_tests = lambda _: (outcomes, "")
        pyverbs_suite.read_list = lambda: listed
        return pyverbs_suite.run("/nowhere")

    def test_counts(self):
        outcomes = {"a": ("ok", ""), "b": ("skip", "no card"), "c": ("failed", "why")}
        self.assertEqual(self.count(outcomes, {"a"}), (1, 0, 2))

    def test_dropped(self):
        self.assertEqual(self.count({"a": ("ok", ""), "b": ("skip", "")}, {"a", "b"}), (1, 1, 0))

    def test_crashed(self):
        self.assertEqual(self.count({"a": ("ok", ""), "b": ("began", "")}, {"a", "b", "c"}), (1, 2, 0))

    def test_list_is_sorted(self):
        with open(pyverbs_suite.LIST, encoding="utf-8") as lines:
            tests = lines.read().split()
        self.assertEqual(tests, sorted(set(tests)))


if __name__ == "__main__":
    try:
        Network().close()
    except Failure as problem:
        print(f"skipped: {problem}")
        sys.exit(77)
    unittest.main()
