"""Tests groups whose ranks are processes, without PyTorch, and with tensors if PyTorch is installed."""
import contextlib
import ctypes
import gc
import inspect
import importlib.util
import os
import pathlib
import pickle
import signal
import subprocess
import sys
import time
import types

import pytest
import verbena.distributed as vd
from ranks import on_ranks, reserve_port, run_ranks
from verbena import SymmetricContext, VerbenaError
from verbena.distributed import (MessageQueue, Ranks, destroy_dist_env, gather_objects, get_group, get_tp_group, init_dist_env,
                                 is_initialized, state)

PATIENCE_S = 60
needs_torch = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="no PyTorch (tools/setup torch)")


@on_ranks(3)
def test_ranks(rank):
    ranks = Ranks(timeout=PATIENCE_S)
    told = gather_objects(ranks, {"rank": rank, "text": "x" * rank})
    ranks.close()
    assert [len(one["text"]) for one in told] == [0, 1, 2]


def make(rank, without_torch, sizes):
    if without_torch:
        hide_torch()
    init_dist_env(**sizes, timeout=PATIENCE_S, custom_groups={"odd": [[0, 2], [3, 1]], "all": [3, 2, 1, 0]})
    init_dist_env(**sizes, custom_groups={"odd": [[0, 2], [3, 1]], "all": [3, 2, 1, 0]})
    with pytest.raises(RuntimeError, match="the groups already exist"):
        init_dist_env(tensor_model_parallel_size=1)
    with pytest.raises(ValueError, match="no group 'none'"):
        get_group("none")
    found = {name: get_group(name).ranks for name in ("world", "tp", "pp", "dp", "ep", "odd", "all")}
    steps = [get_tp_group().broadcast_object({"step": step} if get_tp_group().is_first_rank else None) for step in range(5)]
    assert steps == [{"step": step} for step in range(5)]
    assert get_group("odd").ranks[get_group("odd").rank_in_group] == rank
    destroy_dist_env()
    assert not is_initialized()
    return found


def hide_torch():
    sys.modules["torch"] = None


@pytest.mark.parametrize("without_torch", [True, pytest.param(False, marks=needs_torch)])
def test_groups(without_torch):
    told = run_ranks(4, make, without_torch, {"tensor_model_parallel_size": 2, "pipeline_model_parallel_size": 2})
    assert told[1] == {"world": [0, 1, 2, 3], "tp": [0, 1], "pp": [1, 3], "dp": [1], "ep": [0, 1], "odd": [3, 1],
                       "all": [3, 2, 1, 0]}


class CountingRanks(Ranks):
    gathers = 0

    def all_gather(self, mine):
        self.gathers += 1
        return super().all_gather(mine)


def count_gathers(rank, custom):
    hide_torch()
    ranks = CountingRanks(timeout=PATIENCE_S)
    init_dist_env(tensor_model_parallel_size=2, exchange=ranks, custom_groups={f"g{i}": [2, 0, 1, 3] for i in range(custom)})
    destroy_dist_env()
    gathers = ranks.gathers
    ranks.close()
    return gathers


def test_one_meeting_for_any_number_of_groups():
    few, many = run_ranks(4, count_gathers, 0), run_ranks(4, count_gathers, 100)
    assert few == many and few[0] <= 8


@on_ranks(4)
def test_engines_names(rank):
    """As vLLM and SGLang set themselves up."""
    hide_torch()
    with pytest.raises(RuntimeError, match="the ranks are not connected"):
        vd.initialize_model_parallel(2)
    vd.init_distributed_environment(world_size=4, rank=rank, distributed_init_method="env://", local_rank=rank, backend="nccl",
                                    timeout=PATIENCE_S)
    vd.init_distributed_environment(4, rank)
    with pytest.raises(RuntimeError, match=r"already is rank \d of 4 and cannot become rank \d of 5"):
        vd.init_distributed_environment(5, rank)
    assert not vd.model_parallel_is_initialized()
    with pytest.raises(RuntimeError, match="there are no groups"):
        vd.get_tp_group()
    vd.initialize_model_parallel(2, 2)
    vd.ensure_model_parallel_initialized(2, 2, 1, 1, "nccl")
    with pytest.raises(RuntimeError, match="the groups already exist with the sizes"):
        vd.ensure_model_parallel_initialized(4, 1)
    with pytest.raises(RuntimeError, match="the groups already exist. Call destroy"):
        vd.initialize_model_parallel(2, 2)
    assert (vd.get_tensor_model_parallel_world_size(), vd.get_tensor_model_parallel_rank()) == (2, rank % 2)
    assert vd.get_pp_group().is_first_rank == (rank < 2) and vd.get_pp_group().next_rank == (rank + 2) % 4
    assert vd.get_eplb_group().ranks == vd.get_ep_group().ranks and vd.get_dcp_group().world_size == 1
    vd.destroy_model_parallel()
    assert vd.get_world_group().world_size == 4
    vd.initialize_model_parallel(4, custom_groups={"mine": [[0, 3], [1, 2]]})
    found = vd.get_tp_group().broadcast_object(rank), vd.get_group("mine").ranks
    vd.destroy_distributed_environment()
    assert found == (0, [0, 3] if rank in (0, 3) else [1, 2])


