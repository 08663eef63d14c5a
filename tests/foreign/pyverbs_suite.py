"""rdma-core's own tests, in Python, over the software RDMA device: those of the list must pass.

They come from Debian's package python3-pyverbs and are unpacked for each run. Tests of the devices of one vendor
(test_mlx5*, test_efa*) are left out. Run as a program, this file runs the tests in an unpacked folder.
"""

import glob
import gzip
import os
import random
import shutil
import subprocess
import sys
import tempfile
import unittest

PYTHON = "/usr/bin/python3"  # the one that Debian's pyverbs is for
LIMIT_S = 600
HERE = os.path.dirname(os.path.realpath(__file__))
LIST = os.path.join(HERE, "pyverbs_passing.txt")
SHIPPED = "usr/share/doc/rdma-core/tests"
VENDORS = ("test_mlx5", "test_efa")


def is_there():
    return bool(glob.glob("/usr/lib/python3/dist-packages/pyverbs/device*.so"))


def unpack_package(folder):
    """From the package itself: systems without documentation leave the tests out when they install it."""
    subprocess.run(["apt-get", "-q", "download", "python3-pyverbs"], cwd=folder, check=True, timeout=120)
    (package,) = glob.glob(os.path.join(folder, "python3-pyverbs_*.deb"))
    subprocess.run(["dpkg-deb", "--extract", package, os.path.join(folder, "package")], check=True)
    return os.path.join(folder, "package", SHIPPED)


def unpack_tests(folder):
    source = os.path.join("/", SHIPPED)
    if not os.path.isdir(source):
        source = unpack_package(folder)
    tests = os.path.join(folder, "tests")
    os.mkdir(tests)
    for path in glob.glob(os.path.join(source, "*.py*")):
        name = os.path.basename(path).removesuffix(".gz")
        if name.startswith(VENDORS):
            continue
        opened = gzip.open(path, "rb") if path.endswith(".gz") else open(path, "rb")
        with opened as packed, open(os.path.join(tests, name), "wb") as unpacked:
            shutil.copyfileobj(packed, unpacked)
    return tests


def read_list():
    with open(LIST, encoding="utf-8") as lines:
        return {line.strip() for line in lines if line.strip()}


def run_tests(library_folder):
    """Returns {test: (outcome, detail)}, and what the run printed."""
    with tempfile.TemporaryDirectory() as folder:
        tests = unpack_tests(folder)
        results = os.path.join(folder, "results")
        environment = dict(os.environ, LD_LIBRARY_PATH=library_folder, SOFTVERBS_JOB=f"pyverbs-{os.getpid()}")
        command = [PYTHON, os.path.realpath(__file__), tests, results, "--dev", "softverbs0", "--port", "1", "--gid", "1"]
        with open(os.path.join(folder, "output"), "wb+") as output:
            try:
                subprocess.run(command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
                               env=environment, timeout=LIMIT_S, check=False)  # fmt: skip
            except subprocess.TimeoutExpired:
                output.write(b"\nstopped at the limit")
            output.seek(0)
            printed = output.read().decode(errors="replace")
        outcomes = {}
        if os.path.exists(results):
            with open(results, encoding="utf-8") as lines:
                for line in lines:
                    outcome, test, detail = line.rstrip("\n").split("\t")
                    outcomes[test] = (outcome, detail)
        return outcomes, printed


def run(library_folder):
    """Returns passed, failed, skipped. A test that is not in the list may fail without failing the run."""
    outcomes, printed = run_tests(library_folder)
    expected = read_list()
    passing = {test for test, (outcome, _) in outcomes.items() if outcome == "ok"}
    dropped = sorted(expected - passing)
    for test in dropped:
        outcome, detail = outcomes.get(test, ("did not run", ""))
        print(f"FAILED  pyverbs {test}: {outcome} {detail}")
    if dropped or not passing:
        print("        " + printed.replace("\n", "\n        "))
    for test in sorted(passing - expected):
        print(f"new     pyverbs {test} passes: add it to {os.path.relpath(LIST)}")
    others = {test: result for test, result in outcomes.items() if test not in expected and result[0] != "ok"}
    for test, (outcome, detail) in sorted(others.items()):
        print(f"{outcome:6}  pyverbs {test}: {detail}")
    print(f"pyverbs: {len(passing)} of {len(outcomes)} passed, {len(dropped)} of the list did not", flush=True)
    return len(passing), len(dropped), len(others)


class Recorder(unittest.TextTestResult):
    """Writes an outcome as soon as it is known, so that a crash costs only the test that crashed."""

    file = None

    def record(self, outcome, test, detail=""):
        print(outcome, test.id(), " ".join(detail.split())[:200], sep="\t", file=self.file, flush=True)

    def startTest(self, test):
        super().startTest(test)
        self.record("began", test)

    def addSuccess(self, test):
        super().addSuccess(test)
        self.record("ok", test)

    def addSkip(self, test, reason):
        super().addSkip(test, reason)
        self.record("skip", test, reason)

    def addFailure(self, test, err):
        super().addFailure(test, err)
        self.record("failed", test, str(err[1]))

    def addError(self, test, err):
        super().addError(test, err)
        self.record("error", test, str(err[1]))


def run_in_process(tests_folder, results):
    sys.path[:0] = [os.path.dirname(tests_folder), tests_folder]
    import tests  # noqa: E402 (theirs)
    from args_parser import parser

    parser.parse_args()
    random.seed(os.environ.get("PYVERBS_SEED", "1"))  # many of the tests choose their values by chance
    with open(results, "w", encoding="utf-8") as Recorder.file:
        suite = unittest.defaultTestLoader.loadTestsFromModule(tests)
        unittest.TextTestRunner(resultclass=Recorder, verbosity=2).run(suite)


if __name__ == "__main__":
    run_in_process(sys.argv[1], sys.argv[2])
