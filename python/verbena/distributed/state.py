"""Creates all groups of the process. The number of exchanges between the ranks does not depend on the number of groups."""
import contextlib
import dataclasses
import functools
import json
import os
import urllib.parse
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Any

from verbena.context import SymmetricContext
from verbena.distributed.coordinator import GraphCaptureContext, GroupCoordinator, side_stream
from verbena.distributed.exchange import Exchange, Pairs, Ranks, gather_bytes
from verbena.distributed.layout import Groups, check_custom, lay_out_engine
from verbena.distributed.message_queue import Handle, MessageQueue

QUEUE_CHUNK_BYTES, QUEUE_CHUNKS = 4 << 20, 6
_DEFAULT_TIMEOUT_S = 120
# Names of backends that engines pass. The name has no effect: tensors are always sent over the ranks' connections or by a device
# communicator.
BACKENDS = ("gloo", "cpu:gloo", "nccl", "cpu:gloo,cuda:nccl")


@dataclasses.dataclass
class _World:
    ranks: Exchange
    pairs: Pairs | None  # None if there is one rank
    group: GroupCoordinator
    owns_ranks: bool
    timeout: float | None

    @property
    def is_one_host(self) -> bool:
        return self.pairs is None or self.pairs.is_one_host


@dataclasses.dataclass
class _State:
    sizes: dict[str, Any]
    lists: dict[str, Groups]
    groups: dict[str, GroupCoordinator]
    context: SymmetricContext | None = None


_world: _World | None = None
_state: _State | None = None


def _forget() -> None:
    global _world, _state
    _world = _state = None


# A forked child must not free its parent's groups, so it drops its references without freeing the groups.
os.register_at_fork(after_in_child=_forget)


def init_dist_env(tensor_model_parallel_size: int = 1, rankID: int | None = None, backend: str = "cpu:gloo,cuda:nccl",
                  distributed_init_method: str = "env://", local_rank: int = -1, data_parallel_size: int = 1,
                  data_parallel_rank: int = 0, *, pipeline_model_parallel_size: int = 1,
                  prefill_context_model_parallel_size: int = 1, decode_context_model_parallel_size: int = 1,
                  custom_groups: Mapping[str, Sequence[Any]] | None = None, use_message_queue_broadcaster: bool = True,
                  members: Sequence[int] | None = None, timeout: float | None = None, exchange: Exchange | None = None) -> None:
    """Calls init_distributed_environment() and initialize_model_parallel(). If either call fails, nothing changes. Collective.

    The launcher's environment variables give the rank and the number of ranks. With `rankID`, the rank and the number of ranks are computed
    from the position in the grid DP x PP x PCP x TP instead. A second call only checks that its sizes are the same as in the first call."""
    world_size = rank = -1
    if rankID is not None:
        inner = tensor_model_parallel_size * pipeline_model_parallel_size * prefill_context_model_parallel_size
        world_size, rank = data_parallel_size * inner, data_parallel_rank * inner + rankID
    had_world = _world is not None
    init_distributed_environment(world_size, rank, distributed_init_method, local_rank, backend, timeout, members=members,
                                 exchange=exchange)
    try:
        ensure_model_parallel_initialized(
            tensor_model_parallel_size, pipeline_model_parallel_size, prefill_context_model_parallel_size,
            decode_context_model_parallel_size, data_parallel_size=data_parallel_size, custom_groups=custom_groups,
            use_message_queue_broadcaster=use_message_queue_broadcaster)
    except BaseException:
        if not had_world:
            destroy_distributed_environment()
        raise


