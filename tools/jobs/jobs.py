"""PyTorch jobs as users write them, with one process per GPU, started by tools/jobs/run. Each job creates a process group and
returns numbers (losses, sums) that rank 0 prints as one JSON line, so that two transports can be compared bit for bit.

Without a GPU the jobs that need none run over gloo on the CPU.
usage: jobs.py LIMIT_S REPEATS FOLDER JOB...      RANK, WORLD_SIZE in the environment
"""
import faulthandler
import json
import os
import pathlib
import sys
import time

import torch
import torch.distributed as dist
from torch import nn

JOBS = {}
RANK, SIZE = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
HAS_GPU = torch.cuda.is_available()
DEVICE = torch.device("cuda", RANK % torch.cuda.device_count()) if HAS_GPU else torch.device("cpu")


def job(needs_gpu):
    def add(function):
        if HAS_GPU or not needs_gpu:
            JOBS[function.__name__] = function
        return function
    return add


def train(model, step, count, rate=0.01):
    """Trains for `count` steps and returns the losses. step() computes a loss from the model's output on this rank's data."""
    optimizer = torch.optim.SGD(model.parameters(), rate)
    torch.manual_seed(100 + RANK)
    losses = []
    for _ in range(count):
        optimizer.zero_grad()
        loss = step(model)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def make_layers(count=8, width=1024):
    return nn.Sequential(*[nn.Linear(width, width) for _ in range(count)]).to(DEVICE)


def step_on(*shape):
    # The input is made on the host, in pageable memory, as in most first scripts.
    return lambda model: model(torch.randn(*shape).to(DEVICE)).square().mean()


@job(needs_gpu=False)
def ddp(_):
    from torch.nn.parallel import DistributedDataParallel
    return train(DistributedDataParallel(make_layers()), step_on(64, 1024), 60)


@job(needs_gpu=False)
def fsdp2(_):
    from torch.distributed.fsdp import fully_shard
    layers = [nn.TransformerEncoderLayer(512, 8, 2048, batch_first=True, dropout=0.0) for _ in range(4)]
    model = nn.Sequential(*layers).to(DEVICE)
    for layer in model:
        fully_shard(layer)
    fully_shard(model)
    return train(model, step_on(8, 64, 512), 20)


@job(needs_gpu=False)
def tensor_parallel(_):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
    model = nn.Sequential(nn.Linear(512, 2048), nn.ReLU(), nn.Linear(2048, 512)).to(DEVICE)
    parallelize_module(model, init_device_mesh(DEVICE.type, (SIZE,)), {"0": ColwiseParallel(), "2": RowwiseParallel()})

    def step(module):
        torch.manual_seed(7)  # each rank has the same input
        return module(torch.randn(64, 512).to(DEVICE)).square().mean()
    return train(model, step, 30)


@job(needs_gpu=False)
def pipeline(_):
    from torch.distributed.pipelining import PipelineStage, ScheduleGPipe
    stage = PipelineStage(make_layers(2, 512), RANK, SIZE, DEVICE)
    schedule = ScheduleGPipe(stage, n_microbatches=4, loss_fn=nn.functional.mse_loss)
    torch.manual_seed(3)
    told = []
    for _ in range(10):
        inputs, targets, losses = torch.randn(64, 512).to(DEVICE), torch.randn(64, 512).to(DEVICE), []
        first, last = RANK == 0, RANK == SIZE - 1
        schedule.step(*([inputs] if first else []), **({"target": targets, "losses": losses} if last else {}))
        told += [loss.item() for loss in losses]
    everyones = [None] * SIZE
    dist.all_gather_object(everyones, told)
    return everyones[-1]


@job(needs_gpu=False)
def all_to_all_uneven(_):
    sums = []
    for step in range(20):
        counts = [[(7 * source + 3 * target + step) % 5 * 1000 + source for target in range(SIZE)] for source in range(SIZE)]
        sent = torch.arange(sum(counts[RANK]), dtype=torch.float32).to(DEVICE) + RANK
        taken = torch.empty(sum(row[RANK] for row in counts), device=DEVICE)
        dist.all_to_all_single(taken, sent, [row[RANK] for row in counts], counts[RANK])
        sums.append(taken.double().sum().item())
    return sums


