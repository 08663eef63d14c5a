#!/usr/bin/env python3
"""Two agents of NIXL (wheel nixl-cu12), in processes of their own, over UCX's verbs transports: the initiator reads the target's memory
and writes it, descriptor by descriptor; every byte is compared.

usage: nixl_check.py
"""
import os
import subprocess
import sys
import tempfile
import time

import numpy
from nixl_cu12._api import nixl_agent, nixl_agent_config

LENGTH = 4 << 20
PIECES = 32
READS = 4
LIMIT_S = 60
WRITTEN = b"written"
PATTERN = (numpy.arange(LENGTH, dtype=numpy.uint32) * 7 + 3).astype(numpy.uint8)


def publish(path, data):
    with open(path + ".part", "wb") as file:
        file.write(data)
    os.rename(path + ".part", path)


def await_file(path):
    deadline = time.monotonic() + LIMIT_S
    while not os.path.exists(path):
        if time.monotonic() > deadline:
            sys.exit(f"{path} does not come")
        time.sleep(0.01)
    with open(path, "rb") as file:
        return file.read()


class Agent:
    def __init__(self, name, folder):
        self.agent = nixl_agent(name, nixl_agent_config(backends=["UCX"]))
        self.memory = numpy.zeros(LENGTH, dtype=numpy.uint8)
        address, step = self.memory.ctypes.data, LENGTH // PIECES
        self.agent.register_memory([(address, LENGTH, 0, "")], "DRAM")
        self.pieces = self.agent.get_xfer_descs([(address + i * step, step, 0) for i in range(PIECES)], "DRAM")
        publish(f"{folder}/{name}.agent", self.agent.get_agent_metadata())


def be_target(folder):
    one = Agent("target", folder)
    one.memory[:] = PATTERN
    publish(f"{folder}/pieces", one.agent.get_serialized_descs(one.pieces))
    one.agent.add_remote_agent(await_file(f"{folder}/initiator.agent"))
    deadline = time.monotonic() + LIMIT_S
    while not any(WRITTEN in text for texts in one.agent.get_new_notifs().values() for text in texts):
        if time.monotonic() > deadline:
            sys.exit("nobody has written")
        time.sleep(0.005)
    wrong = int((one.memory != PATTERN ^ 0xFF).sum())
    publish(f"{folder}/done", b"")
    print(f"written: {wrong} wrong", flush=True)
    return wrong == 0


def be_initiator(folder):
    one = Agent("initiator", folder)
    target = one.agent.add_remote_agent(await_file(f"{folder}/target.agent"))
    remote = one.agent.deserialize_descs(await_file(f"{folder}/pieces"))

    def transfer(operation, text):
        handle = one.agent.initialize_xfer(operation, one.pieces, remote, target, text)
        state, deadline = one.agent.transfer(handle), time.monotonic() + LIMIT_S
        while state not in ("DONE", "ERR") and time.monotonic() < deadline:
            state = one.agent.check_xfer_state(handle)
        one.agent.release_xfer_handle(handle)
        if state != "DONE":
            sys.exit(f"{operation}: {state}")

    wrong = 0
    for _ in range(READS):
        one.memory[:] = 0
        transfer("READ", b"read")
        wrong += int((one.memory != PATTERN).sum())
    one.memory[:] = PATTERN ^ 0xFF
    transfer("WRITE", WRITTEN)
    await_file(f"{folder}/done")
    print(f"read: {wrong} wrong", flush=True)
    return wrong == 0


def main():
    if len(sys.argv) == 3:
        is_right = (be_target if sys.argv[1] == "target" else be_initiator)(sys.argv[2])
        os._exit(0 if is_right else 1)  # the wheel's own end takes seconds
    with tempfile.TemporaryDirectory() as folder:
        processes = [subprocess.Popen([sys.executable, __file__, role, folder]) for role in ("target", "initiator")]
        sys.exit(any([process.wait(timeout=2 * LIMIT_S) for process in processes]))


if __name__ == "__main__":
    main()
