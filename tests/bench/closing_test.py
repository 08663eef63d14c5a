"""The instructions for closing one of many connections are not more than for one of a few.

usage: python3 tests/bench/closing_test.py BUILD

Counts with callgrind, over softverbs: the calls that close, and the threads that watch the control sockets and serve
connections meanwhile. Skipped (77) without valgrind, or where a process may not have enough descriptors.
"""
import os
import pathlib
import re
import resource
import shutil
import subprocess
import sys
import tempfile

FEW, MANY = 200, 1600
MOST_GROWTH = 1.25  # 1.05 as it is
DESCRIPTORS = 2 * MANY + 100  # each end has a control socket
COUNTED = ["bench_close_send", "bench_close_receive", "verbena::transport::Service::run()",
           "verbena::base::EventLoop::Watcher::run()"]


def count_per_connection(build, connections):
    with tempfile.TemporaryDirectory() as folder:
        out = pathlib.Path(folder) / "out"
        command = ["valgrind", "--tool=callgrind", f"--callgrind-out-file={out}",
                   *(f"--toggle-collect={name}" for name in COUNTED),
                   str(build / "bin/connection_crowd"), str(build / "lib/libnccl-net.so"), str(connections)]
        environment = dict(os.environ, VERBENA_SOCKET_IFNAME="lo", VERBENA_IBVERBS_LIB="softverbs", SOFTVERBS_DEVICES="1")
        run = subprocess.run(command, env=environment, timeout=200, capture_output=True, text=True)
        if run.returncode != 0:
            sys.exit(f"{' '.join(command)} ended with {run.returncode}\n{run.stdout}{run.stderr}")
        profile = out.read_text()
    for name in COUNTED:  # one that is called otherwise now would silently not be counted
        if f" {name}\n" not in profile:
            sys.exit(f"{name} was not counted with {connections} connections")
    return int(re.search(r"^(?:summary|totals): (\d+)", profile, re.M).group(1)) / connections


def main():
    if shutil.which("valgrind") is None:
        print("skipped: no valgrind (tools/setup test)")
        sys.exit(77)
    if resource.getrlimit(resource.RLIMIT_NOFILE)[1] < DESCRIPTORS:
        print(f"skipped: the hard limit of descriptors (ulimit -Hn) is below {DESCRIPTORS}")
        sys.exit(77)
    few, many = (count_per_connection(pathlib.Path(sys.argv[1]), connections) for connections in (FEW, MANY))
    print(f"closing a connection: {few:.0f} instructions of {FEW}, {many:.0f} of {MANY}, {many / few:.2f} times as many")
    if many > few * MOST_GROWTH:
        sys.exit(f"more than {MOST_GROWTH} times: something walks over all connections at each close")


if __name__ == "__main__":
    main()
