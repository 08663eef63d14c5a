"""Runs ranks as processes: the library finds out about a machine once a process."""
import multiprocessing
import multiprocessing.queues
import os
import queue
import socket
import traceback
from collections.abc import Callable
from typing import Any

LIMIT_S = 300  # for what takes seconds alone, and minutes where others have the processors


def run_ranks(count: int, body: Callable[..., Any], *arguments: Any, limit_s: int = LIMIT_S) -> list[Any]:
    """What body(rank, *arguments) returned on each of `count` ranks that find each other by the environment."""
    with reserve_port() as holder:
        return _run_at(holder.getsockname()[1], count, body, arguments, limit_s)


def _run_at(port: int, count: int, body: Callable[..., Any], arguments: tuple[Any, ...], limit_s: int) -> list[Any]:
    # A fork of a process that has imported PyTorch, and nothing of ours: to import it takes each rank seconds.
    server = multiprocessing.get_context("forkserver")
    server.set_forkserver_preload([os.environ.get("RANKS_PRELOAD", "torch")])
    answers = server.Queue()
    call = (port, answers, dict(os.environ), body, arguments)
    ranks = [server.Process(target=_run_rank, args=(rank, count, *call)) for rank in range(count)]
    for process in ranks:
        process.start()
    try:
        told = dict(_take(answers, limit_s) for _ in range(count))
    finally:
        for process in ranks:
            process.join(5)
            process.kill()
    failures = [f"rank {rank}: {answer}" for rank, (is_right, answer) in sorted(told.items()) if not is_right]
    assert not failures, "\n".join(failures)
    return [told[rank][1] for rank in range(count)]


def _take(answers: Any, limit_s: int) -> Any:
    try:
        return answers.get(timeout=limit_s)
    except queue.Empty:
        raise AssertionError(f"a rank did not answer within {limit_s} s") from None


def _run_rank(rank: int, count: int, port: int, answers: Any, environment: dict[str, str], body: Callable[..., Any],
              arguments: Any) -> None:
    os.environ.clear()  # that of the time when the server was started
    os.environ.update(environment)
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(count), MASTER_ADDR="127.0.0.1", VERBENA_BOOTSTRAP_PORT=str(port))
    os.environ["VERBENA_BOOTSTRAP_TIMEOUT_MS"] = str(LIMIT_S * 1000 // 2)
    try:
        answers.put((rank, (True, body(rank, *arguments))))
    except BaseException:
        answers.put((rank, (False, traceback.format_exc())))


def reserve_port() -> socket.socket:
    """A socket bound to a port that the kernel gives to no other process. It does not listen, so a rank can bind the port by number."""
    holder = socket.socket()
    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    holder.bind(("127.0.0.1", 0))
    return holder
