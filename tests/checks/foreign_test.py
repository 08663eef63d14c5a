"""The runner of others' programs goes red when a program fails, says the wrong thing, hangs or uses another library."""

import os
import sys
import tempfile
import unittest

FOREIGN = os.path.join(os.path.dirname(os.path.realpath(__file__)), "..", "foreign")
sys.path.insert(0, FOREIGN)

import pyverbs_suite  # noqa: E402
from cases import Case  # noqa: E402
from pair import Failure, Network, run_case  # noqa: E402

# A "server" that listens, and ends when a "client" came. Neither knows an RDMA library.
SERVER = """import socket, sys
port = int(sys.argv[1])
if len(sys.argv) > 2:
    socket.create_connection((sys.argv[2], port)).close()
    print("client was here")
else:
    with socket.create_server(("127.0.0.1", port)) as server:
        server.accept()
"""


class RunCaseTest(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)

    def run_one(self, command, library_folder="/nowhere", **more):
        run_case(Case("test", command, **{"limit_s": 60, **more}), library_folder, self.folder.name)

    def expect_failure(self, text, command, **more):
        with self.assertRaisesRegex(Failure, text):
            self.run_one(command, **more)

    def write_server(self):
        path = os.path.join(self.folder.name, "server.py")
        with open(path, "w", encoding="ascii") as script:
            script.write(SERVER)
        return f"{sys.executable} {path} {{port}}"

    def test_passes(self):
        self.run_one("echo softverbs0", expect="softverbs0")

    def test_exit_status(self):
        self.expect_failure("exit status 1", "false")

    def test_output(self):
        self.expect_failure("no 'softverbs1'", "echo softverbs0", expect="softverbs1")

    def test_hang(self):
        self.expect_failure("did not end in time", "sleep 60", limit_s=1)

    def test_server_that_ends_early(self):
        self.expect_failure("ended early with 1", "false", client="127.0.0.1")

    def test_other_library(self):
        self.expect_failure("was not seen to use", self.write_server(), client="127.0.0.1")

    def test_pair_with_its_library(self):
        # The interpreter itself stands for the library: it is mapped in both.
        with tempfile.TemporaryDirectory() as library_folder:
            os.symlink(os.path.realpath(sys.executable), os.path.join(library_folder, "libibverbs.so.1"))
            self.run_one(self.write_server(), library_folder, client="127.0.0.1", expect="client was here")


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
