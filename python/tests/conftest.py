"""Configures pytest for tests whose ranks are separate processes. These processes import their functions from this folder."""
import pathlib
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
_config: list[pytest.Config] = []


def pytest_configure(config: pytest.Config) -> None:
    _config.append(config)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Prints a failure at once. pytest prints its own list at the end, but a later test may hang until ctest ends the run."""
    if report.failed:
        _config[0].pluginmanager.get_plugin("terminalreporter").write_line(f"\n{report.nodeid}\n{report.longreprtext}")