@job(needs_gpu=False)
def groups(_):
    """Runs collectives on three communicators at once: two of all ranks, and one of each rank's pair."""
    others = [dist.new_group(range(SIZE)), dist.new_group(range(SIZE))]
    pairs = [dist.new_group(range(first, min(first + 2, SIZE))) for first in range(0, SIZE, 2)]
    tensors = [torch.full((1 << 18,), float(RANK + 1), device=DEVICE) for _ in range(3)]
    sums = []
    for _ in range(10):
        works = [dist.all_reduce(one, group=group, async_op=True) for one, group in zip(tensors, [*others, pairs[RANK // 2]])]
        for work in works:
            work.wait()
        for one in tensors:
            one.fmod_(1000)
        sums.append(sum(one.double().sum().item() for one in tensors))
    return sums


@job(needs_gpu=False)
def point_to_point(_):
    right, left = (RANK + 1) % SIZE, (RANK - 1) % SIZE
    sums = []
    for elements in (1, 1000, 1 << 20):
        sent, taken = torch.full((elements,), float(RANK), device=DEVICE), torch.empty(elements, device=DEVICE)
        for work in dist.batch_isend_irecv([dist.P2POp(dist.isend, sent, right), dist.P2POp(dist.irecv, taken, left)]):
            work.wait()
        sums.append(taken.double().sum().item())
    return sums


@job(needs_gpu=False)
def objects(_):
    everyones, scattered, told = [None] * SIZE, [None], [{"from": 0, "text": "y" * 100_000}] if RANK == 0 else [None]
    dist.all_gather_object(everyones, {"rank": RANK, "text": "x" * (1000 * (RANK + 1))})
    dist.broadcast_object_list(told)
    dist.scatter_object_list(scattered, list(range(SIZE)) if RANK == 0 else None)
    assert scattered == [RANK] and [one["rank"] for one in everyones] == list(range(SIZE))
    return [len(one["text"]) for one in [*everyones, *told]]


@job(needs_gpu=False)
def data_loader(_):
    """Uses data-loader workers, pinned and pageable batches, and a copy to the GPU after a collective."""
    from torch.utils.data import DataLoader, TensorDataset
    torch.manual_seed(5)
    data, weights, sums = TensorDataset(torch.randn(256, 4096)), torch.ones(1 << 20, device=DEVICE), []
    for pinned in (HAS_GPU, False):
        for (batch,) in DataLoader(data, batch_size=16, num_workers=2, pin_memory=pinned):
            work = dist.all_reduce(weights, async_op=True)
            on_gpu = batch.to(DEVICE, non_blocking=True)
            work.wait()
            weights /= SIZE
            sums.append((on_gpu.sum() * 0 + weights.sum()).item())
    return sums


@job(needs_gpu=False)
def checkpoint(folder):
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import get_model_state_dict
    from torch.distributed.fsdp import fully_shard
    torch.manual_seed(11)
    saved, loaded = make_layers(2), make_layers(2)
    for model in (saved, loaded):
        fully_shard(model)
    dcp.save(get_model_state_dict(saved), checkpoint_id=folder)
    state = get_model_state_dict(loaded)
    dcp.load(state, checkpoint_id=folder)
    whole = [one.full_tensor().double().sum().item() for one in state.values()]
    assert whole == [one.full_tensor().double().sum().item() for one in get_model_state_dict(saved).values()]
    return whole


@job(needs_gpu=True)
def compiled(_):
    from torch.nn.parallel import DistributedDataParallel
    return train(torch.compile(DistributedDataParallel(make_layers(4))), step_on(64, 1024), 10)


@job(needs_gpu=True)
def first_launches(_):
    """Launches kernels for the first time, so that the driver loads them while an all-reduce runs."""
    x, y, sums = torch.ones(1 << 22, device=DEVICE), torch.rand(1000, device=DEVICE), []
    for name in ("sin cos tan exp erf lgamma digamma asinh acosh atanh round trunc sigmoid tanh log1p expm1 sinc erfinv i0 frac").split():
        work = dist.all_reduce(x, async_op=True)
        getattr(torch, name)(y)
        work.wait()
        x /= SIZE
        sums.append(x.sum().item())
    return sums


@job(needs_gpu=True)
def pageable_copies(_):
    x, sums = torch.ones(1 << 20, device=DEVICE), []
    for _ in range(30):
        work = dist.broadcast(x, 0, async_op=True)
        copied = torch.ones(1 << 20).to(DEVICE)
        work.wait()
        sums.append((x + copied).sum().item())
    return sums


@job(needs_gpu=True)
def graphs(_):
    """Replays graphs of a collective back to back, and together with empty_cache()."""
    x, side, graph = torch.ones(1 << 18, device=DEVICE), torch.cuda.Stream(), torch.cuda.CUDAGraph()
    with torch.cuda.stream(side):
        for _ in range(3):
            dist.all_reduce(x, op=dist.ReduceOp.AVG)
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        dist.all_reduce(x, op=dist.ReduceOp.AVG)
    for _ in range(20):
        graph.replay()
    for _ in range(5):
        dropped = torch.empty(1 << 26, device=DEVICE)
        del dropped
        torch.cuda.empty_cache()
        graph.replay()
    torch.cuda.synchronize()
    return [x.sum().item()]


def run_once(name, folder, turn):
    begin = time.monotonic()
    store = f"file://{folder}/store-{name}-{turn}"
    dist.init_process_group("nccl" if HAS_GPU else "gloo", store, rank=RANK, world_size=SIZE, device_id=DEVICE if HAS_GPU else None)
    torch.manual_seed(1)
    numbers = JOBS[name](f"{folder}/{name}-{turn}")
    if HAS_GPU:
        torch.cuda.synchronize()
    took_s = time.monotonic() - begin
    dist.barrier()
    dist.destroy_process_group()
    return {"job": name, "turn": turn, "seconds": round(took_s, 2), "numbers": numbers}


def main():
    limit_s, repeats, folder, names = float(sys.argv[1]), int(sys.argv[2]), pathlib.Path(sys.argv[3]), sys.argv[4:]
    print(f"backend {'nccl' if HAS_GPU else 'gloo'}", flush=True)
    if HAS_GPU:
        torch.cuda.set_device(DEVICE)
    for name in names or JOBS:
        for turn in range(repeats):
            print(f"begins {name} {turn}", flush=True)
            faulthandler.dump_traceback_later(limit_s, exit=True)  # a job that stops says where
            told = run_once(name, folder, turn)
            faulthandler.cancel_dump_traceback_later()
            if RANK == 0:
                print(json.dumps(told), flush=True)


if __name__ == "__main__":
    main()
