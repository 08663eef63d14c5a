"""Tests Verbena as a backend of torch.distributed, on emulated GPUs with tensors in host memory. Compares each result with the result of
Gloo."""
import collections
import dataclasses
import datetime
import importlib
import os
import pathlib
import time
import tomllib
import weakref

import pytest

import driver
from ranks import on_ranks, reserve_port, run_ranks

torch = pytest.importorskip("torch")
if not hasattr(torch, "__version__") or int(torch.__version__.split(".")[0]) < 2:
    pytest.skip("PyTorch 2 is needed: older ones have no backends in Python", allow_module_level=True)

BLOCKS = 2  # a thread of an emulated GPU takes a stack


def _run(count, body, *arguments):
    with reserve_port() as holder:
        return run_ranks(count, _join_and_run, holder.getsockname()[1], body, *arguments)


def on_group(count):
    """Like on_ranks(), but passes two more arguments to the test after its rank: torch.distributed and a Gloo group."""
    return on_ranks(count, _run, 3)


def _join_and_run(rank, port, body, *arguments):
    import torch.distributed as dist
    _prepare(rank, port)
    dist.init_process_group("cpu:verbena", timeout=datetime.timedelta(seconds=60))
    try:
        answer = body(rank, dist, dist.new_group(backend="gloo"), *arguments)
        dist.destroy_process_group()
    except BaseException:
        dist.distributed_c10d._abort_process_group()
        raise
    return answer


def _prepare(rank, port):
    driver.use_gpu(rank)
    if "EACH_RANK_IS_A_HOST" in os.environ:
        os.environ["VERBENA_HOSTID"] = f"host-{rank}"
    import verbena.c10d
    if "C10D_AS_GROUP" in os.environ:  # as in a PyTorch that knows no backends in Python
        verbena.c10d.backend.runs_methods = lambda: False
    verbena.c10d.register(["cpu"], blocks=BLOCKS)
    torch.set_num_threads(1)
    torch.distributed.set_debug_level_from_env()  # PyTorch was imported before
    os.environ["MASTER_PORT"] = str(port)


def _served(dist):
    """Calls of the world's group: operation and server."""
    return _count_served(dist.group.WORLD._get_backend(torch.device("cpu")))


def _count_served(backend):
    return collections.Counter({" by ".join(key): count for key, count in backend._served.items()})


def _has_backends():
    """Returns True if this PyTorch calls backends written in Python. Older versions call groups."""
    from verbena.c10d.backend import runs_methods
    return runs_methods()


@pytest.fixture(params=["backend", "group"])
def kind(request, monkeypatch):
    if request.param == "group":
        monkeypatch.setenv("C10D_AS_GROUP", "1")


def _draw(rank, shape, dtype=torch.float32):
    generator = torch.Generator().manual_seed(1000 + rank)
    return torch.randint(-40, 40, shape, generator=generator).to(dtype)


def _lay_out(values, kind):
    """Returns the values in memory with a different layout: one element after a multiple of 16 bytes, or with other strides."""
    if kind == "shifted":
        memory = torch.empty(values.numel() + 1, dtype=values.dtype)[1:].view(values.shape)
    elif kind == "strided":
        memory = torch.empty(values.T.shape, dtype=values.dtype).T
    else:
        memory = torch.empty_like(values)
    return memory.copy_(values)


LAYOUTS = ("plain", "shifted", "strided")


