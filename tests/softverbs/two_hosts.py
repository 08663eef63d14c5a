#!/usr/bin/env python3
"""verbena-perf between two hosts without RDMA: network namespaces with two cables, over softverbs' wire; by IPv6, where hosts
have no IPv4, and by IPv4.

Usage: two_hosts.py VERBENA_PERF PLUGIN SOFTVERBS_FOLDER. Ends with 77 where namespaces are not permitted.
"""
import json
import os
import signal
import subprocess
import sys
import tempfile
import time

SKIPPED = 77
RAILS = 2
MIN_RAIL_BYTES = 1 << 20  # of a run
MAX_RUNS = 5
LIMIT_S = 60  # of a run
END_LIMIT_S = 40  # after a peer was killed


def run(command):
    return subprocess.run(command.split(), check=True, capture_output=True, text=True)


# What an address of a rail of a host is, and how many bits of it all hosts have in common.
FAMILIES = {"IPv4": ("10.78.{rail}.{number}", 24), "IPv6": ("fd78:{rail}::{number}", 64)}


class Network:
    """Two namespaces, a virtual cable for each rail."""

    def __init__(self, family):
        self.family = family
        self.hosts = [f"verbena-{os.getpid()}-{host}" for host in "ab"]

    def __enter__(self):
        for host in self.hosts:
            run(f"ip netns add {host}")
            run(f"ip -n {host} link set lo up")
            if self.family != "IPv4":
                run(f"ip -n {host} addr del 127.0.0.1/8 dev lo")
        for rail in range(RAILS):
            run(f"ip -n {self.hosts[0]} link add rail{rail} type veth peer name rail{rail} netns {self.hosts[1]}")
            for number, host in enumerate(self.hosts):
                run(f"ip -n {host} link set rail{rail} up")
                nodad = "" if self.family == "IPv4" else "nodad"
                run(f"ip -n {host} addr add {self.address(number, rail)}/{FAMILIES[self.family][1]} dev rail{rail} {nodad}")
        return self

    def __exit__(self, *_):
        for host in self.hosts:
            subprocess.run(["ip", "netns", "del", host], capture_output=True, check=False)

    def count_bytes(self, rail):
        links = json.loads(run(f"ip -n {self.hosts[0]} -s -j link show rail{rail}").stdout)
        return links[0]["stats64"]["rx"]["bytes"]

    def address(self, host, rail):
        return FAMILIES[self.family][0].format(rail=rail, number=host + 1)


class Hosts:
    def __init__(self, network, perf, plugin, library_folder):
        self.network = network
        self.tool = [perf, "--plugin", plugin]
        self.folder = library_folder
        self.shared = tempfile.TemporaryDirectory()
        self.key = os.path.join(self.shared.name, "job.key")
        with open(os.open(self.key, os.O_WRONLY | os.O_CREAT, 0o600), "w", encoding="ascii") as file:
            file.write("of this test alone\n")

    def start(self, host, arguments):
        # Nothing but the addresses says that these are two hosts, unless their tables lie in two places.
        tables = os.path.join(self.shared.name, str(host))
        os.makedirs(tables, exist_ok=True)
        environment = dict(os.environ, LD_LIBRARY_PATH=self.folder, SOFTVERBS_NETDEVS="rail0,rail1", SOFTVERBS_DIR=tables,
                           VERBENA_JOB_KEY_FILE=self.key)
        command = ["ip", "netns", "exec", self.network.hosts[host], *self.tool, *arguments.split()]
        return subprocess.Popen(command, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                start_new_session=True)

    def start_both(self, workload):
        server = self.start(0, "--server --port 7471")
        told = server.stdout.readline()
        if "waiting for a client" not in told:
            raise AssertionError("the server says: " + told + finish(server)[1])
        return server, self.start(1, f"--client {self.network.address(0, 0)} --port 7471 {workload}")


def finish(process, limit_s=LIMIT_S):
    try:
        return process.returncode if process.poll() is not None else None, process.communicate(timeout=limit_s)[0]
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        return None, process.communicate()[0] + f"\nnot ended after {limit_s} s"


def expect_success(hosts, workload, words):
    before = [hosts.network.count_bytes(rail) for rail in range(RAILS)]
    # On a busy machine a rail may join so late that a short run has ended.
    for _ in range(MAX_RUNS):
        server, client = hosts.start_both(workload)
        output = finish(client)[1]
        served = finish(server)[1]
        print(f"== {workload}\n{output}")
        if client.returncode != 0 or server.returncode != 0:
            raise AssertionError(f"client {client.returncode}, server {server.returncode}:\n{output}\n{served}")
        for word in words:
            if word not in output:
                raise AssertionError(f"{workload}: '{word}' is missing in\n{output}")
        idle = [rail for rail in range(RAILS) if hosts.network.count_bytes(rail) - before[rail] < MIN_RAIL_BYTES]
        if not idle:
            return
    raise AssertionError(f"{workload}: rails {idle} carried nothing in {MAX_RUNS} runs")


def kill_workers(process):
    with open(f"/proc/{process.pid}/task/{process.pid}/children", encoding="ascii") as children:
        for child in children.read().split():
            os.kill(int(child), signal.SIGKILL)


def expect_end_after_kill(hosts, killed):
    both = hosts.start_both("--size 1m --iters 100000000")
    time.sleep(2)
    for process in both:
        if process.poll() is not None:
            raise AssertionError("ended before anybody was killed: " + finish(process)[1])
    kill_workers(both[killed])
    for process in both:
        output = finish(process, END_LIMIT_S)[1]
        print(f"== killed at host {killed}: {output.strip().splitlines()[-1:]}")
        if process.returncode in (0, None) or process.returncode < 0:
            raise AssertionError(f"ended with {process.returncode}:\n{output}")


def main():
    perf, plugin, folder = map(os.path.abspath, sys.argv[1:4])
    try:
        sizes = "--sizes 8:1m --factor 32 --iters 20"
        with Network("IPv6") as network:
            expect_success(Hosts(network, perf, plugin, folder), f"--rails {RAILS} {sizes} --csv -", ["direct"])
        with Network("IPv4") as network:
            hosts = Hosts(network, perf, plugin, folder)
            expect_success(hosts, f"--unpack 1 --threshold 1m --rails {RAILS} {sizes} --csv -", ["staged"])
            expect_success(hosts, f"--unpack 0 --rails {RAILS} {sizes} --csv -", ["direct"])
            for killed in (0, 1):
                expect_end_after_kill(hosts, killed)
    except (OSError, subprocess.CalledProcessError) as error:
        print(f"skipped: no network namespaces with virtual cables: {getattr(error, 'stderr', '') or error}")
        return SKIPPED
    return 0


if __name__ == "__main__":
    sys.exit(main())
