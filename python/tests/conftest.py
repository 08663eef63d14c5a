"""Ranks are processes of their own that import their functions from here."""
import pathlib
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
_config: list[pytest.Config] = []


def pytest_configure(config: pytest.Config) -> None:
    _config.append(config)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Prints a failure at once, too: a test behind it may hang until ctest ends the run, and pytest's own list comes last."""
    if report.failed:
        _config[0].pluginmanager.get_plugin("terminalreporter").write_line(f"\n{report.nodeid}\n{report.longreprtext}")