def _check_reductions(rank, dist, gloo):
    size = dist.get_world_size()
    ops = dist.ReduceOp
    types = {torch.float32: 1, torch.bfloat16: 1, torch.float16: 1, torch.int32: 1, torch.int64: 0, torch.float64: 0, torch.uint8: 0}
    for turn, (dtype, kernel) in enumerate(types.items()):
        # Ranks differ, where a kernel serves the call; Gloo demands what its own users know.
        layout, other_layout = (LAYOUTS[(rank + turn + more) % 3] if kernel else "plain" for more in (0, 1))
        parts = [_draw(other, (4, 3 * size), dtype) for other in range(size)]
        names = ["SUM", "MIN", "MAX", "PRODUCT"] if kernel or dtype == torch.int64 else ["SUM"]
        for name in names:
            op = getattr(ops, name)
            mine, theirs = _lay_out(parts[rank], layout if name != "PRODUCT" else "plain"), parts[rank].clone()
            dist.all_reduce(mine, op)
            dist.all_reduce(theirs, op, group=gloo)
            assert torch.equal(mine, theirs), (dtype, name)
            mine, theirs = _lay_out(parts[rank], layout if name != "PRODUCT" else "plain"), parts[rank].clone()
            dist.reduce(mine, size - 1, op)
            dist.reduce(theirs, size - 1, op, group=gloo)
            assert rank != size - 1 or torch.equal(mine, theirs), (dtype, name)
        expected = sum(part.to(torch.float64) for part in parts).to(dtype)
        pieces = list(expected.T.contiguous().chunk(size))
        flat = parts[rank].T.contiguous()
        output = _lay_out(torch.zeros(3, 4, dtype=dtype), layout)
        dist.reduce_scatter_tensor(output, _lay_out(flat, other_layout))
        assert torch.equal(output, pieces[rank]), dtype
        listed = torch.zeros(3, 4, dtype=dtype)
        dist.reduce_scatter(listed, [one.contiguous() for one in flat.chunk(size)])
        assert torch.equal(listed, pieces[rank]), dtype
    x = torch.full((5,), float(rank))
    dist.all_reduce(x, ops.AVG)
    assert torch.equal(x, torch.full((5,), (size - 1) / 2))
    x = torch.full((5,), float(rank))
    dist.all_reduce(x, dist._make_nccl_premul_sum(0.5))
    assert torch.equal(x, torch.full((5,), 0.5 * sum(range(size))))
    sparse = torch.eye(4).to_sparse() * (rank + 1)
    dist.all_reduce(sparse)
    assert torch.equal(sparse.to_dense(), torch.eye(4) * sum(range(1, size + 1)))
    uneven = [torch.full((other + 1,), float(rank)) for other in range(size)]
    output = torch.zeros(rank + 1)
    dist.reduce_scatter(output, uneven)
    assert torch.equal(output, torch.full((rank + 1,), float(sum(range(size)))))
    served = _served(dist)
    for operation in ("all_reduce", "reduce", "reduce_scatter"):
        assert served[f"{operation} by Verbena"] > 0 and served[f"{operation} by the fallback group"] > 0, served


