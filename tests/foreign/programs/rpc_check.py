#!/usr/bin/env python3
"""PyTorch's RPC between two processes over TensorPipe's ibv transport: tensors of many sizes, and 100 calls under way together.

usage: rpc_check.py PORT
"""
import os
import subprocess
import sys

import torch
from torch.distributed import rpc


def run_rank(rank):
    options = rpc.TensorPipeRpcBackendOptions(num_worker_threads=4, rpc_timeout=60, _transports=["ibv"], _channels=["basic"])
    rpc.init_rpc(f"worker{rank}", rank=rank, world_size=2, rpc_backend_options=options)
    wrong = 0
    if rank == 0:
        for count in (1, 1000, 250_000, 2_000_000):
            for _ in range(3):
                numbers = torch.randn(count)
                wrong += not torch.equal(rpc.rpc_sync("worker1", torch.mul, args=(numbers, 2.0)), numbers * 2)
        calls = [rpc.rpc_async("worker1", torch.add, args=(torch.full((1000,), float(i)), 1)) for i in range(100)]
        wrong += sum(not torch.equal(call.wait(), torch.full((1000,), i + 1.0)) for i, call in enumerate(calls))
        print(f"{wrong} wrong", flush=True)
    rpc.shutdown()
    return wrong


def main():
    if len(sys.argv) == 3:
        sys.exit(run_rank(int(sys.argv[2])))
    environment = dict(os.environ, MASTER_ADDR="127.0.0.1", MASTER_PORT=sys.argv[1], TP_SOCKET_IFNAME="lo", GLOO_SOCKET_IFNAME="lo",
                       OMP_NUM_THREADS="1")
    ranks = [subprocess.Popen([sys.executable, __file__, sys.argv[1], str(rank)], env=environment) for rank in range(2)]
    sys.exit(any([rank.wait(timeout=120) for rank in ranks]))


if __name__ == "__main__":
    main()