def init_distributed_environment(world_size: int = -1, rank: int = -1, distributed_init_method: str = "env://",
                                 local_rank: int = -1, backend: str = "nccl", timeout: float | timedelta | None = None, *,
                                 members: Sequence[int] | None = None, exchange: Exchange | None = None) -> None:
    """Connects all ranks, and creates the world group. Collective. A second call only checks that the rank and the number of ranks
    are the same as in the first call.

    Security: ranks exchange pickled objects, so every rank can run code on every other rank. Connections are authenticated by the job key
    (VERBENA_JOB_KEY_FILE) or by a secret that the ranks exchanged. Ranks on several hosts need a job key, or VERBENA_INSECURE=1.

    Errors: if a rank is missing or dies during the call, VerbenaError names this rank on every other rank within `timeout` seconds.
    torch.distributed is neither needed nor initialised.

    Args:
        world_size: the number of ranks; -1 to take it from the launcher (torchrun, Open MPI, PMI, Slurm).
        rank: this rank's number; -1 to take it from the launcher.
        distributed_init_method: "env://", or rank 0's address as "tcp://host:port".
        timeout: the timeout in seconds.
        members: the launcher's ranks that take part, in the order of their new ranks; None for all ranks. The first of these ranks must be
            on the host of the rendezvous. With this argument, a job can continue without a rank that has died, and can later include that
            rank again.
        exchange: an Exchange that already connects the ranks; None to connect them in this call.
    """
    global _world
    if backend not in BACKENDS:
        raise ValueError(f"unknown backend {backend}. Use one of {', '.join(BACKENDS)}")
    if _world is not None:
        own, count = _world.ranks.rank, _world.ranks.size
        if members is None and ((rank not in (-1, own)) or (world_size not in (-1, count))):
            raise RuntimeError(f"this process already is rank {own} of {count} and cannot become rank {rank} of {world_size}. "
                               "Call destroy_distributed_environment() first")
        return
    if isinstance(timeout, timedelta):
        timeout = timeout.total_seconds()
    ranks = exchange
    if ranks is None:
        host, port = _find_host(distributed_init_method)
        ranks = Ranks(*_find_place(world_size, rank, members), host, port, timeout)
    with contextlib.ExitStack() as undo:
        if exchange is None:
            undo.callback(ranks.close)  # type: ignore[attr-defined]
        pairs = None
        if ranks.size > 1:
            pairs = Pairs(ranks, _DEFAULT_TIMEOUT_S if timeout is None else timeout)
            undo.callback(pairs.close)
        group = GroupCoordinator("world", 0, list(range(ranks.size)), ranks.rank, _find_local_rank(local_rank), pairs)
        _world = _World(ranks, pairs, group, exchange is None, timeout)
        undo.pop_all()


def initialize_model_parallel(tensor_model_parallel_size: int = 1, pipeline_model_parallel_size: int = 1,
                              prefill_context_model_parallel_size: int = 1,
                              decode_context_model_parallel_size: int | None = 1, backend: str | None = None, *,
                              data_parallel_size: int = 1, custom_groups: Mapping[str, Sequence[Any]] | None = None,
                              use_message_queue_broadcaster: bool = True) -> None:
    """Creates the groups TP, DCP, PCP, PP, DP and EP of the grid ExternalDP x DP x PP x PCP x TP, and custom groups. Creates a
    message queue from the first rank of each TP group to the other ranks of that group. Collective over the world. The ranks exchange data
    twice, however many groups there are."""
    global _state
    if backend not in (None, *BACKENDS):
        raise ValueError(f"unknown backend {backend}. Use one of {', '.join(BACKENDS)}")
    if _state is not None:
        raise RuntimeError("the groups already exist. Call destroy_model_parallel() first")
    world = _get_world()
    sizes = _name_sizes(tensor_model_parallel_size, pipeline_model_parallel_size, prefill_context_model_parallel_size,
                        decode_context_model_parallel_size, data_parallel_size, custom_groups)
    with contextlib.ExitStack() as undo:
        made = _make_groups(world, sizes, use_message_queue_broadcaster, undo)
        undo.pop_all()
        _state = made


def ensure_model_parallel_initialized(tensor_model_parallel_size: int = 1, pipeline_model_parallel_size: int = 1,
                                      prefill_context_model_parallel_size: int = 1,
                                      decode_context_model_parallel_size: int | None = 1, backend: str | None = None, *,
                                      data_parallel_size: int = 1,
                                      custom_groups: Mapping[str, Sequence[Any]] | None = None,
                                      use_message_queue_broadcaster: bool = True) -> None:
    """Calls initialize_model_parallel() if there are no groups yet. Otherwise checks that the groups have these sizes."""
    if _state is None:
        return initialize_model_parallel(
            tensor_model_parallel_size, pipeline_model_parallel_size, prefill_context_model_parallel_size,
            decode_context_model_parallel_size, backend, data_parallel_size=data_parallel_size, custom_groups=custom_groups,
            use_message_queue_broadcaster=use_message_queue_broadcaster)
    sizes = _name_sizes(tensor_model_parallel_size, pipeline_model_parallel_size, prefill_context_model_parallel_size,
                        decode_context_model_parallel_size, data_parallel_size, custom_groups)
    if _state.sizes != sizes:
        raise RuntimeError(f"the groups already exist with the sizes {_state.sizes}, which differ from {sizes}. Call "
                           "destroy_dist_env() first")