def _check_exchanges(rank, dist, gloo):
    size = dist.get_world_size()
    types = (torch.float32, torch.bfloat16, torch.int64, torch.float64, torch.bool, torch.uint8, torch.complex64)
    for turn, dtype in enumerate(types):
        layout = LAYOUTS[(rank + turn) % 3]
        parts = [_draw(other, (3, 5), dtype) for other in range(size)]
        mine = _lay_out(parts[rank], layout)
        outputs = [_lay_out(torch.zeros(3, 5, dtype=dtype), LAYOUTS[(rank + turn + other) % 3]) for other in range(size)]
        dist.all_gather(outputs, mine)
        assert all(map(torch.equal, outputs, parts)), dtype
        whole = torch.zeros(3 * size, 5, dtype=dtype)
        dist.all_gather_into_tensor(whole, parts[rank])
        assert torch.equal(whole, torch.cat(parts)), dtype
        for root in range(size):
            x = _lay_out(parts[rank], layout)
            dist.broadcast(x, root)
            assert torch.equal(x, parts[root]), dtype
            outputs = [torch.zeros(3, 5, dtype=dtype) for _ in parts] if rank == root else None
            dist.gather(mine, outputs, root)
            assert rank != root or all(map(torch.equal, outputs, parts)), dtype
            x = _lay_out(torch.zeros(3, 5, dtype=dtype), layout)
            dist.scatter(x, parts if rank == root else None, root)
            assert torch.equal(x, parts[rank]), dtype
        every = [_draw(other, (2 * size, 3), dtype) for other in range(size)]
        x = torch.zeros(2 * size, 3, dtype=dtype)
        dist.all_to_all_single(x, every[rank])
        assert torch.equal(x, torch.cat([one.chunk(size)[rank] for one in every])), dtype
    # Rank a sends a + b rows to rank b.
    sizes = [rank + other for other in range(size)]
    sent = [torch.full((a + b, 2), float(10 * a + b)) for a in range(size) for b in range(size)]
    x = torch.zeros(sum(sizes), 2)
    dist.all_to_all_single(x, torch.cat(sent[rank * size:(rank + 1) * size]), sizes, sizes)
    assert torch.equal(x, torch.cat([sent[other * size + rank] for other in range(size)]))
    outputs = [torch.zeros(one, 2) for one in sizes]
    dist.all_to_all(outputs, sent[rank * size:(rank + 1) * size])
    assert all(torch.equal(one, sent[other * size + rank]) for other, one in enumerate(outputs))
    outputs = [torch.zeros(other, 2) for other in range(size)]
    dist.all_gather(outputs, torch.full((rank, 2), float(rank)))
    assert all(torch.equal(one, torch.full((other, 2), float(other))) for other, one in enumerate(outputs))
    lists = [[torch.zeros(2), torch.zeros(3)] for _ in range(size)]  # by rank, then by tensor
    dist.all_gather_coalesced(lists, [torch.full((2,), float(rank)), torch.full((3,), float(10 + rank))])
    for other, (two, three) in enumerate(lists):
        assert torch.equal(two, torch.full((2,), float(other))) and torch.equal(three, torch.full((3,), float(10 + other)))
    dist.barrier()
    objects = [None] * size
    dist.all_gather_object(objects, {"rank": rank, "text": "x" * rank})
    assert objects == [{"rank": other, "text": "x" * other} for other in range(size)]
    told = [("root", size)] if rank == 0 else [None]
    dist.broadcast_object_list(told, 0)
    assert told == [("root", size)]
    assert not [name for name in _served(dist) if name.endswith("fallback group")], _served(dist)


def _check_messages(rank, dist, gloo):
    size = dist.get_world_size()
    x, left, right = torch.zeros(4), (rank - 1) % size, (rank + 1) % size
    if rank == 0:
        dist.send(torch.full((4,), 7.0), 1)
    elif rank == 1:
        dist.recv(x, 0)
        assert torch.equal(x, torch.full((4,), 7.0))
    world, blocks = dist.group.WORLD._get_backend(torch.device("cpu")), []
    if not _has_backends():
        start = world.start_coalescing
        world.start_coalescing = lambda: (blocks.append(1), start())
    works = dist.batch_isend_irecv([dist.P2POp(dist.isend, torch.full((4,), float(rank)), right), dist.P2POp(dist.irecv, x, left)])
    assert _has_backends() or blocks == [1]
    for work in works:
        work.wait()
    assert torch.equal(x, torch.full((4,), float(left)))


