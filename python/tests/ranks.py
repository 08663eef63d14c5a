"""Runs ranks as processes: the library finds out about a machine once a process."""
import contextlib
import multiprocessing
import multiprocessing.queues
import os
import queue
import random
import socket
import traceback
from collections.abc import Callable
from typing import Any

LIMIT_S = 90


def run_ranks(count: int, body: Callable[..., Any], *arguments: Any) -> list[Any]:
    """What body(rank, *arguments) returned on each of `count` ranks that find each other by the environment."""
    spawn = multiprocessing.get_context("spawn")
    answers = spawn.Queue()
    port = _find_free_port()
    ranks = [spawn.Process(target=_run_rank, args=(rank, count, port, answers, body, arguments)) for rank in range(count)]
    for process in ranks:
        process.start()
    try:
        told = dict(_take(answers) for _ in range(count))
    finally:
        for process in ranks:
            process.join(5)
            process.kill()
    failures = [f"rank {rank}: {answer}" for rank, (is_right, answer) in sorted(told.items()) if not is_right]
    assert not failures, "\n".join(failures)
    return [told[rank][1] for rank in range(count)]


def _take(answers: Any) -> Any:
    try:
        return answers.get(timeout=LIMIT_S)
    except queue.Empty:
        raise AssertionError(f"a rank did not answer within {LIMIT_S} s") from None


def _run_rank(rank: int, count: int, port: int, answers: Any, body: Callable[..., Any], arguments: Any) -> None:
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(count), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    os.environ["VERBENA_BOOTSTRAP_TIMEOUT_MS"] = str(LIMIT_S * 1000 // 2)
    try:
        answers.put((rank, (True, body(rank, *arguments))))
    except BaseException:
        answers.put((rank, (False, traceback.format_exc())))


def _find_free_port() -> int:
    """One that no connection of another test is given meanwhile: below those that the system hands out."""
    for port in random.sample(range(20_000, 32_000), 100):
        with contextlib.suppress(OSError), socket.socket() as probe:
            probe.bind(("127.0.0.1", port))
            return port
    raise AssertionError("no port is free")