@on_ranks(2)
def test_objects_need_no_torch(rank):
    hide_torch()
    init_dist_env(2, timeout=PATIENCE_S)
    world, tp = vd.get_world_group(), get_tp_group()
    long = bytes(range(256)) * 20_000
    found = [tp.broadcast_object([long] if rank == 0 else None) == [long],
             tp.broadcast_object({"a": 1} if rank == 1 else None, src=1), world.broadcast_object({"a": 2} if rank == 0 else None),
             world.send_object("x", 1) if rank == 0 else world.recv_object(0),
             tp.broadcast_tensor_dict({"n": 3} if rank == 0 else None), world.broadcast_object_list([rank, "y"], src=1),
             world.send_tensor_dict({"n": 4}, 1) if rank == 0 else world.recv_tensor_dict(0)]
    world.barrier()
    destroy_dist_env()
    assert found == [True, {"a": 1}, {"a": 2}, "x" if rank == 1 else None, {"n": 3}, [1, "y"], {"n": 4} if rank == 1 else None]


@on_ranks(2)
def test_the_set_up_unpickles_nothing(rank):
    """Until a rank asks for an object."""
    pickle.loads = pickle.Unpickler = None
    init_dist_env(2, timeout=PATIENCE_S)
    vd.get_world_group().barrier()
    destroy_dist_env()


def list_listeners():
    """Returns the TCP addresses at which this process listens, in the hexadecimal format of /proc/net/tcp."""
    inodes = set()
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            inodes.add(os.readlink(f"/proc/self/fd/{number}"))
    found = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with open(table, encoding="utf-8") as lines:
            for fields in map(str.split, lines):
                if fields[3] == "0A" and f"socket:[{fields[9]}]" in inodes:
                    found.add(fields[1].split(":")[0])
    return found


@pytest.mark.parametrize("one_host", [{}, {"LOCAL_WORLD_SIZE": "3", "MASTER_ADDR": "192.0.2.1"}])
@on_ranks(3)
def test_ranks_of_one_host_listen_on_loopback_only(rank, one_host):
    os.environ.update(one_host)
    own, meeting = [], state._make_groups
    state._make_groups = lambda *rest: own.append(list_listeners()) or meeting(*rest)
    init_dist_env(3, timeout=PATIENCE_S)
    own.append(list_listeners())
    destroy_dist_env()
    assert set().union(*own) == {"0100007F"}


@on_ranks(3)
def test_hosts(rank):
    if rank == 2:
        os.environ["VERBENA_HOSTID"] = "elsewhere"
    ranks = Ranks(timeout=PATIENCE_S)
    found = vd.in_the_same_node_as(ranks, 1), vd.get_node_count(ranks)
    ranks.close()
    assert found == ([True, True, False], 2)


@on_ranks(2)
def test_what_cannot_be_fails_on_all(rank):
    """A call that fails on one rank fails at once on all ranks. Afterwards the same ranks can begin again."""
    hide_torch()
    found = []
    for asked in ({"tensor_model_parallel_size": 2 - rank}, {"decode_context_model_parallel_size": 1 + rank},
                  {"tensor_model_parallel_size": 3}, {"custom_groups": {"tp": [0, 1]}}):
        with pytest.raises((RuntimeError, ValueError)) as told:
            init_dist_env(**{"tensor_model_parallel_size": 2, **asked}, timeout=PATIENCE_S)
        assert not is_initialized() and state._world is None
        found.append(str(told.value))
    init_dist_env(2, timeout=PATIENCE_S)
    destroy_dist_env()
    assert all("the ranks request different groups: rank" in line for line in found[:2]), found
    assert "2 ranks cannot be laid out as tp 3" in found[2] and "custom groups cannot be called tp" in found[3]


