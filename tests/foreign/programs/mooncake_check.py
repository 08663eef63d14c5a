#!/usr/bin/env python3
"""Mooncake's transfer engine (wheel mooncake-transfer-engine-non-cuda) between two processes over its RDMA transport: reads and a
write, every byte compared.

usage: mooncake_check.py
"""
import ctypes
import os
import subprocess
import sys

import mooncake.engine

LENGTH = 2 << 20
READS = 4


def open_engine():
    engine = mooncake.engine.TransferEngine()
    if engine.initialize("127.0.0.1", "P2PHANDSHAKE", "rdma", "") != 0:
        sys.exit("the engine cannot be initialised")
    return engine


def be_initiator(target, remote):
    engine = open_engine()
    memory = engine.allocate_managed_buffer(LENGTH)
    wrong = 0
    for _ in range(READS):
        ctypes.memset(memory, 0, LENGTH)
        failed = engine.transfer_sync_read(target, memory, remote, LENGTH) != 0
        wrong += failed or ctypes.string_at(memory, LENGTH) != b"\x5a" * LENGTH
    ctypes.memset(memory, 0x77, LENGTH)
    wrong += engine.transfer_sync_write(target, memory, remote, LENGTH) != 0
    return wrong


def main():
    if len(sys.argv) == 3:
        os._exit(1 if be_initiator(sys.argv[1], int(sys.argv[2])) else 0)
    engine = open_engine()
    memory = engine.allocate_managed_buffer(LENGTH)
    ctypes.memset(memory, 0x5A, LENGTH)
    address = f"127.0.0.1:{engine.get_rpc_port()}"
    status = subprocess.run([sys.executable, __file__, address, str(memory)], timeout=120, check=False).returncode
    wrong = status != 0 or ctypes.string_at(memory, LENGTH) != b"\x77" * LENGTH
    print(f"{int(wrong)} wrong", flush=True)
    os._exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