def _check_works(rank, dist, gloo):
    size = dist.get_world_size()
    total = float(sum(range(size)))
    tensors = [torch.full((100 + other,), float(rank)) for other in range(4)]
    works = [dist.all_reduce(one, async_op=True) for one in tensors]
    for work, one in zip(works, tensors):
        assert work.wait() and torch.equal(work.get_future().wait()[0], torch.full_like(one, total))
    with dist._coalescing_manager(async_ops=True) as block:
        for one in tensors:
            dist.all_reduce(one.fill_(rank))
    block.wait()
    assert all(torch.equal(one, torch.full_like(one, total)) for one in tensors)
    outputs = [torch.zeros(size * 3) for _ in range(2)]
    with dist._coalescing_manager(device=torch.device("cpu")):
        for place, one in enumerate(outputs):
            dist.all_gather_into_tensor(one, torch.full((3,), float(10 * place + rank)))
    for place, one in enumerate(outputs):
        assert torch.equal(one, torch.cat([torch.full((3,), float(10 * place + other)) for other in range(size)]))
    from torch.distributed import _functional_collectives as funcol
    x = funcol.all_reduce(torch.full((6,), float(rank)), "sum", dist.group.WORLD)
    y = funcol.all_gather_tensor(torch.full((2,), float(rank)), 0, dist.group.WORLD)
    z = funcol.reduce_scatter_tensor(torch.full((2 * size,), float(rank)), "sum", 0, dist.group.WORLD)
    many = funcol.all_reduce_coalesced([torch.full((one,), float(rank)) for one in (3, 5)], "sum", dist.group.WORLD)
    assert torch.equal(x + 0, torch.full((6,), total)) and torch.equal(z + 0, torch.full((2,), total))
    assert torch.equal(y + 0, torch.arange(size).repeat_interleave(2).float())
    assert all(torch.equal(one + 0, torch.full_like(one, total)) for one in many)


@pytest.mark.parametrize("count", [2, 3])
@pytest.mark.parametrize("check", [_check_reductions, _check_exchanges, _check_messages, _check_works])
def test_collectives(count, check, kind):
    _run(count, check)


