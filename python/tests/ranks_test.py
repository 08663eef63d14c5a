"""Tests that a rank that hangs, dies or does not end fails its test, and that the failure shows the number and the stacks of the rank
(ranks.py)."""
import os
import signal
import threading
import time

import pytest

from ranks import run_ranks


def _note(folder, rank):
    (folder / str(rank)).touch()


def _wait_for(folder, rank):
    while not (folder / str(rank)).exists():
        time.sleep(0.01)


def _hang_alone(rank, folder):
    _note(folder, rank)
    _wait_for(folder, 1 - rank)
    if rank == 1:
        threading.Event().wait()
    raise ValueError("of rank 0")


def _die_alone(rank, folder):
    _note(folder, rank)
    _wait_for(folder, 1 - rank)
    if rank == 1:
        os.kill(os.getpid(), signal.SIGSEGV)
    _wait_for(folder, "nobody")


def _stay_after_the_answer(rank, folder):
    def stay():
        threading.main_thread().join()  # it has answered
        _note(folder, rank)
        _wait_for(folder, "nobody")

    if rank == 1:
        threading.Thread(target=stay).start()
    else:
        _wait_for(folder, 1)
        raise ValueError("of rank 0")


@pytest.mark.parametrize("body, told", [
    (_hang_alone, "rank 0: .*ValueError: of rank 0.*rank 1: has not answered after .*in _hang_alone"),
    (_die_alone, "rank 0: has not answered after .*in _wait_for.*rank 1: ended by SIGSEGV without an answer.*in _die_alone"),
    (_stay_after_the_answer, "rank 0: .*ValueError: of rank 0.*rank 1: answered but has not ended after .*in stay")],
    ids=lambda each: getattr(each, "__name__", ""))
def test_who_stops_is_told_with_stacks(body, told, tmp_path, monkeypatch):
    monkeypatch.setattr("ranks.GRACE_S", 1)
    with pytest.raises(AssertionError, match=f"(?s){told}"):
        run_ranks(2, body, tmp_path)


def _answer_much(rank):
    return bytes(1 << 20)  # more than a pipe takes


def test_a_large_answer_arrives():
    assert run_ranks(2, _answer_much) == [bytes(1 << 20)] * 2