def enable_symmetric_memory() -> SymmetricContext:
    """Creates one context of symmetric memory for all groups, on the calling thread's GPU, and sets each group's `team`.
    Collective over the world. A second call returns the same context.

    All groups share the context's windows, so memory is registered only once, and there is only one set of queue pairs to each rank.
    After this call, destroy_model_parallel() is collective, and closes the context."""
    state, world = _get_state(), _get_world()
    if state.context is None:
        context = SymmetricContext.from_all_gather(world.ranks.all_gather, world.ranks.rank, world.ranks.size)
        with contextlib.ExitStack() as undo:
            undo.callback(context.close)
            undo.callback(context.abort)
            for name, some in state.lists.items():
                group = state.groups[name]
                color = next(place for place, ranks in enumerate(some) if world.ranks.rank in ranks)
                group.team = context.split(context.world, color, group.rank_in_group)
            undo.pop_all()
        world.group.team = context.world
        state.context = context
    return state.context


def destroy_model_parallel() -> None:
    """Frees all groups except the world group. Collective only if symmetric memory was enabled."""
    global _state
    if _state is None:
        return
    state, _state = _state, None
    with contextlib.ExitStack() as ends:  # all callbacks run, even if one of them raises an exception
        if state.context is not None:
            ends.callback(state.context.close)
            _get_world().group.team = None
        for group in state.groups.values():
            ends.callback(group.destroy)


def destroy_distributed_environment() -> None:
    """Destroys the world group and all other groups."""
    global _world
    if _world is None:
        return
    with contextlib.ExitStack() as ends:
        world = _world
        if world.owns_ranks:
            ends.callback(world.ranks.close)  # type: ignore[attr-defined]
        if world.pairs is not None:
            ends.callback(world.pairs.close)
        ends.callback(world.group.destroy)
        ends.callback(destroy_model_parallel)
        ends.pop_all().close()
    _world = None


destroy_dist_env = destroy_distributed_environment


def is_initialized() -> bool:
    return _state is not None


model_parallel_is_initialized = is_initialized


def get_group(name: str) -> GroupCoordinator:
    """Returns this rank's group with the given name: "world", "tp", "dcp", "pcp", "pp", "dp", "ep", "eplb", or the name of a
    custom group."""
    if name == "world":
        return _get_world().group
    groups = _get_state().groups
    if name not in groups:
        raise ValueError(f"there is no group {name!r}; the groups are world, {', '.join(groups)}")
    return groups[name]


get_world_group = functools.partial(get_group, "world")
get_tp_group = functools.partial(get_group, "tp")
get_pp_group = functools.partial(get_group, "pp")
get_dp_group = functools.partial(get_group, "dp")
get_pcp_group = functools.partial(get_group, "pcp")
get_dcp_group = functools.partial(get_group, "dcp")
get_ep_group = functools.partial(get_group, "ep")
# A group with the same ranks as the EP group, whose messages are separate from the messages of the EP group.
get_eplb_group = functools.partial(get_group, "eplb")


def get_tensor_model_parallel_world_size() -> int:
    return get_tp_group().world_size


def get_tensor_model_parallel_rank() -> int:
    return get_tp_group().rank_in_group


@contextlib.contextmanager
def graph_capture(device: Any = None) -> Iterator[GraphCaptureContext]:
    """Surrounds the capture of CUDA graphs that use the TP, PP or DP group. Makes one side stream current, and calls the method capture()
    of the groups' device communicators."""
    with contextlib.ExitStack() as stack:
        context = stack.enter_context(side_stream(device))
        for group in (get_tp_group(), get_pp_group(), get_dp_group()):
            stack.enter_context(group.graph_capture(context))
        yield context


def tensor_model_parallel_all_reduce(input_: Any, open_fp8_quant: bool = False) -> Any:
    return get_tp_group().all_reduce(input_, open_fp8_quant)


def tensor_model_parallel_all_gather(input_: Any, dim: int = -1) -> Any:
    return get_tp_group().all_gather(input_, dim)


def tensor_model_parallel_reduce_scatter(input_: Any, dim: int = -1) -> Any:
    return get_tp_group().reduce_scatter(input_, dim)


def tensor_model_parallel_fused_allreduce_rmsnorm(input_: Any, residual: Any, weight: Any, eps: float) -> tuple[Any, Any]:
    return get_tp_group().fused_allreduce_rmsnorm(input_, residual, weight, eps)


def _get_world() -> _World:
    if _world is None:
        raise RuntimeError("the ranks are not connected. Call init_dist_env() or init_distributed_environment() first")
    return _world


def _get_state() -> _State:
    if _state is None:
        raise RuntimeError("there are no groups. Call init_dist_env() or initialize_model_parallel() first")
    return _state


