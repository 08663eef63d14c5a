"""Runs each rank in a separate process, because the library detects the machine only once per process."""
import contextlib
import faulthandler
import functools
import inspect
import multiprocessing
import multiprocessing.connection
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import traceback
from collections.abc import Callable
from typing import Any

LIMIT_S = int(os.environ.get("RANKS_LIMIT_S", "300"))  # for what takes seconds alone, and minutes where others have the processors
GRACE_S = 15  # for the other ranks, once one has failed
STACKS = signal.SIGUSR1


def run_ranks(count: int, body: Callable[..., Any], *arguments: Any, limit_s: int = LIMIT_S) -> list[Any]:
    """Runs body(rank, *arguments) on `count` ranks that find each other through the environment, and returns the results of all ranks. If a
    rank dies, or has not ended within `limit_s`, the test fails and shows the stacks of all ranks that still run."""
    with reserve_port() as holder, tempfile.TemporaryDirectory() as folder:
        # A fork of a process that has imported PyTorch, and nothing of ours: to import it takes each rank seconds.
        server = multiprocessing.get_context("forkserver")
        server.set_forkserver_preload([os.environ.get("RANKS_PRELOAD", "torch")])
        call = (holder.getsockname()[1], dict(os.environ), body, arguments)
        ranks = []
        try:
            for rank in range(count):
                ranks.append(_Rank(server, pathlib.Path(folder, str(rank)), rank, count, call))
            failures = _wait(ranks, limit_s)
        finally:
            for one in ranks:
                one.process.kill()
    assert not failures, "\n".join(failures)
    return [one.answer for one in ranks]


def on_ranks(count: int | str, run: Callable[..., Any] = run_ranks, given: int = 1) -> Callable[[Callable[..., Any]], Callable[..., None]]:
    """Decorates a test that each of `count` ranks runs. run(count, test, ...) passes the first `given` arguments, such as the rank; pytest
    passes all other arguments. `count` may be the name of an argument that pytest passes."""
    def decorate(on_rank: Callable[..., Any]) -> Callable[..., None]:
        signature = inspect.signature(on_rank)
        own = list(signature.parameters)[given:]

        @functools.wraps(on_rank)
        def test(**named: Any) -> None:
            run(named[count] if isinstance(count, str) else count, on_rank, *[named[name] for name in own])
        test.__signature__ = signature.replace(parameters=[signature.parameters[name] for name in own])  # type: ignore[attr-defined]
        test.on_rank = on_rank  # type: ignore[attr-defined]
        on_rank.__qualname__ += ".on_rank"  # by which a rank's process finds it
        return test
    return decorate


class _Rank:
    """The process of a rank, the rank's answer, and the file that receives the stacks of the process."""

    def __init__(self, server: Any, stacks: pathlib.Path, rank: int, count: int, call: tuple[Any, ...]) -> None:
        self.rank, self.stacks = rank, stacks
        self.has_answer, self.answer, self.failure = False, None, ""
        self.pipe, end = server.Pipe(duplex=False)
        self.process = server.Process(target=_run_rank, args=(end, stacks, rank, count, *call))
        self.process.start()
        end.close()

    def take(self) -> bool:
        """Reads the parts of the answer that have arrived, and checks whether the process has ended. Returns True if the process runs."""
        runs = self.process.is_alive()  # asked first: behind its end no answer comes
        if not self.has_answer and not self.pipe.closed and self.pipe.poll():
            try:
                is_right, self.answer = self.pipe.recv()
                self.has_answer, self.failure = True, "" if is_right else self.answer
            except EOFError:
                self.pipe.close()  # its end follows
        if not runs and not self.has_answer:
            code = self.process.exitcode
            name = signal.Signals(-code).name if code and code < 0 else f"exit status {code}"
            self.failure = f"ended by {name} without an answer\n{self._read_stacks()}"
        return runs

    def list_handles(self) -> list[Any]:
        return [self.process.sentinel] + [self.pipe] * (not self.has_answer and not self.pipe.closed)

    def tell_stacks(self, why: str) -> None:
        native = _read_native_stacks(self.process.pid)  # first: a process that has not begun is ended by the signal
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.process.pid, STACKS)
        self.process.join(2)  # the signal's handler writes at once
        self.failure += f"{why}; its stacks:\n{self._read_stacks()}\n{native}"

    def _read_stacks(self) -> str:
        return self.stacks.read_text() if self.stacks.exists() else "(it had not begun)"


def _wait(ranks: list[_Rank], limit_s: float) -> list[str]:
    begin = time.monotonic()
    deadline = begin + limit_s
    running = list(ranks)
    while running:
        handles = [handle for one in running for handle in one.list_handles()]
        if not multiprocessing.connection.wait(handles, max(0, deadline - time.monotonic())):
            break
        running = [one for one in running if one.take()]
        if any(one.failure for one in ranks):
            deadline = min(deadline, time.monotonic() + GRACE_S)
    for one in running:
        state = "answered but has not ended" if one.has_answer else "has not answered"
        one.tell_stacks(f"{state} after {time.monotonic() - begin:.0f} s")
    return [f"rank {one.rank}: {one.failure}" for one in ranks if one.failure]


def _read_native_stacks(process: int) -> str:
    gdb = shutil.which("gdb")
    if gdb is None:
        return "(no native stacks: there is no gdb)"
    command = [gdb, "-nx", "-batch", "-p", str(process), "-ex", "thread apply all bt 15"]
    try:
        told = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=60,
                              check=False).stdout
    except subprocess.TimeoutExpired:
        return "(no native stacks: gdb did not end)"
    return "\n".join(line for line in told.splitlines() if line.startswith(("Thread", "#", "ptrace", "warning: ptrace")))


def _run_rank(end: Any, stacks: pathlib.Path, rank: int, count: int, port: int, environment: dict[str, str], body: Callable[..., Any],
              arguments: Any) -> None:
    file = stacks.open("w", encoding="utf-8")  # as long as the process is: it may hang behind its answer, too
    faulthandler.enable(file)
    faulthandler.register(STACKS, file)
    os.environ.clear()  # that of the time when the server was started
    os.environ.update(environment)
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(count), MASTER_ADDR="127.0.0.1", VERBENA_BOOTSTRAP_PORT=str(port))
    os.environ["VERBENA_BOOTSTRAP_TIMEOUT_MS"] = str(LIMIT_S * 1000 // 2)
    try:
        answer = (True, body(rank, *arguments))
    except BaseException:
        answer = (False, traceback.format_exc())
    end.send(answer)


def place_on_host(rank: int, size: int, hosts: int) -> None:
    """Makes this rank belong to one of several hosts, which are connected by softverbs. The hosts have consecutive ranks. Call this before
    the library is loaded."""
    if hosts > 1:
        os.environ.update(VERBENA_HOSTID=f"host-{rank * hosts // size}", VERBENA_IBVERBS_LIB="softverbs")


def reserve_port() -> socket.socket:
    """Returns a socket bound to a port that the kernel gives to no other process. The socket does not listen, so a rank can bind the same
    port by its number."""
    holder = socket.socket()
    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    holder.bind(("127.0.0.1", 0))
    return holder
