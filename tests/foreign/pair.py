"""Runs one case: starts its processes, proves that they use our library, and bounds their time."""

import os
import re
import shlex
import socket
import subprocess
import tempfile
import time

from cases import Case

# UCX wants a character device, which nobody opens, and finds it in a /dev of its own.
PRIVATE_DEV = """set -e
mkdir "$0/dev" "$0/infiniband"
mount --rbind /dev "$0/dev"
mount -t tmpfs none /dev
ln -s "$0"/dev/* /dev/
rm -rf /dev/infiniband
mkdir /dev/infiniband
ln -s "$0/dev/null" /dev/infiniband/uverbs0
exec "$@"
"""


class Failure(Exception):
    pass


def find_free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def is_listening(port):
    wanted, listen = f"{port:04X}", "0A"
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with open(table, encoding="ascii") as lines:
            for fields in (line.split() for line in lines):
                if fields[1].endswith(":" + wanted) and fields[3] == listen:
                    return True
    return False


class Process:
    def __init__(self, command, case, folder, environment):
        self.command = command
        arguments = shlex.split(command)
        if case.private_dev:
            mounts = tempfile.mkdtemp(dir=folder)
            own = ["--map-root-user"] if os.geteuid() != 0 else []
            arguments = ["unshare", *own, "--mount", "sh", "-c", PRIVATE_DEV, mounts, *arguments]
        self.output = tempfile.TemporaryFile(dir=folder)
        self.process = subprocess.Popen(
            arguments, stdin=subprocess.DEVNULL, stdout=self.output, stderr=subprocess.STDOUT, env=environment
        )

    def read_output(self):
        self.output.seek(0)
        return self.output.read().decode(errors="replace")

    def explain(self, problem):
        return Failure(f"{problem}: {self.command}\n{self.read_output()}")

    def wait(self, deadline):
        try:
            status = self.process.wait(max(0.1, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            raise self.explain("it did not end in time") from None
        if status != 0:
            raise self.explain(f"exit status {status}")

    def wait_until_listening(self, port, deadline):
        while not is_listening(port):
            if self.process.poll() is not None:
                raise self.explain(f"the server ended early with {self.process.returncode}")
            if time.monotonic() > deadline:
                raise self.explain("the server does not listen")
            time.sleep(0.02)

    def is_using(self, library):
        with open(f"/proc/{self.process.pid}/maps", encoding="utf-8") as maps:
            return library in maps.read()

    def wait_until_used(self, library, deadline):
        """A zombie has no maps: a program that ended without having been seen with the library fails."""
        while not self.is_using(library):
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise self.explain(f"it was not seen to use {library}")
            time.sleep(0.002)

    def stop(self):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        self.output.close()


def run_case(case: Case, library_folder, folder):
    """Raises Failure. `folder` is one for temporary files."""
    environment = dict(os.environ, LD_LIBRARY_PATH=library_folder, SOFTVERBS_JOB=f"{os.getpid()}-{case.name}", LC_ALL="C")
    library = os.path.realpath(os.path.join(library_folder, "libibverbs.so.1"))
    deadline = time.monotonic() + case.limit_s
    port = find_free_port()
    command = case.command.format(port=port)
    started = []
    try:
        started.append(Process(command, case, folder, environment))
        if case.client:
            started[0].wait_until_listening(port, deadline)
            # Some load it only when somebody calls; others have ended milliseconds after that.
            is_seen = started[0].is_using(library)
            started.append(Process(f"{command} {case.client}", case, folder, environment))
            if not is_seen:
                started[0].wait_until_used(library, deadline)
        for process in reversed(started):
            process.wait(deadline)
        output = started[-1].read_output()
        if not re.search(case.expect, output):
            raise started[-1].explain(f"no {case.expect!r} in the output")
    finally:
        for process in started:
            process.stop()
