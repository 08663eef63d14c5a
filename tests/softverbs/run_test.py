#!/usr/bin/env python3
"""softverbs-run: what the program sees, and what it does not change.

Usage: run_test.py SOFTVERBS_RUN LIBRARY. Ends with 77 where mount namespaces are not permitted.
"""
import glob
import os
import subprocess
import sys
import unittest

SKIPPED = 77
TOOL, LIBRARY = sys.argv[1], os.path.realpath(sys.argv[2])
LIST = "import glob; print(sorted(glob.glob({!r})))"


def run(*command, **settings):
    environment = {**os.environ, **settings}
    return subprocess.run([TOOL, *command], capture_output=True, text=True, env=environment, stdin=subprocess.DEVNULL, timeout=60, check=False)


def run_python(program, **settings):
    done = run(sys.executable, "-c", program, **settings)
    if done.returncode != 0:
        raise AssertionError(done.stderr)
    return done.stdout.strip()


class SoftverbsRunTest(unittest.TestCase):
    def test_the_program_has_the_library(self):
        self.assertIn(LIBRARY, run_python("print(open('/proc/self/maps').read())"))
        self.assertEqual(run_python("import ctypes; ctypes.CDLL('libibverbs.so.1').ibv_fork_init; print('found')"), "found")

    def test_what_is_preloaded_and_searched_stays(self):
        said = run_python("import os; print(os.environ['LD_LIBRARY_PATH'], os.environ['LD_PRELOAD'])", LD_LIBRARY_PATH="/some/place",
                          LD_PRELOAD="libm.so.6")
        self.assertEqual(said, f"{os.path.dirname(LIBRARY)}:/some/place {LIBRARY}:libm.so.6")

    def test_there_is_a_node_for_each_device(self):
        program = "import os; print([os.access(f'/dev/infiniband/uverbs{i}', os.R_OK | os.W_OK) for i in range(4)])"
        may_write = str(os.access("/dev/null", os.R_OK | os.W_OK))  # as it is what the nodes are
        self.assertEqual(run_python(program), f"[{may_write}, False, False, False]")
        self.assertEqual(run_python(program, SOFTVERBS_DEVICES="3"), f"[{may_write}, {may_write}, {may_write}, False]")

    def test_devices_are_in_sysfs(self):
        self.assertEqual(run_python(LIST.format("/sys/class/infiniband/*"), SOFTVERBS_DEVICES="2"),
                         "['/sys/class/infiniband/softverbs0', '/sys/class/infiniband/softverbs1']")
        self.assertEqual(run_python("print(open('/sys/class/infiniband/softverbs0/../../numa_node').read())"), "-1")

    def test_the_rest_of_the_machine_is_there(self):
        for pattern in ("/dev/*", "/dev/shm/*", "/sys/class/*", "/sys/class/net/*/mtu"):
            with self.subTest(pattern):
                here = glob.glob(pattern)
                there = eval(run_python(LIST.format(pattern)))  # pylint: disable=eval-used
                # Another program may have removed its files meanwhile.
                self.assertEqual({path for path in here if path not in there and os.path.lexists(path)}, set())
        self.assertEqual(run_python("import os; print(os.getuid(), os.getgid())"), f"{os.getuid()} {os.getgid()}")

    def test_nothing_outside_changes(self):
        before = [os.path.exists(path) for path in ("/dev/infiniband", "/sys/class/infiniband", "/dev/infiniband/uverbs0")]
        run_python("open('/dev/infiniband/more', 'w').close()")
        after = [os.path.exists(path) for path in ("/dev/infiniband", "/sys/class/infiniband", "/dev/infiniband/uverbs0")]
        self.assertEqual(before, after)
        self.assertFalse(os.path.exists("/dev/infiniband/more"))

    @unittest.skipIf(os.getuid() != 0, "root alone loses a capability")
    def test_without_mounts(self):
        without = ["setpriv", "--bounding-set=-sys_admin", TOOL]
        refused = subprocess.run([*without, "true"], capture_output=True, text=True, check=False)
        self.assertEqual(refused.returncode, 125)
        self.assertIn("cannot create a mount namespace", refused.stderr)
        # Where the container has the nodes.
        self.assertIn("libibverbs", run(*without, "cat", "/proc/self/maps").stdout)

    def test_it_ends_as_the_program_does(self):
        self.assertEqual(run("--", "sh", "-c", "exit 7").returncode, 7)
        self.assertEqual(run("sh", "-c", "kill -9 $$").returncode, -9)

    def test_arguments_stay_as_they_are(self):
        self.assertEqual(run("printf", "%s|", "a b", "", "*", "--help").stdout, "a b||*|--help|")

    def test_wrong_use(self):
        self.assertEqual(run().returncode, 2)
        self.assertEqual(run("--what").returncode, 2)


if __name__ == "__main__":
    if run("true").returncode == 125:
        print("skipped:", run("true").stderr)
        sys.exit(SKIPPED)
    unittest.main(argv=sys.argv[:1])
