#!/usr/bin/env python3
"""Two agents of NIXL (wheel nixl-cu12 or nixl-cu13), in processes of their own, over UCX's verbs transports: the initiator reads the
target's memory and writes it, descriptor by descriptor; every byte is compared.

usage: nixl_check.py [--gpu]     --gpu: GPU memory, the target's on the last GPU and the initiator's on the first
"""
import os
import subprocess
import sys
import tempfile
import time

import numpy

try:
    from nixl_cu12._api import nixl_agent, nixl_agent_config
except ImportError:
    from nixl_cu13._api import nixl_agent, nixl_agent_config

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


class HostMemory:
    kind, device = "DRAM", 0

    def __init__(self):
        self.bytes = numpy.zeros(LENGTH, dtype=numpy.uint8)
        self.address = self.bytes.ctypes.data

    def fill(self, values):
        self.bytes[:] = values

    def count_wrong(self, expected):
        return int((self.bytes != expected).sum())


class GpuMemory:
    kind = "VRAM"

    def __init__(self, device):
        import torch

        torch.cuda.set_device(device)
        self.device, self.torch = device, torch
        self.bytes = torch.zeros(LENGTH, dtype=torch.uint8, device="cuda")
        self.address = self.bytes.data_ptr()

    def fill(self, values):
        self.bytes.copy_(self.torch.from_numpy(numpy.broadcast_to(values, LENGTH).astype(numpy.uint8)))
        self.torch.cuda.synchronize()

    def count_wrong(self, expected):
        return int((self.bytes.cpu().numpy() != expected).sum())


def make_memory(name):
    if "--gpu" not in sys.argv:
        return HostMemory()
    import torch

    return GpuMemory(torch.cuda.device_count() - 1 if name == "target" else 0)


class Agent:
    def __init__(self, name, folder):
        self.memory = make_memory(name)
        self.agent = nixl_agent(name, nixl_agent_config(backends=["UCX"]))
        address, device, step = self.memory.address, self.memory.device, LENGTH // PIECES
        self.agent.register_memory([(address, LENGTH, device, "")], self.memory.kind)
        self.pieces = self.agent.get_xfer_descs([(address + i * step, step, device) for i in range(PIECES)], self.memory.kind)
        publish(f"{folder}/{name}.agent", self.agent.get_agent_metadata())


def be_target(folder):
    one = Agent("target", folder)
    one.memory.fill(PATTERN)
    publish(f"{folder}/pieces", one.agent.get_serialized_descs(one.pieces))
    one.agent.add_remote_agent(await_file(f"{folder}/initiator.agent"))
    deadline = time.monotonic() + LIMIT_S
    while not any(WRITTEN in text for texts in one.agent.get_new_notifs().values() for text in texts):
        if time.monotonic() > deadline:
            sys.exit("nobody has written")
        time.sleep(0.005)
    wrong = one.memory.count_wrong(PATTERN ^ 0xFF)
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
        one.memory.fill(0)
        transfer("READ", b"read")
        wrong += one.memory.count_wrong(PATTERN)
    one.memory.fill(PATTERN ^ 0xFF)
    transfer("WRITE", WRITTEN)
    await_file(f"{folder}/done")
    print(f"read: {wrong} wrong", flush=True)
    return wrong == 0


def main():
    if len(sys.argv) > 2:
        is_right = (be_target if sys.argv[1] == "target" else be_initiator)(sys.argv[2])
        os._exit(0 if is_right else 1)  # the wheel's own end takes seconds
    with tempfile.TemporaryDirectory() as folder:
        processes = [subprocess.Popen([sys.executable, __file__, role, folder, *sys.argv[1:]]) for role in ("target", "initiator")]
        sys.exit(any([process.wait(timeout=2 * LIMIT_S) for process in processes]))


if __name__ == "__main__":
    main()