def _name_sizes(tp: int, pp: int, pcp: int, dcp: int | None, dp: int,
                custom: Mapping[str, Sequence[Any]] | None) -> dict[str, Any]:
    return {"tp": tp, "pp": pp, "dp": dp, "pcp": pcp, "dcp": dcp or 1,
            "custom": {name: [[*one] if isinstance(one, Iterable) else one for one in ranks]
                       for name, ranks in (custom or {}).items()}}


def _find_place(world_size: int, rank: int, members: Sequence[int] | None) -> tuple[int | None, int | None]:
    if (world_size < 0) != (rank < 0):
        raise ValueError(f"rank is {rank} and world_size is {world_size}. Give both, or neither (-1)")
    if members is None:
        return (None, None) if world_size < 0 else (rank, world_size)
    own = int(os.environ["RANK"]) if rank < 0 else rank
    if own not in members:
        raise ValueError(f"rank {own} is not among the members {list(members)}")
    return list(members).index(own), len(members)


def _find_host(method: str) -> tuple[str | None, int]:
    if method == "env://":
        return None, 0
    url = urllib.parse.urlparse(method)
    if url.scheme != "tcp" or url.hostname is None or url.port is None:
        raise ValueError(f"distributed_init_method {method} is not supported. Use env:// or tcp://host:port")
    return url.hostname, url.port


def _find_local_rank(local_rank: int) -> int:
    return int(os.environ.get("LOCAL_RANK", "0")) if local_rank < 0 else local_rank


def _do_together(ranks: Exchange, step: Callable[[], Any]) -> list[Any]:
    """Calls step() on each rank, and returns the results of all ranks. Collective. If step() fails on one rank, the call fails on all
    ranks. If a rank has died, the errors on all other ranks name this rank, even on ranks where step() failed because of its death. Results
    are sent as JSON, so that this function never unpickles bytes from other ranks."""
    failure = None
    try:
        told = json.dumps([None, step()])
    except Exception as error:
        failure = error
        told = json.dumps([f"{type(error).__name__}: {error}", None])
    try:
        gathered = [json.loads(one) for one in gather_bytes(ranks, told.encode())]
    except Exception as error:
        raise error from failure
    if failure is not None:
        raise failure
    for rank, (problem, _) in enumerate(gathered):
        if problem is not None:
            raise RuntimeError(f"rank {rank}: {problem}")
    return [result for _, result in gathered]


def _lay_out(world: _World, sizes: dict[str, Any]) -> dict[str, Groups]:
    lists = lay_out_engine(world.ranks.size, sizes["tp"], sizes["pp"], sizes["dp"], sizes["pcp"], sizes["dcp"])
    lists["eplb"] = lists["ep"]
    taken = {"world", *lists} & set(sizes["custom"])
    if taken:
        raise ValueError(f"custom groups cannot be called {', '.join(sorted(taken))}, because groups with these names exist already")
    return lists | {name: check_custom(world.ranks.size, custom) for name, custom in sizes["custom"].items()}


def _make_groups(world: _World, sizes: dict[str, Any], wants_queue: bool, undo: contextlib.ExitStack) -> _State:
    ranks = world.ranks
    asked = [sizes, wants_queue]
    state = _State(sizes, {}, {})
    queues: list[MessageQueue] = []

    def make() -> Any:
        state.lists = _lay_out(world, sizes)
        for number, (name, some) in enumerate(state.lists.items(), 1):
            own = next(group for group in some if ranks.rank in group)
            state.groups[name] = GroupCoordinator(name, number, own, ranks.rank, world.group.local_rank, world.pairs)
        tp = state.groups["tp"]
        readers = tp.ranks[1:]
        if wants_queue and readers and tp.is_first_rank:
            queues.append(MessageQueue(len(readers), len(readers) if world.is_one_host else None,
                                       max_chunk_bytes=QUEUE_CHUNK_BYTES, max_chunks=QUEUE_CHUNKS, reader_ranks=readers))
            undo.callback(queues[0].shutdown)
        return [asked, queues[0].export_handle().to_bytes().hex() if queues else None]

    # One exchange compares the requested groups and distributes the handles of the queues.
    told = _do_together(ranks, make)
    for rank, (other, _) in enumerate(told):
        if other != asked:
            raise RuntimeError(f"the ranks request different groups: rank {rank} {other}, rank {ranks.rank} {asked}")
    tp = state.groups["tp"]

    def attach() -> None:
        if not wants_queue or tp.world_size == 1:
            return
        if not queues:
            handle = Handle.from_bytes(bytes.fromhex(told[tp.first_rank][1]))
            queues.append(MessageQueue.create_from_handle(handle, ranks.rank))
            undo.callback(queues[0].shutdown)
        queues[0].wait_until_ready(world.timeout)
        tp.mq_broadcaster = queues[0]

    _do_together(ranks, attach)
    return state
