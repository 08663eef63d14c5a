"""Runs one case: starts its processes, proves that they use our library, and bounds their time."""

import os
import re
import shlex
import subprocess
import tempfile
import time

from cases import Case

# UCX needs a character device, but does not open it; it finds one in a private /dev.
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


# These programs want to be told a port. Any is free in a network namespace of one's own.
PORT = 18515


class Network:
    """A network namespace with a loopback device, for the processes of one case. Raises Failure where it may not be made."""

    def __init__(self):
        is_root = os.geteuid() == 0
        self.holder = subprocess.Popen(
            ["unshare", *([] if is_root else ["--map-root-user"]), "--net", "sh", "-c", "ip link set lo up && echo up && exec sleep 900"],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=dict(os.environ, LC_ALL="C"),
        )  # fmt: skip
        self.enter = ["nsenter", f"--target={self.holder.pid}", *([] if is_root else ["--user", "--preserve-credentials"]), "--net"]
        said = self.holder.stdout.readline().decode(errors="replace")
        if said != "up\n":
            self.close()
            raise Failure(f"no network namespace: {said.strip()}")

    def is_listened_to(self):
        wanted, listen = f"{PORT:04X}", "0A"
        for table in ("tcp", "tcp6"):
            with open(f"/proc/{self.holder.pid}/net/{table}", encoding="ascii") as lines:
                for fields in (line.split() for line in lines):
                    if fields[1].endswith(":" + wanted) and fields[3] == listen:
                        return True
        return False

    def close(self):
        self.holder.kill()
        self.holder.wait()
        self.holder.stdout.close()


class Process:
    def __init__(self, command, case, folder, environment, network):
        self.command = command
        self.network = network
        arguments = shlex.split(command)
        if case.private_dev:
            mounts = tempfile.mkdtemp(dir=folder)
            own = ["--map-root-user"] if os.geteuid() != 0 else []
            arguments = ["unshare", *own, "--mount", "sh", "-c", PRIVATE_DEV, mounts, *arguments]
        self.output = tempfile.TemporaryFile(dir=folder)
        self.process = subprocess.Popen(
            [*network.enter, *arguments], stdin=subprocess.DEVNULL, stdout=self.output, stderr=subprocess.STDOUT, env=environment
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

    def wait_until_listening(self, deadline):
        while not self.network.is_listened_to():
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
    command = case.command.format(port=PORT)
    network = Network()
    started = []
    try:
        started.append(Process(command, case, folder, environment, network))
        if case.client:
            started[0].wait_until_listening(deadline)
            # Some programs load the library only at a connection, others exit milliseconds after one.
            is_seen = started[0].is_using(library)
            started.append(Process(f"{command} {case.client}", case, folder, environment, network))
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
        network.close()