@on_ranks(3)
def test_a_failure_of_one_rank_is_told_to_all(rank):
    hide_torch()
    if rank == 1:
        state.check_custom = lambda *_: 1 / 0
    with pytest.raises((RuntimeError, ZeroDivisionError)) as told:
        init_dist_env(timeout=PATIENCE_S, custom_groups={"all": [0, 1, 2]})
    assert str(told.value) == ("" if rank == 1 else "rank 1: ZeroDivisionError: ") + "division by zero"


def kill_before(module, name):
    def killed(*_, **__):
        os.kill(os.getpid(), signal.SIGKILL)

    setattr(module, name, killed)


# Where in its set-up a rank dies, and how long the others may take to find out: a queue's writer waits for a reader that was
# never there as long as it may.
STAGES = {
    "never comes": (None, 2),
    "has met the others": ((state, "_make_groups"), PATIENCE_S),
    "tells the others": ((state, "gather_bytes"), PATIENCE_S),
    "attaches to the queue": ((MessageQueue, "create_from_handle"), 2),
    "is attached to the queue": ((MessageQueue, "wait_until_ready"), 2),
}


def die(rank, stage, dead):
    hide_torch()
    place, timeout = STAGES[stage]
    if rank == dead:
        if place is not None and os.fork() == 0:
            kill_before(*place)
            init_dist_env(tensor_model_parallel_size=3, timeout=PATIENCE_S)
            os._exit(1)
        if place is not None:
            os.wait()
        return None
    with pytest.raises(VerbenaError) as told:
        init_dist_env(tensor_model_parallel_size=3, timeout=timeout)
    assert not is_initialized()
    return str(told.value)


@pytest.mark.parametrize("stage", list(STAGES))
def test_who_is_missing_is_named(stage):
    told = run_ranks(3, die, stage, 2)
    assert all("rank 2" in line for line in told[:2]), told


@pytest.mark.parametrize("stage", ["has met the others", "tells the others", "is attached to the queue"])
def test_rank_0_is_named_too(stage):
    told = run_ranks(3, die, stage, 0)
    assert all("rank 0" in line for line in told[1:]), told


@on_ranks(3)
def test_without_a_rank_and_with_it_again(rank):
    hide_torch()
    found = []
    for members in ([0, 1, 2], [0, 2], [0, 1, 2]):
        if rank in members:
            init_dist_env(tensor_model_parallel_size=len(members), members=members, timeout=PATIENCE_S)
            found.append((get_tp_group().rank_in_group, get_tp_group().broadcast_object("all" if rank == 0 else None)))
            destroy_dist_env()
    assert found == [[(0, "all")] * 3, [(1, "all")] * 2, [(2, "all"), (1, "all"), (2, "all")]][rank]


class MallocInfo(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in ("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks",
                                                     "uordblks", "fordblks", "keepcost")]


@on_ranks(2)
def test_a_forked_child_changes_nothing(rank):
    init_dist_env(2, timeout=PATIENCE_S)
    ranks, tp = state._world.ranks, get_tp_group()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            assert not is_initialized()
            destroy_dist_env()
            for end in (tp.destroy, ranks.close):
                end()
            code = 0
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0
    told = [tp.broadcast_object(("step", step) if rank == 0 else None) for step in range(10)]
    ranks.barrier()
    destroy_dist_env()
    assert told == [("step", step) for step in range(10)]


def count_left():
    """Returns how many resources of each kind this process still has, as counted by the kernel and by the allocator."""
    gc.collect()
    mallinfo2 = ctypes.CDLL(None).mallinfo2
    mallinfo2.restype = MallocInfo
    with open("/proc/self/maps", encoding="utf-8") as maps:
        shared = sum(line.split()[1].endswith("s") for line in maps)
    info = mallinfo2()
    return {"bytes": info.uordblks + info.hblkhd, "descriptors": len(os.listdir("/proc/self/fd")), "shared maps": shared,
            "threads": len(os.listdir("/proc/self/task")),
            "names": sum("verbena-queue" in name for name in os.listdir("/dev/shm"))}