@on_group(4)
def test_groups(rank, dist, gloo):
    """Tests groups that overlap, a mesh, and split groups. Each group has a separate communicator."""
    size = dist.get_world_size()
    pairs = [dist.new_group([one, (one + 1) % size]) for one in range(size)]
    for one, group in enumerate(pairs):
        if rank in (one, (one + 1) % size):
            x = torch.full((8,), float(rank))
            dist.all_reduce(x, group=group)
            assert torch.equal(x, torch.full((8,), float(one + (one + 1) % size)))
    from torch.distributed.device_mesh import init_device_mesh
    mesh = init_device_mesh("cpu", (2, size // 2), mesh_dim_names=("dp", "tp"))
    for name, members in (("dp", [one for one in range(size) if one % (size // 2) == rank % (size // 2)]),
                          ("tp", [one for one in range(size) if one // (size // 2) == rank // (size // 2)])):
        x = torch.full((8,), float(rank))
        dist.all_reduce(x, group=mesh.get_group(name))
        assert torch.equal(x, torch.full((8,), float(sum(members)))), name
    if not _has_backends():
        return  # split_group() splits backends
    half = dist.split_group(split_ranks=[[0, 1], [2, 3]])
    x = torch.full((8,), float(rank))
    dist.all_reduce(x, group=half)
    assert torch.equal(x, torch.full((8,), 1.0 if rank < 2 else 5.0))
    assert _count_served(half._get_backend(torch.device("cpu")))["all_reduce by Verbena"] == 1
    dist.destroy_process_group(half)
    # Ranks of a new group are in the order that is asked for.
    turned = dist.split_group(split_ranks=[[1, 0], [3, 2]])
    x, gathered = torch.full((8,), float(rank)), torch.empty(16)
    dist.all_gather_into_tensor(gathered, x, group=turned)
    base = rank // 2 * 2
    assert torch.equal(gathered, torch.tensor([base + 1.0] * 8 + [base + 0.0] * 8))
    dist.broadcast(x, group=turned, group_src=0)
    assert torch.equal(x, torch.full((8,), base + 1.0))
    dist.destroy_process_group(turned)
    dist.all_reduce(x.fill_(1))
    assert torch.equal(x, torch.full((8,), 4.0))


def _begin_with_a_device(rank, port):
    import torch.distributed as dist
    _prepare(rank, port)
    dist.init_process_group("cpu:verbena", device_id=torch.device("cpu", 0), timeout=datetime.timedelta(seconds=60))
    connected = dist.group.WORLD._get_backend(torch.device("cpu"))._context
    x = torch.full((8,), float(rank + 1))
    dist.all_reduce(x)
    assert torch.equal(x, torch.full((8,), 3.0))
    assert connected is not None and dist.group.WORLD._get_backend(torch.device("cpu"))._context is connected
    dist.destroy_process_group()


def test_a_group_that_is_bound_to_a_device_connects_once():
    with reserve_port() as holder:
        run_ranks(2, _begin_with_a_device, holder.getsockname()[1])


@pytest.mark.usefixtures("kind")
@on_group(2)
def test_nothing_is_kept_and_parameters_are_outputs(rank, dist, gloo):
    source = torch.full((64,), float(rank))
    seen = weakref.ref(source)
    output = torch.empty(128)
    work = dist.all_gather_into_tensor(output, source[::1], async_op=True)
    work.wait()
    driver.drop_tensors()
    del source, work
    assert seen() is None, "the group holds a tensor of a call that has ended"
    # An output may be a leaf that takes gradients, in any layout.
    weights = torch.nn.Parameter(torch.full((6, 4), float(rank)).t())
    dist.broadcast(weights, 1)
    assert torch.equal(weights.detach(), torch.ones(4, 6)) and weights.requires_grad


@pytest.mark.usefixtures("kind")
@on_group(2)
def test_a_coalescing_block_that_fails(rank, dist, gloo):
    group = dist.group.WORLD
    x = torch.ones(8)
    dist.all_reduce(x)
    with pytest.raises(KeyError), dist._coalescing_manager(group, device=torch.device("cpu")):
        dist.all_reduce(x)
        raise KeyError("within the block")
    backend = group if hasattr(group, "_served") else group._get_backend(torch.device("cpu"))
    if backend._coalesced is None:
        return  # this PyTorch has not begun the block
    backend._coalesced = backend._coalesced or [([x], None)]
    with pytest.raises(dist.DistBackendError, match="its calls are lost"):
        backend.start_coalescing()


def _begin_twice(rank, ports):
    import torch.distributed as dist
    for port in ports:
        _prepare(rank, port)
        dist.init_process_group("cpu:verbena", timeout=datetime.timedelta(seconds=60))
        x = torch.full((8,), float(rank + 1))
        dist.all_reduce(x)
        assert torch.equal(x, torch.full((8,), 3.0))
        dist.destroy_process_group()
        with pytest.raises(ValueError, match="not been initialized"):
            dist.all_reduce(x)


def test_a_second_init(kind):
    with reserve_port() as first, reserve_port() as second:
        run_ranks(2, _begin_twice, [first.getsockname()[1], second.getsockname()[1]])


def _check_detail(rank, dist, gloo):
    assert type(dist.group.WORLD._get_backend(torch.device("cpu"))).__name__ == "_ProcessGroupWrapper"
    size = dist.get_world_size()
    x = torch.full((8,), float(rank))
    dist.all_reduce(x)
    outputs = torch.zeros(8 * size)
    dist.all_gather_into_tensor(outputs, x)
    dist.barrier()
    assert torch.equal(outputs, torch.full((8 * size,), float(sum(range(size)))))
    # The wrapper finds what is different before any kernel starts.
    with pytest.raises(RuntimeError, match="(?i)collectives differ|mismatch"):
        dist.all_reduce(torch.zeros(8 + rank))


def test_detail(monkeypatch):
    if not _has_backends():
        pytest.skip("this PyTorch wraps backends alone, and calls none in Python")
    monkeypatch.setenv("TORCH_DISTRIBUTED_DEBUG", "DETAIL")
    _run(2, _check_detail)


def _meet_a_late_rank(rank, port):
    import torch.distributed as dist
    _prepare(rank, port)
    dist.init_process_group("cpu:verbena", timeout=datetime.timedelta(seconds=20))
    x = torch.ones(8)
    dist.all_reduce(x)
    store = dist.distributed_c10d._get_default_store()
    if rank == 1:
        store.wait(["over"], datetime.timedelta(seconds=60))  # late by what the other rank has waited, and more
    with pytest.raises(dist.DistBackendError, match="rank 1" if rank == 0 else "verbena") as told:
        dist.all_reduce(x)
    with pytest.raises(dist.DistBackendError, match="verbena"):
        dist.all_reduce(x)
    store.set("over" if rank == 0 else "ended", "1")
    if rank == 0:
        store.wait(["ended"], datetime.timedelta(seconds=60))  # the store lives here
    dist.destroy_process_group()
    return str(told.value)


def test_a_late_rank():
    with reserve_port() as holder:
        told = run_ranks(2, _meet_a_late_rank, holder.getsockname()[1])
    assert "rank 1" in told[0]


@on_group(2)
def test_a_timeout_of_a_group(rank, dist, gloo):
    """If the host waits, to connect or in a call, the timeout of the group applies, and not the timeout of 60 s of the process."""
    hurried = [dist.new_group(timeout=datetime.timedelta(seconds=10)) for _ in range(2)]
    x = torch.ones(8)
    dist.all_reduce(x)
    with pytest.warns(UserWarning, match="not after its timeout of 10000 ms"):
        dist.all_reduce(x, group=hurried[1])
    if rank == 0:
        with pytest.raises(dist.DistBackendError, match="rank 1 has not connected within 10 s"):
            dist.all_reduce(x, group=hurried[0])
        with pytest.raises(dist.DistBackendError, match="longer than 10 s"):
            dist.barrier(group=hurried[1])
        with pytest.raises(dist.DistBackendError, match="longer than 10 s"):
            dist.all_reduce(x, group=hurried[1])
    dist.barrier(group=gloo)
    dist.all_reduce(x.fill_(1))
    assert torch.equal(x, torch.full((8,), 2.0))


def _meet_a_dead_rank(rank, port):
    import torch.distributed as dist
    _prepare(rank, port)
    dist.init_process_group("cpu:verbena", timeout=datetime.timedelta(seconds=20))
    x = torch.ones(8)
    dist.all_reduce(x)
    if rank == 2:
        return "gone"  # the process ends without a word, as one that was killed
    with pytest.raises(dist.DistBackendError, match="rank 2"):
        for _ in range(2):  # the first may still find the rank's packets
            dist.all_reduce(x)
    dist.destroy_process_group()
    return "ended"


def test_a_dead_rank(kind):
    with reserve_port() as holder:
        assert run_ranks(3, _meet_a_dead_rank, holder.getsockname()[1]) == ["ended", "ended", "gone"]


def _encode_between_hosts(rank, dist, gloo):
    """Runs each rank as a separate host. The setting encodes bfloat16 elements, and all results must keep their bits."""
    size = dist.get_world_size()
    generator = torch.Generator().manual_seed(rank)
    for dtype in (torch.bfloat16, torch.float32):
        x = torch.randn((size, 2000), generator=generator).to(dtype)
        ours, theirs = x.clone(), x.clone()
        dist.all_reduce(ours)
        dist.all_reduce(theirs, group=gloo)
        assert torch.equal(ours, theirs), dtype
        ours, theirs = (x.new_empty((size * size, 2000)) for _ in range(2))
        dist.all_gather_into_tensor(ours, x)
        dist.all_gather_into_tensor(theirs, x, group=gloo)
        assert torch.equal(ours, theirs), dtype
    import verbena.c10d
    return verbena.c10d.explain()


@pytest.mark.parametrize("setting", ["lossless", "auto"])
def test_encoded_between_hosts(monkeypatch, setting):
    monkeypatch.setenv("VERBENA_OPS_ALGORITHM", setting)
    monkeypatch.setenv("VERBENA_IBVERBS_LIB", "softverbs")
    monkeypatch.setenv("EACH_RANK_IS_A_HOST", "1")
    for told in _run(2, _encode_between_hosts):
        assert "2 all_reduce by Verbena" in told
        assert ("64 MiB of bfloat16 is encoded between hosts (LOSSLESS)" in told) == (setting == "lossless")


@on_group(2)
def test_explained(rank, dist, gloo):
    """What explain() says of a call is who then serves it."""
    from verbena.c10d import TABLE, explain
    text = explain()
    assert all(operation in text for operation in TABLE) and "not connected yet" in text
    assert explain("all_reduce", torch.bfloat16, 1024, dist.ReduceOp.SUM).endswith("Verbena")
    for arguments, why in ((("all_reduce", torch.int64, 8, dist.ReduceOp.SUM), "reduces int64"), (("send",), "no kernel"),
                           (("all_reduce", torch.float32, 8, dist.ReduceOp.PRODUCT), "PRODUCT"),
                           (("all_gather", torch.bool, 65 << 20), "larger than 64 MiB")):
        assert "fallback group, because: " in explain(*arguments) and why in explain(*arguments)
    row = TABLE["all_reduce"]
    TABLE["all_reduce"] = dataclasses.replace(row, max_bytes=1 << 20)
    x = torch.full(((1 << 18) + 1,), float(rank))
    dist.all_reduce(x)
    assert torch.equal(x, torch.full_like(x, float(sum(range(dist.get_world_size())))))
    dist.all_reduce(x[1:])
    assert _served(dist) == {"all_reduce by the fallback group": 1, "all_reduce by Verbena": 1}
    assert "kernels; 1 all_reduce by Verbena, 1 all_reduce by the fallback group" in explain()


@pytest.mark.parametrize("how", ["at once", "early", "late"])
@on_group(2)
def test_without_kernels(rank, dist, gloo, how):
    """If one rank has no kernels, all ranks use the fallback group and know the reason."""
    import verbena.c10d
    made = verbena.c10d.calls.Communicator

    def fail(*arguments, **options):
        if how == "late":
            made(*arguments, **options)
        raise OSError("no such library")

    def find_no_library():
        raise verbena.native.BackendUnavailable("no such library")

    if rank == 1 and how == "at once":
        verbena.c10d.calls.load_ops_library = find_no_library
    elif rank == 1:
        verbena.c10d.calls.Communicator = fail
    with pytest.warns(UserWarning, match="all calls go to gloo: rank " + ("[01]: " if how == "early" else "1: no such library")):
        x = torch.full((8,), float(rank + 1))
        dist.all_reduce(x)
    assert torch.equal(x, torch.full((8,), 3.0))
    outputs = torch.zeros(16)
    dist.all_gather_into_tensor(outputs, x)
    dist.reduce_scatter_tensor(x, outputs)
    dist.barrier()
    assert torch.equal(x, torch.full((8,), 6.0))
    assert "fallback group only" in verbena.c10d.explain()
    assert not [name for name in _served(dist) if name.endswith("Verbena")]


def test_the_entry_point():
    """PyTorch finds the backend of an installed package by this name. The name in the source tree must be the same."""
    for file in (pathlib.Path(__file__).parents[1] / "pyproject.toml", pathlib.Path(__file__).parents[2] / "pyproject.toml"):
        point = tomllib.loads(file.read_text(encoding="utf-8"))["project"]["entry-points"]["torch.distributed.backends"]["verbena"]
        module, function = point.split(":")
        assert callable(getattr(importlib.import_module(module), function))


@on_group(2)
def test_one_line(rank, dist, gloo):
    from verbena import ops
    ops.register_torch_ops("CPU")
    size = dist.get_world_size()
    for group in (None, gloo):
        tp = ops.init(group, name="tp", blocks=BLOCKS)
        x = torch.full((8,), float(rank))
        total = torch.full((8,), float(sum(range(size))))
        y, z = tp.all_reduce(x, op=dist.ReduceOp.SUM), torch.ops.verbena.all_reduce(x, "tp")
        driver.call("cuStreamSynchronize", None)
        assert torch.equal(y, total) and torch.equal(z, total)
        ops.set_group("tp", None)
        tp.free()
        assert "freed" in repr(tp)


def _begin_by_the_launcher(rank, told_file):
    import verbena
    from verbena import ops
    driver.use_gpu(rank)
    ops.register_torch_ops("CPU")
    with pytest.raises((KeyError, verbena.VerbenaError)) as told, ops.init(blocks=BLOCKS) as tp:
        y = torch.ops.verbena.all_reduce(torch.full((8,), float(rank)), "world")
        driver.call("cuStreamSynchronize", None)
        assert torch.equal(y, torch.full((8,), 1.0))
        if rank == 0:
            raise KeyError("it leaves the block")
        tp.reset()  # collective: does not wait for a rank that has left
    assert told.type is (KeyError if rank == 0 else verbena.VerbenaError)
    if rank == 1:
        told_file.write_text(str(told.value), encoding="utf-8")
    deadline = time.monotonic() + 60
    while not told_file.exists() and time.monotonic() < deadline:  # what the peer is told does not come from this process's end
        time.sleep(0.01)


def test_one_line_by_the_launcher(tmp_path):
    run_ranks(2, _begin_by_the_launcher, tmp_path / "told")
    assert "waited" not in (tmp_path / "told").read_text(encoding="utf-8")


STEPS = 100


def _make_model():
    torch.manual_seed(7)
    return torch.nn.Sequential(torch.nn.Linear(16, 96), torch.nn.ReLU(), torch.nn.Linear(96, 16))


def _train(model, rank, parameters=None):
    """Losses of each step, on data that differ among ranks."""
    optimizer = torch.optim.SGD(parameters or model.parameters(), lr=0.05, momentum=0.9)
    generator = torch.Generator().manual_seed(rank)
    losses = []
    for _ in range(STEPS):
        x = torch.randn(8, 16, generator=generator)
        optimizer.zero_grad()
        loss = (model(x) - x.roll(1, 1)).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def _check_ddp(rank, dist, gloo):
    from torch.nn.parallel import DistributedDataParallel
    losses = [_train(DistributedDataParallel(_make_model(), process_group=group), rank) for group in (dist.group.WORLD, gloo)]
    # Two contributions have one order of addition; of more, Gloo's order is another than that of the ranks.
    if dist.get_world_size() == 2:
        assert losses[0] == losses[1]
    assert losses[0] == pytest.approx(losses[1], rel=1e-4) and losses[0][-1] < losses[0][0] / 2
    assert _served(dist)["all_reduce by Verbena"] >= STEPS


def _check_fsdp(rank, dist, gloo):
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.fsdp import fully_shard
    losses = []
    for group in (dist.group.WORLD, gloo):
        model, mesh = _make_model(), DeviceMesh.from_group(group, "cpu")
        for layer in model:
            if isinstance(layer, torch.nn.Linear):
                fully_shard(layer, mesh=mesh)
        losses.append(_train(fully_shard(model, mesh=mesh), rank))
    if dist.get_world_size() == 2:
        assert losses[0] == losses[1]
    assert losses[0] == pytest.approx(losses[1], rel=1e-4) and losses[0][-1] < losses[0][0] / 2
    served = _served(dist)
    assert served["all_gather by Verbena"] >= STEPS and served["reduce_scatter by Verbena"] >= STEPS


def _check_tensor_parallel(rank, dist, gloo):
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
    losses = []
    for group in (dist.group.WORLD, gloo):
        plan = {"0": ColwiseParallel(), "2": RowwiseParallel()}
        model = parallelize_module(_make_model(), DeviceMesh.from_group(group, "cpu"), plan)
        losses.append(_train(model, 0))
    if dist.get_world_size() == 2:
        assert losses[0] == losses[1]
    assert losses[0] == pytest.approx(losses[1], rel=1e-4) and losses[0][-1] < losses[0][0] / 2
    assert losses[0] == pytest.approx(_train(_make_model(), 0), rel=1e-3)
    assert _served(dist)["all_reduce by Verbena"] >= STEPS


@pytest.mark.parametrize("count", [2, 3])
@pytest.mark.parametrize("check", [_check_ddp, _check_fsdp, _check_tensor_parallel])
def test_training(count, check, kind):
    _run(count, check)
