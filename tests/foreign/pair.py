"""Runs one case: builds its program, starts its processes, bounds their time, and proves that they use our library."""

import glob
import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import tempfile
import time

from cases import PORT, Case

HERE = os.path.dirname(os.path.realpath(__file__))
BUILD_LIMIT_S = 120
# Where tools/setup puts what only a package index has; a Python of its own.
PYTHON = os.path.join(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "verbena", "foreign", "bin", "python")


class Failure(Exception):
    pass


def find_missing(case):
    """What the case needs and this machine has not: a program, a file, or a Python module, as python:module."""
    for need in case.needs:
        python, colon, module = need.format(python=PYTHON).partition(":")
        if colon:
            found = has_module(python, module)
        else:
            found = os.path.exists(need) if need.startswith("/") else shutil.which(need)
        if not found:
            return module or need
    return ""


def has_module(python, module):
    if not os.path.exists(python):
        return False
    if os.path.realpath(python) == os.path.realpath(os.sys.executable):
        return importlib.util.find_spec(module) is not None
    return subprocess.run([python, "-c", f"import {module}"], capture_output=True, check=False).returncode == 0


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
    def __init__(self, command, folder, environment, network):
        self.command, self.network = command, network
        self.output = tempfile.TemporaryFile(dir=folder)
        self.process = subprocess.Popen(
            [*network.enter, *shlex.split(command)], cwd=folder, stdin=subprocess.DEVNULL, stdout=self.output, stderr=subprocess.STDOUT,
            env=environment, start_new_session=True,
        )  # fmt: skip

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

    def stop(self):
        """Ends it with what it has started."""
        try:
            os.killpg(self.process.pid, 9)
        except ProcessLookupError:
            pass
        self.process.wait()
        self.output.close()


def build(case, folder, network):
    if not case.build:
        return
    command = [*network.enter, *shlex.split(fill(case.build, folder))]
    built = subprocess.run(command, cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, timeout=BUILD_LIMIT_S, check=False)
    if built.returncode != 0:
        raise Failure(f"it does not build: {case.build}\n{built.stderr.decode(errors='replace')}")


def fill(text, folder, build_folder=""):
    return text.format(port=PORT, folder=folder, programs=os.path.join(HERE, "programs"), python=PYTHON, bin=os.path.join(build_folder, "bin"))


def count_users(library, notes):
    """Processes that the dynamic linker says have loaded the library: even those that lived for a millisecond, or loaded it late."""
    users = 0
    for path in glob.glob(notes + ".*"):
        with open(path, encoding="utf-8", errors="replace") as lines:
            users += any("calling init: " in line and os.path.realpath(line.split("calling init: ")[1].strip()) == library for line in lines)
    return users


def run_case(case: Case, build_folder, folder):
    """Raises Failure. `folder` is one for temporary files."""
    folder = tempfile.mkdtemp(dir=folder)
    library_folder = os.path.join(build_folder, "lib", "softverbs")
    notes = os.path.join(folder, "linker")
    environment = dict(
        os.environ, SOFTVERBS_JOB=f"{os.getpid()}-{case.name}", LC_ALL="C", LD_DEBUG="libs", LD_DEBUG_OUTPUT=notes, **case.environment
    )
    command = fill(case.command, folder, build_folder)
    if case.is_wrapped:
        command = f"{build_folder}/bin/softverbs-run {command}"
    else:
        environment["LD_LIBRARY_PATH"] = library_folder
    deadline = time.monotonic() + case.limit_s
    network = Network()
    started = []
    try:
        build(case, folder, network)
        started.append(Process(command, folder, environment, network))
        if case.client:
            started[0].wait_until_listening(deadline)
            started.append(Process(f"{command} {case.client}", folder, environment, network))
        for process in reversed(started):
            process.wait(deadline)
        output = started[-1].read_output()
        if not re.search(case.expect, output):
            raise started[-1].explain(f"no {case.expect!r} in the output")
        library = os.path.realpath(os.path.join(library_folder, "libibverbs.so.1"))
        users, wanted = count_users(library, notes), case.users or len(started)
        if users < wanted:
            raise started[-1].explain(f"{users} processes have loaded {library}, not {wanted}")
    finally:
        for process in started:
            process.stop()
        network.close()
        shutil.rmtree(folder, ignore_errors=True)