def cycle(rank, count):
    hide_torch()

    def once():
        init_dist_env(tensor_model_parallel_size=2, custom_groups={"all": [1, 0]}, timeout=PATIENCE_S)
        assert get_tp_group().broadcast_object("x") == "x"
        destroy_dist_env()

    for _ in range(10):
        once()
    found = [count_left()]
    for _ in range(WINDOWS):
        for _ in range(count // WINDOWS):
            once()
        end = time.monotonic() + 5
        while count_left()["threads"] > 1 and time.monotonic() < end:  # one that was joined counts for a moment more
            time.sleep(0.01)
        found.append(count_left())
    return found


WINDOWS = 4
CYCLES = int(os.environ.get("GROUPS_TEST_CYCLES", "60"))  # 1,000 in the long test


def test_nothing_is_left():
    for rank, found in enumerate(run_ranks(2, cycle, CYCLES, limit_s=60 + CYCLES)):
        print(f"rank {rank}, {CYCLES} cycles: {found}")
        # The interpreter's own caches grow now and then; what is left of each cycle grows in every window.
        sizes = [one.pop("bytes") for one in found]
        grown = min(after - before for before, after in zip(sizes, sizes[1:]))
        assert grown < 16 * (CYCLES // WINDOWS), f"{grown} bytes more in each {CYCLES // WINDOWS} cycles"
        assert found[0]["threads"] >= 1 and all(one == {**found[0], "threads": 1} for one in found[1:])


def count_symmetric(rank, custom, path):
    hide_torch()
    os.environ.update(VERBENA_SYMM_PATH=path, VERBENA_IBVERBS_LIB="softverbs")
    with pytest.raises(RuntimeError, match="there are no groups"):
        vd.enable_symmetric_memory()
    made = []
    real = SymmetricContext.from_all_gather.__func__
    SymmetricContext.from_all_gather = classmethod(lambda *rest: made.append(real(*rest)) or made[-1])
    init_dist_env(tensor_model_parallel_size=2, timeout=PATIENCE_S, custom_groups={f"g{i}": [2, 0, 1, 3] for i in range(custom)})
    context = vd.enable_symmetric_memory()
    assert made == [context] and vd.enable_symmetric_memory() is context
    names = ["world", "tp", "pp", "dp", "ep", *(f"g{i}" for i in range(custom))]
    teams = {name: get_group(name).team for name in names}
    for name, team in teams.items():
        assert [team.world_rank(member) for member in range(team.size)] == get_group(name).ranks, name
        assert team.rank == get_group(name).rank_in_group
    window = context.allocate(4096)
    left = count_left()
    reached = [rank for rank in range(4) if window.peer_address(rank) is not None]
    for peer in reached:
        window.host_view(peer)[rank] = rank + 1
    context.barrier()
    assert all(window.host_view()[peer] == peer + 1 for peer in reached)
    destroy_dist_env()
    with pytest.raises(ValueError, match="closed"):
        window.address
    return left, reached


@pytest.mark.parametrize("path", ["auto", "rdma"])
def test_groups_share_windows_and_registrations(path):
    """One window serves all groups. Additional groups need no descriptor, mapping or thread, because nothing is registered again."""
    few, many = run_ranks(4, count_symmetric, 0, path), run_ranks(4, count_symmetric, 6, path)
    for (left, reached), (left_many, reached_many) in zip(few, many, strict=True):
        for counts in (left, left_many):
            del counts["bytes"]
            if path == "rdma":
                del counts["descriptors"]  # softverbs opens some when a peer first calls
        assert left == left_many
        assert reached == reached_many == ([0, 1, 2, 3] if path == "auto" else reached)


@needs_torch
@on_ranks(4)
def test_tensors(rank):
    import torch
    init_dist_env(tensor_model_parallel_size=2, data_parallel_size=2, timeout=PATIENCE_S)
    tp, dp, world = get_tp_group(), get_group("dp"), get_group("world")
    x = torch.full((3, 4), float(rank + 1), dtype=torch.bfloat16)
    sums = {group.unique_name: group.all_reduce(x).float()[0, 0].item() for group in (tp, dp)}
    gathered = tp.all_gather(torch.tensor([[rank, rank]])).tolist()
    scattered = tp.reduce_scatter(torch.arange(4.0) * (rank + 1), dim=0).tolist()
    sent = {"a": torch.arange(3) + 5, "n": 7, "h": torch.ones(2, 2, dtype=torch.float16)}
    got = world.broadcast_tensor_dict(sent if rank == 2 else None, src=2)
    assert list(got) == list(sent)
    got_tp = tp.broadcast_tensor_dict({"z": torch.tensor(1.5)} if tp.is_first_rank else None)
    residual, weight = torch.ones(1, 4), torch.full((4,), 2.0)
    norm, added = tp.fused_allreduce_rmsnorm(torch.ones(1, 4), residual, weight, 0.0)
    if tp.is_first_rank:
        tp.send(torch.tensor([9, 8]))
        tp.send_object({"text": "x" * 1000}, 1)
        tp.send_tensor_dict({"t": torch.ones(2), "who": "me"})
    else:
        assert tp.recv((2,), torch.int64).tolist() == [9, 8]
        assert tp.recv_object(0) == {"text": "x" * 1000}
        received = tp.recv_tensor_dict()
        assert received["t"].tolist() == [1, 1] and received["who"] == "me"
    assert world.broadcast(torch.full((2,), rank), src=3).tolist() == [3, 3]
    assert world.broadcast_object_list([rank, "x"], src=1) == [1, "x"]
    with world.graph_capture() as capture:
        assert capture.stream is None or torch.cuda.is_available()
    with vd.graph_capture() as capture:
        assert capture.stream is None or torch.cuda.is_available()
    world.barrier()
    with pytest.raises(RuntimeError, match="torch.distributed is not initialized"):
        tp.cpu_group
    turned = torch.tensor([1 + 2j]).conj()
    assert tp.all_gather(turned, 0).tolist() == [1 - 2j] * 2
    assert not torch.distributed.is_initialized()
    destroy_dist_env()
    assert sums == {"tp:0": 3 if rank < 2 else 7, "dp:0": 4 if rank % 2 == 0 else 6}
    assert gathered == ([[0, 0, 1, 1]] if rank < 2 else [[2, 2, 3, 3]])
    assert scattered == ([0, 3], [6, 9], [0, 7], [14, 21])[rank]
    assert [got["a"].tolist(), got["n"], got["h"].dtype == torch.float16] == [[5, 6, 7], 7, True] and got_tp["z"].item() == 1.5
    assert norm.tolist() == [[2.0] * 4] and added.tolist() == [[3.0] * 4]


@needs_torch
@on_ranks(3)
def test_shapes_and_types(rank):
    """Compares the result for every shape and type with the sum of the ranks' known inputs."""
    import torch
    init_dist_env(tensor_model_parallel_size=3, timeout=PATIENCE_S)
    tp = get_tp_group()

    def fill(of, shape, dtype):
        numbers = torch.arange(int(torch.tensor(shape).prod()) if shape else 1, dtype=torch.float32)
        return ((numbers * 7 + of * 3) % 11).to(dtype).reshape(shape)

    for dtype in (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int32, torch.int64, torch.uint8):
        for shape in ((), (1,), (0,), (3, 0), (3, 5), (2, 3, 6), (1021,)):
            inputs = [fill(of, shape, dtype) for of in range(3)]
            mine = inputs[rank]
            wide = sum(one.to(torch.float64) for one in inputs)
            assert torch.equal(tp.all_reduce(mine).to(torch.float64), wide), (dtype, shape)
            assert torch.equal(mine, inputs[rank])
            for dim in range(len(shape)):
                assert torch.equal(tp.all_gather(mine, dim), torch.cat(inputs, dim)), (dtype, shape, dim)
                part = tp.gather(mine, dst=1, dim=dim)
                assert (part is None) == (rank != 1) and (part is None or torch.equal(part, torch.cat(inputs, dim)))
                if shape[dim] % 3 == 0:
                    assert torch.equal(tp.reduce_scatter(mine, dim).to(torch.float64), wide.chunk(3, dim)[rank] if shape[dim]
                                       else wide), (dtype, shape, dim)
    for turned in (fill(rank, (4, 6), torch.float32).t(), fill(rank, (6, 9), torch.float32)[::2, 1::3]):  # not contiguous
        assert torch.equal(tp.all_reduce(turned), sum(tp._share(turned.contiguous())))
    sizes = [2, 0, 3]
    assert tp.all_gatherv(torch.full((sizes[rank], 2), rank), sizes=sizes).tolist() == [[0, 0]] * 2 + [[2, 2]] * 3
    assert tp.reduce_scatterv(torch.ones(5, 2), 0, sizes).tolist() == [[3, 3]] * sizes[rank]
    assert tp.reduce_scatterv(torch.ones(2, 5), sizes=sizes).tolist() == [[3] * sizes[rank]] * 2
    for call in (tp.all_gather, tp.reduce_scatter, tp.all_gatherv, tp.reduce_scatterv):
        for others in (True, torch.ones(2)):  # AITER's use_custom, SGLang's output
            with pytest.raises(TypeError, match="dim must be an integer"):
                call(torch.ones(3), others)
    tp.device_communicator = object()  # without all_gatherv: through the host
    assert tp.all_gatherv(torch.full((sizes[rank], 2), rank), sizes=sizes).tolist() == [[0, 0]] * 2 + [[2, 2]] * 3
    tp.device_communicator = None
    with pytest.raises(ValueError, match="is not divisible by 3"):
        tp.reduce_scatter(torch.ones(4), 0)
    with pytest.raises(ValueError, match="one entry for each of 3 ranks"):
        tp.all_gatherv(torch.ones(2), sizes=[2, 0])
    with pytest.raises(ValueError, match="the size of dimension -1"):
        tp.reduce_scatterv(torch.ones(6), sizes=sizes)
    destroy_dist_env()


def cycle_with_torch(rank):
    def once():
        init_dist_env(tensor_model_parallel_size=2, timeout=PATIENCE_S)
        import torch
        assert get_tp_group().all_reduce(torch.ones(3)).tolist() == [2, 2, 2]
        destroy_dist_env()

    once()
    before = count_left()
    for _ in range(10):
        once()
    after = count_left()
    return [{name: count[name] for name in ("descriptors", "names")} for count in (before, after)]


@needs_torch
def test_nothing_is_left_with_torch():
    for before, after in run_ranks(2, cycle_with_torch):
        assert before == after


def keep_the_applications_group(rank):
    import torch
    import torch.distributed as dist
    store = dist.TCPStore("127.0.0.1", int(os.environ["STORE_PORT"]), 2, is_master=False)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=2)
    init_dist_env(tensor_model_parallel_size=2, timeout=PATIENCE_S)
    tp = get_tp_group()
    total = tp.all_reduce(torch.tensor([rank + 1.0])).item()
    if int(torch.__version__.split(".")[0]) >= 2:
        assert dist.get_world_size(tp.cpu_group) == 2
        queue = MessageQueue.create_from_process_group(tp.cpu_group, 4096, 4)  # as engines make it
        assert queue.broadcast_object("engine's" if tp.is_first_rank else None) == "engine's"
        assert vd.in_the_same_node_as(tp.cpu_group) == [True, True]
        queue.shutdown()
    else:
        with pytest.raises(RuntimeError, match="needs PyTorch 2.0"):
            tp.cpu_group
    destroy_dist_env()
    assert dist.is_initialized()
    dist.destroy_process_group()
    return total


@needs_torch
def test_the_applications_group_is_used_and_left(monkeypatch):
    import torch.distributed as dist
    store = dist.TCPStore("127.0.0.1", 0, 2, is_master=True, wait_for_workers=False)
    monkeypatch.setenv("STORE_PORT", str(store.port))
    assert run_ranks(2, keep_the_applications_group) == [3, 3]


class Communicator:
    """An engine's own."""
    is_capturing = False

    def all_reduce(self, input_):
        return f"reduced {input_}, {'captured' if self.is_capturing else 'eager'}"

    def broadcast(self, tensor, root):
        return f"broadcast from {root}"

    def all_reduce_quantised(self, tensor, codec):
        return f"reduced {tensor} as {codec}"

    def fused_allreduce_rmsnorm(self, input_, residual, weight, eps):
        return "fused", eps

    @contextlib.contextmanager
    def capture(self):
        self.is_capturing = True
        yield
        self.is_capturing = False


@on_ranks(2)
def test_a_device_communicator_is_taken_instead(rank):
    hide_torch()
    init_dist_env(tensor_model_parallel_size=2, timeout=PATIENCE_S)
    get_tp_group().device_communicator = Communicator()
    found = [vd.tensor_model_parallel_all_reduce("x"), vd.tensor_model_parallel_fused_allreduce_rmsnorm("x", "r", "w", 0.5)]
    with get_tp_group().graph_capture(vd.GraphCaptureContext("stream")) as capture:
        found += [capture.stream, get_tp_group().all_reduce("y")]
    found.append(get_tp_group().all_reduce("z"))
    found += [get_tp_group().all_reduce("q", ca_fp8_quant=True), vd.tensor_model_parallel_all_reduce("q", open_fp8_quant=True)]
    with pytest.raises(TypeError, match="ca_fp8_quant must be True or False, not str"):
        get_tp_group().all_reduce("q", "sum")
    found.append(get_tp_group().broadcast(types.SimpleNamespace(is_cuda=True), 1))
    get_tp_group().device_communicator = types.SimpleNamespace(all_reduce=Communicator().all_reduce)
    found.append(get_tp_group().all_reduce("exact", True))
    destroy_dist_env()
    assert found == ["reduced x, eager", ("fused", 0.5), "stream", "reduced y, captured", "reduced z, eager", "reduced q as fp8",
                     "reduced q as fp8", "broadcast from 1", "reduced exact, eager"]


def test_a_communicator_of_the_library_takes_what_a_group_gives_it():
    from verbena.ops import Communicator as Library
    for name, arguments in (("all_reduce", ["x"]), ("all_reduce_quantised", ["x", "fp8"]), ("all_gather", ["x", 0]), ("broadcast", ["x", 1]),
                            ("reduce_scatter", ["x", 0]), ("fused_allreduce_rmsnorm", ["x", "residual", "weight", 1e-6])):
        inspect.signature(getattr(Library, name)).bind(None, *arguments)


ROOT = pathlib.Path(__file__).resolve().parents[2]
PROGRAM = ROOT / "python/examples/groups.py"


def run_in_two_shells(make_command, environment):
    """What each said; it takes part in tensors only if this Python has PyTorch."""
    with reserve_port() as holder:
        shared = {**os.environ, "PYTHONPATH": str(ROOT / "python"), "MASTER_ADDR": "127.0.0.1",
                  "VERBENA_BOOTSTRAP_PORT": str(holder.getsockname()[1]), **environment}
        shells = [subprocess.Popen(make_command(rank), env={**shared, "RANK": str(rank)}, stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE, text=True) for rank in range(2)]
        try:
            said = [shell.communicate(timeout=PATIENCE_S * 2) for shell in shells]
        finally:
            for shell in shells:
                shell.kill()
    assert [shell.returncode for shell in shells] == [0, 0], said
    return [out.splitlines() for out, _ in said]


def expect_of_program(rank):
    lines = [f"rank {rank} of 2, tensor parallel with [0, 1]"]
    lines += [f"rank {rank}: {{'step': {step}, 'requests': [{10 * step}, {10 * step + 1}]}}" for step in range(3)]
    return lines + ([f"rank {rank}: the sum is 3.0"] if importlib.util.find_spec("torch") else [])


def test_documented_program():
    page = (ROOT / "docs/distributed.md").read_text(encoding="utf-8")
    assert f"```python\n{PROGRAM.read_text(encoding='utf-8')}```" in page
    assert "\n".join(expect_of_program(0)[:4]) in page
    said = run_in_two_shells(lambda _: [sys.executable, str(PROGRAM)], {"WORLD_SIZE": "2", "MASTER_PORT": "1"})
    assert said == [expect_of_program(0), expect_of_program(1)]


@needs_torch
def test_documented_program_by_torchrun():
    import torch
    if int(torch.__version__.split(".")[0]) < 2:
        pytest.skip(f"torchrun of PyTorch {torch.__version__} does not start under Python 3.11")
    with reserve_port() as holder:
        port = str(holder.getsockname()[1])
        said = run_in_two_shells(lambda rank: [
            sys.executable, "-m", "torch.distributed.run", "--nnodes", "2", "--node_rank", str(rank), "--nproc_per_node", "1",
            "--master_addr", "127.0.0.1", "--master_port", port, str(PROGRAM)], {})
    assert [line for lines in said for line in lines if line.startswith("rank ")] == expect_of_program(0) + expect_of_program(1)
