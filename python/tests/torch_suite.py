"""Runs PyTorch's own tests of torch.distributed with a given backend on emulated GPUs, and prints a line for each test. Run this program by
hand.

usage: torch_suite.py BACKEND [unittest's arguments]      BACKEND: verbena, or gloo to compare
The tests are read from the installed PyTorch; they need the package expecttest. The environment is that of ctest's python.c10d.
Tests that PyTorch keeps for backends by name are those of Gloo.
"""
import multiprocessing
import os
import sys
import tempfile
import unittest

os.environ["BACKEND"] = "gloo"  # for the decorators
os.environ.setdefault("WORLD_SIZE", "4")
os.environ.setdefault("TEMP_DIR", tempfile.gettempdir())
os.environ.setdefault("DISTRIBUTED_TESTS_DEFAULT_TIMEOUT", "60")
os.environ["MASTER_ADDR"] = "127.0.0.1"

import torch  # noqa: E402
from torch.testing._internal.distributed import distributed_test  # noqa: E402 (it reads the environment)


BACKEND = sys.argv[1]


class DistributedSuite(distributed_test.TestDistBackend, distributed_test.DistributedTest._DistTestBase):
    def setUp(self):
        super().setUp()
        self._start_processes(multiprocessing.get_context("fork").Process)  # not spawn: each test would import PyTorch anew

    @classmethod
    def _run(cls, rank, test_name, file_name, pipe, **arguments):
        if BACKEND == "verbena":
            import driver
            import verbena.c10d
            driver.use_gpu(rank)
            verbena.c10d.register(["cpu"], blocks=2)
            init = torch.distributed.init_process_group
            torch.distributed.init_process_group = lambda *given, **named: init(*given, **named | {"backend": BACKEND})
        super()._run(rank, test_name, file_name, pipe, **arguments)


class _Lines(unittest.TextTestResult):
    """One line a test."""

    def _tell(self, test, outcome, why=""):
        print(f"{outcome:<8}{test.id().rsplit('.', 1)[-1]}{'  ' + ' '.join(str(why).split())[-300:] if why else ''}", flush=True)

    def addSuccess(self, test):
        super().addSuccess(test)
        self._tell(test, "passed")

    def addSkip(self, test, reason):
        super().addSkip(test, reason)
        self._tell(test, "skipped", reason)

    def addFailure(self, test, error):
        super().addFailure(test, error)
        self._tell(test, "failed", error[1])

    def addError(self, test, error):
        super().addError(test, error)
        self._tell(test, "failed", error[1])


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[2:]], testRunner=unittest.TextTestRunner(resultclass=_Lines, verbosity=0))
