"""tools/jobs/run: what it makes of jobs that end, stop or have other numbers; some of its jobs without a GPU."""
import importlib.machinery
import importlib.util
import pathlib
import subprocess
import sys

import pytest

RUN = pathlib.Path(__file__).resolve().parents[3] / "tools/jobs/run"


@pytest.fixture(name="run")
def load_run():
    loader = importlib.machinery.SourceFileLoader("jobs_run", str(RUN))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("jobs_run", loader))
    loader.exec_module(module)
    return module


def _tell(*turns):
    return [{"job": "ddp", "turn": turn, "seconds": 1.0 + turn, "numbers": numbers} for turn, numbers in enumerate(turns)]


@pytest.mark.parametrize("begun, told, text, right", [
    (2, _tell([1.0, 2.0], [1.0, 2.0]), "2 of 2, same, 1.5 s", True),
    (2, _tell([1.0, 2.0]), "1 of 2, STOPS", False),
    (2, _tell([1.0, 2.0], [1.0, 2.0000001]), "2 of 2, OTHER NUMBERS, 1.5 s", False),
    (1, _tell([1.0]), "1 of 1, OTHER NUMBERS, 1.0 s", False),
    (0, [], "not reached", False)])
def test_cells(run, begun, told, text, right):
    assert run.judge("ddp", [("ddp", str(turn)) for turn in range(begun)], told, [1.0, 2.0], 0.0) == (text, right)


def test_a_job_that_the_time_for_all_ended_does_not_count_as_stopped(run):
    assert run.judge("ddp", [("ddp", "0"), ("ddp", "1")], _tell([1.0]), [1.0], 0.0, True) == ("1 of 2, out of time", False)


def test_sums_of_many_ranks_may_round_otherwise(run):
    assert run.judge("ddp", [("ddp", "0")], _tell([1.0, 2.0000001]), [1.0, 2.0], 1e-4)[1]
    assert not run.judge("ddp", [("ddp", "0")], _tell([1.0, 2.1]), [1.0, 2.0], 1e-4)[1]


def _start(out, *arguments):
    """Jobs without a GPU do not load the library."""
    library = out / "build/lib/libnccl-net.so"
    library.parent.mkdir(parents=True, exist_ok=True)
    library.touch()
    return _run(out, out / "build", "--settings", "socket,connected", "--limit", "100", *arguments)


def _run(out, build, *arguments):
    done = subprocess.run([sys.executable, RUN, build, out, *arguments], capture_output=True, text=True, timeout=250, check=False)
    return done.returncode, done.stdout + done.stderr


def test_a_wrong_build_folder_is_refused(tmp_path):
    status, text = _run(tmp_path, tmp_path / "nothing", "objects")
    assert status == 1 and "nothing/lib/libnccl-net.so does not exist" in text, text


def test_ranks_that_crash_at_once_are_told(tmp_path, monkeypatch):
    (tmp_path / "torch.py").write_text("raise ImportError('no torch here')\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    status, text = _run(tmp_path, tmp_path, "--settings", "socket")
    assert status == 1 and "no job began" in text and "no torch here" in text, text


def test_jobs_run_and_are_compared(tmp_path):
    status, text = _start(tmp_path, "--ranks", "3", "--repeat", "2", "groups", "point_to_point", "objects", "all_to_all_uneven")
    assert status == 0, text
    assert text.count("2 of 2, same") == 2 * 4, text  # as lines, and in the table
    assert "the jobs ran over gloo" in text, text


def test_a_job_that_fails_is_told(tmp_path):
    status, text = _start(tmp_path, "objects", "no_such_job")
    assert status == 1 and "objects           1 of 1, same" in text and "no_such_job       0 of 1, STOPS" in text, text
    assert "KeyError: 'no_such_job'" in (tmp_path / "connected" / "1.txt").read_text(encoding="utf-8")
