"""Tests collectives on tensors, their operators, and the engines' classes over them, on emulated GPUs. PyTorch's CPU tensors lie in the
memory of the emulated GPUs (tests/ops/fake_gpu.cc)."""
import ctypes
import json
import os
import pathlib
import textwrap
import time

import pytest

import driver
import verbena
from ranks import on_ranks, run_ranks

torch = pytest.importorskip("torch")

BLOCKS = 2  # a thread of an emulated GPU takes a stack


def _make(rank, context, **options):
    from verbena.ops import Communicator
    return Communicator(context, blocks=BLOCKS, **options)


def _draw(rank, shape, dtype):
    generator = torch.Generator().manual_seed(1000 + rank)
    return torch.randint(-40, 40, shape, generator=generator).to(dtype)


def _synchronize():
    driver.call("cuStreamSynchronize", None)


@pytest.mark.parametrize("count", [2, 3])
@on_ranks("count")
def test_reductions(rank, count):
    with driver.open_context(rank) as context, _make(rank, context) as ops:
        size = ops.size
        assert (ops.rank, size) == (rank, context.size)
        for dtype in (torch.bfloat16, torch.float16, torch.float32, torch.int32):
            shape = (5, 2 * size, 3)
            parts = [_draw(other, shape, dtype) for other in range(size)]
            mine, total = parts[rank].clone(), sum(part.to(torch.float64) for part in parts)
            wide = torch.stack([part.to(torch.float64) for part in parts])
            results = {"sum": total, "max": wide.amax(0), "min": wide.amin(0)}
            got = {name: ops.all_reduce(mine, name) for name in results}
            if hasattr(torch.distributed.ReduceOp.SUM, "name"):  # not in PyTorch 1
                results |= {"SUM of torch": total, "MAX of torch": results["max"]}
                for name in ("SUM", "MAX"):
                    got[f"{name} of torch"] = ops.all_reduce(mine, op=getattr(torch.distributed.ReduceOp, name))
            scattered = ops.reduce_scatter(mine, dim=1)
            _synchronize()
            for name, expected in results.items():
                assert torch.equal(got[name].to(torch.float64), expected), (dtype, name)
            assert torch.equal(scattered.to(torch.float64), total[:, 2 * rank:2 * rank + 2])
            assert ops.all_reduce(mine, out=mine) is mine
            _synchronize()
            assert torch.equal(mine.to(torch.float64), total)
        with pytest.raises(TypeError, match="torch.int64 cannot be reduced.*torch.bfloat16.*torch.distributed"):
            ops.all_reduce(torch.zeros(3, dtype=torch.int64))
        for wrong in ("product", torch.distributed.ReduceOp.BAND):
            with pytest.raises(ValueError, match="the reduction .* is not supported. Use sum, mean"):
                ops.all_reduce(mine, wrong)
        for call in (ops.all_gather, ops.reduce_scatter):
            with pytest.raises(TypeError, match="dim"):
                call(mine)
        assert repr(ops) == f"<verbena.ops.Communicator, rank {rank} of {size}, last call all_reduce of {mine.numel() * mine.element_size()} bytes by ONE_SHOT>"
        ops.check_error()


@pytest.mark.parametrize("count", [2, 3])
@on_ranks("count")
def test_exchanges(rank, count):
    from verbena.ops import Algorithm, Choice
    with driver.open_context(rank) as context, _make(rank, context) as ops:
        size = ops.size
        parts = [_draw(other, (4, 2, 6), torch.bfloat16) for other in range(size)]
        gathered = [ops.all_gather(parts[rank], dim) for dim in (0, 1, -1)]
        bulk = ops.all_gather(parts[rank], 1, choice=Choice(Algorithm.BULK_ONE_SHOT, BLOCKS, 64))
        swapped = ops.all_to_all(parts[rank], split_dim=2, concat_dim=0)
        root = ops.broadcast(parts[rank].clone(), size - 1)
        _synchronize()
        for dim, one in zip((0, 1, -1), gathered):
            assert torch.equal(one, torch.cat(parts, dim)), dim
        assert torch.equal(bulk, torch.cat(parts, 1))
        assert torch.equal(swapped, torch.cat([part.chunk(size, 2)[rank] for part in parts], 0))
        assert torch.equal(root, parts[size - 1])
        counts = torch.tensor([3 * other for other in range(size)])
        rows = [_draw(other, (3 * other, 5), torch.float32) for other in range(size)]
        out = ops.all_gather_v(rows[rank], counts, torch.zeros(int(counts.sum()), 5))
        together = torch.cat(rows)  # a host's allocator knows nothing of streams: what is under way stays
        sums = ops.reduce_scatter_v(together, counts, torch.zeros(3 * rank, 5))
        # Rank a sends a + b rows to rank b.
        send = torch.tensor([rank + other for other in range(size)])
        sent = [torch.full((a + b, 2), float(10 * a + b)) for a in range(size) for b in range(size)]
        mine = torch.cat(sent[rank * size:(rank + 1) * size])
        received = ops.all_to_all_v(mine, send, send, torch.zeros(int(send.sum()), 2))
        _synchronize()
        ops.check_error()
        assert torch.equal(out, together)
        assert torch.equal(sums, rows[rank] * size)
        assert torch.equal(received, torch.cat([sent[other * size + rank] for other in range(size)]))
        with ops.group(parts[rank]):
            first = ops.all_reduce(parts[rank])
            second = ops.all_gather(parts[rank], 0)
        _synchronize()
        assert torch.equal(first.to(torch.float64), sum(part.to(torch.float64) for part in parts))
        assert torch.equal(second, torch.cat(parts))


@on_ranks(3)
def test_copy_engines(rank):
    from verbena.ops import Algorithm, Choice
    driver.use_gpu(rank)
    engines = Choice(Algorithm.COPY_ENGINES)
    with verbena.SymmetricContext.from_environment() as context, _make(rank, context) as ops, \
            context.allocate(1 << 12) as window:
        size = ops.size
        whole = torch.frombuffer((ctypes.c_uint8 * (1 << 12)).from_address(window.address), dtype=torch.uint8)
        for turn in range(3):
            parts = [torch.full((100,), 10 * turn + other, dtype=torch.uint8) for other in range(size)]
            out = whole[16:16 + 100 * size]
            ops.all_gather(parts[rank], 0, out=out, choice=engines)
            _synchronize()
            ops.check_error()
            assert torch.equal(out, torch.cat(parts)), turn
            context.barrier()
        with pytest.raises(verbena.VerbenaError, match="needs an output in a window"):
            ops.all_gather(parts[rank], 0, choice=engines)
        with pytest.raises(verbena.VerbenaError, match="support all-gathers only"):
            ops.all_reduce(torch.ones(3), choice=engines)


@on_ranks(2)
def test_the_lines_of_the_readme(rank):
    """Runs the unchanged lines of README.md without a GPU: tensors lie in host memory, and calls captured by a graph run at once."""
    import contextlib
    import re
    from verbena import ops
    text = (pathlib.Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
    program = textwrap.dedent(re.search(r"\n## Ten lines of Python\n\n((?:    .*\n)+)", text)[1]).replace('device="cuda"', 'device="cpu"')
    assert "tp.all_reduce(x)" in program and len(program.splitlines()) <= 10
    os.environ["LOCAL_RANK"] = str(rank)
    seen, communicator = [], ops.Communicator

    class Graph:
        def replay(self):
            _synchronize()
            seen.append(True)

    torch.cuda.set_device = driver.use_gpu
    torch.cuda.CUDAGraph, torch.cuda.graph = Graph, contextlib.nullcontext
    ops.Communicator = lambda context: communicator(context, blocks=BLOCKS)
    names = {}
    exec(program, names)
    assert seen and torch.equal(names["y"], torch.full((8, 8192), 2, dtype=torch.bfloat16))


def _choose_the_direct_way(rank, tuning):
    os.environ["VERBENA_SYMM_TIMEOUT_MS"] = "400"
    with driver.open_context(rank) as context, context.allocate(1 << 12) as window, \
            _make(rank, context, tuning_file=str(tuning), has_windows=True) as ops:
        inside = torch.frombuffer((ctypes.c_float * 1024).from_address(window.address), dtype=torch.float32)
        for x in (inside[:100], torch.empty(100), inside[101:201], inside[:100]):
            x.fill_(rank + 1)
            context.barrier()  # peers write what lies in windows
            ops.all_reduce(x, out=x)
            _synchronize()
            ops.check_error()
            assert torch.equal(x, torch.full((100,), 3.0))
        # In place ranks meet at a barrier; otherwise they wait for packets.
        for x, awaited in ((inside[:100], "barrier"), (torch.empty(100), "packet")):
            if rank == 0:
                ops.all_reduce(x, out=x)
                _synchronize()
                with pytest.raises(verbena.VerbenaError, match=f"timed out waiting .*{awaited}"):
                    ops.check_error()
            ops.reset()


def test_the_direct_way_is_chosen_in_windows(tmp_path):
    tuning = tmp_path / "tuning.json"
    ways = [{"operation": "all_reduce", "algorithm": algorithm, "gpu": "emulated GPU", "ranks": 2, "threads": 32, "chunk_bytes": 0,
             "points": [[100, 1, us], [10000, 1, us]]} for algorithm, us in (("direct", 1), ("one-shot", 2))]
    tuning.write_text(json.dumps({"format": "verbena-tuning", "version": 1, "notes": {}, "transport": {}, "collectives": [], "ops": ways}))
    run_ranks(2, _choose_the_direct_way, tuning)


@on_ranks(3)
def test_a_peer_that_does_not_come_is_named(rank):
    os.environ["VERBENA_SYMM_TIMEOUT_MS"] = "400"
    with driver.open_context(rank) as context, _make(rank, context) as ops:
        x = torch.full((100,), float(rank + 1))
        if rank != 2:
            ops.all_reduce(x)
            _synchronize()
            with pytest.raises(verbena.VerbenaError, match="timed out waiting for a packet of rank 2") as told:
                ops.check_error()
            assert told.value.result == verbena.Result.TIMEOUT
            # Nothing hangs behind it, and nothing goes on.
            with pytest.raises(verbena.VerbenaError, match="rank 2"):
                ops.all_reduce(x)
        context.barrier()
        ops.reset()
        got = ops.all_reduce(x)
        _synchronize()
        ops.check_error()
        assert torch.equal(got, torch.full((100,), 6.0))


@on_ranks(2)
def test_outputs_of_another_type(rank):
    """Each of these would be written beyond its end."""
    with driver.open_context(rank) as context, _make(rank, context) as ops:
        x, half = torch.zeros(4, 6), torch.bfloat16
        counts = torch.ones(ops.size, dtype=torch.int64)
        for call in (lambda: ops.all_reduce(x, out=x.to(half)), lambda: ops.all_gather(x, 0, out=torch.zeros(4 * ops.size, 6, dtype=half)),
                     lambda: ops.reduce_scatter(x, 0, out=torch.zeros(4 // ops.size, 6, dtype=half)),
                     lambda: ops.all_to_all(x, out=x.to(half)), lambda: ops.all_reduce_quantised(x.to(half), "fp8", out=x.to(torch.int8)),
                     lambda: ops.all_gather_v(x, counts, torch.zeros(4 * ops.size, 6, dtype=half)),
                     lambda: ops.all_to_all_v(x, counts, counts, torch.zeros(4, 6, dtype=half))):
            with pytest.raises(TypeError, match="must be of type .*, not torch"):
                call()
        with pytest.raises(ValueError, match="must be contiguous and have the shape"):
            ops.all_gather_v(x, counts, torch.zeros(4 * ops.size, 5))
        norm = verbena.ops.Norm(None)
        for wrong in (torch.zeros(3, 6, dtype=half), torch.zeros(4, 6, dtype=torch.int8)):
            with pytest.raises(ValueError, match="residual_out must have the shape"):
                ops.rms_norm(x.to(half), norm, residual_out=wrong)


@on_ranks(2)
def test_replays_with_other_counts(rank):
    """Counts change between replays. Tensors have any alignment, and their addresses are used again."""
    with driver.open_context(rank) as context, _make(rank, context) as ops:
        size = ops.size
        x, y = torch.zeros(2, 33), torch.zeros(2, 33)
        counts, rows, out = torch.zeros(size, dtype=torch.int64), torch.zeros(8, 3), torch.zeros(8 * size, 3)
        graph, executable = ctypes.c_void_p(), ctypes.c_void_p()
        driver.call("cuStreamBeginCapture_v2", None, 0)
        ops.all_reduce(x, out=y)
        ops.all_reduce(y, "max", out=y)
        ops.all_gather_v(rows, counts, out)
        driver.call("cuStreamEndCapture", None, ctypes.byref(graph))
        driver.call("cuGraphInstantiateWithFlags", ctypes.byref(executable), graph, ctypes.c_uint64(0))
        for replay in range(12):
            _synchronize()
            context.barrier()
            x.fill_(float(10 * replay + rank))
            counts.copy_(torch.tensor([(replay + 3 * other) % 9 for other in range(size)]))
            parts = [torch.full((int(counts[other]), 3), float(100 * replay + other)) for other in range(size)]
            rows[:int(counts[rank])] = parts[rank]
            driver.call("cuGraphLaunch", executable, None)
            _synchronize()
            ops.check_error()
            assert torch.equal(y, torch.full((2, 33), float(sum(10 * replay + other for other in range(size)))))
            expected = torch.cat(parts)
            assert torch.equal(out[:len(expected)], expected), replay


@on_ranks(2)
def test_one_shot_and_two_shots_after_each_other(rank):
    """Makes one-shot and two-shot calls with the same slots. The data, as addends and as sums, looks like an empty slot."""
    from verbena.ops import Algorithm, Choice
    looks_empty = 0xd92e8e14 - (1 << 32)  # Packet::kSentinel of packet.cuh, signed
    driver.use_gpu(rank)

    def draw(call, other):
        x = torch.full((64 - call % 3,), 1000 * other + call, dtype=torch.int32)
        rare = x[::2]
        rare[call % 5::5] = looks_empty ^ (call & 1) if other == call // 2 % 2 else 0
        return x

    with verbena.SymmetricContext.from_environment() as context, _make(rank, context) as ops:
        for call in range(1, 25):
            is_one_shot = (call - 1) % 8 < 4
            if rank == 1 and call % 3 == 0:
                time.sleep(0.01)  # the other one looks before there is anything
            x = draw(call, rank)
            got = ops.all_reduce(x, choice=Choice(Algorithm.ONE_SHOT if is_one_shot else Algorithm.TWO_SHOT, 1, 32))
            _synchronize()
            assert torch.equal(got, draw(call, 0) + draw(call, 1)), call
        ops.check_error()


@on_ranks(2)
def test_another_algorithm_than_the_chosen_one(rank):
    """Large tensors are sent in chunks, by more blocks than packets may use, unless the caller asks for packets."""
    from verbena.ops import Algorithm, Choice
    with driver.open_context(rank) as context, _make(rank, context) as ops:
        x = torch.full((3 << 20,), rank, dtype=torch.uint8)
        got = ops.all_gather(x, 0, choice=Choice(Algorithm.ONE_SHOT))
        _synchronize()
        assert torch.equal(got, torch.arange(ops.size, dtype=torch.uint8).repeat_interleave(len(x)))


@on_ranks(2)
def test_ranks_that_choose_otherwise_are_told(rank, tmp_path):
    driver.use_gpu(rank)
    if rank == 1:
        os.environ["VERBENA_OPS_ALGORITHM"] = "one-shot"
    with verbena.SymmetricContext.from_environment() as context:
        with pytest.raises(verbena.VerbenaError, match="VERBENA_OPS_ALGORITHM"):
            _make(rank, context)


@on_ranks(2)
def test_operators(rank):
    import verbena.ops
    driver.use_gpu(rank)
    verbena.ops.register_torch_ops("CPU")
    with verbena.SymmetricContext.from_environment() as context, _make(rank, context) as tp:
        verbena.ops.set_group("tp", tp)
        ops, size = torch.ops.verbena, tp.size
        x = _draw(rank, (2 * size, 3), torch.float32)
        parts = [_draw(other, (2 * size, 3), torch.float32) for other in range(size)]
        counts = torch.full((size,), 2 * size)
        results = {
            "all_reduce": (ops.all_reduce(x, "tp"), sum(parts)),
            "mean": (ops.all_reduce(x, "tp", "mean"), sum(parts) / size),
            "all_gather": (ops.all_gather(x, 1, size, "tp"), torch.cat(parts, 1)),
            "reduce_scatter": (ops.reduce_scatter(x, 0, size, "tp"), sum(parts)[2 * rank:2 * rank + 2]),
            "all_to_all": (ops.all_to_all(x, 0, 1, size, "tp"), torch.cat([part.chunk(size)[rank] for part in parts], 1)),
            "all_gather_v": (ops.all_gather_v(x, counts, 2 * size * size, "tp"), torch.cat(parts)),
        }
        in_place = x.clone()
        ops.all_reduce_(in_place, "tp")
        _synchronize()
        for name, (got, expected) in results.items():
            assert torch.equal(got, expected), name
        assert torch.equal(in_place, sum(parts))
        # Shapes without data, as a compiler asks for them.
        with torch.inference_mode():
            fake = x.to("meta")
            assert ops.all_reduce(fake, "tp").shape == x.shape
            assert ops.all_gather(fake, 1, size, "tp").shape == results["all_gather"][0].shape
            assert ops.reduce_scatter(fake, 0, size, "tp").shape == results["reduce_scatter"][0].shape
            assert ops.all_to_all(fake, 0, 1, size, "tp").shape == results["all_to_all"][0].shape
            assert ops.all_gather_v(fake, counts.to("meta"), 7, "tp").shape == (7, 3)
        with pytest.raises(Exception, match="no communicator has the name 'dp'"):
            ops.all_reduce(x, "dp")
        # No silent loss of gradients, but nothing in the way where none are wanted.
        learned = x.clone().requires_grad_()
        for call in (lambda: ops.all_reduce(learned, "tp"), lambda: ops.all_gather(learned, 0, size, "tp"),
                     lambda: ops.all_reduce_(learned, "tp"), lambda: ops.rms_norm(x, None, learned[0], 1e-6, "tp")):
            with pytest.raises(RuntimeError, match="has no gradient.*no_grad"):
                call()
        with torch.no_grad():
            got = ops.all_reduce(learned, "tp")
        _synchronize()
        assert torch.equal(got, sum(parts)) and not got.requires_grad
        verbena.ops.set_group("tp", None)


def _enter_a_host(rank):
    """Each rank is a host, and softverbs connects them."""
    os.environ.update(VERBENA_HOSTID=f"host-{rank}", VERBENA_IBVERBS_LIB="softverbs", VERBENA_OPS_CHECK="1")
    driver.use_gpu(rank)


def _draw_bits(rank, shape):
    """Returns bfloat16 elements that include NaN, infinities, zeros of both signs and denormal numbers."""
    generator = torch.Generator().manual_seed(2000 + rank)
    normal = torch.randn(shape, generator=generator).to(torch.bfloat16)
    bits = torch.randint(-2 ** 15, 2 ** 15, shape, generator=generator).to(torch.int16)
    return torch.where(torch.rand(shape, generator=generator) < 0.1, bits, normal.view(torch.int16)).view(torch.bfloat16)


def _encodes_one_side(rank, ops, plain, other):
    """Makes the call `plain` on rank 0 and the call `other` on all other ranks. Returns True if the library reports that the calls differ
    because one of them is encoded."""
    (plain if rank == 0 else other)()
    _synchronize()
    try:
        ops.check_error()
    except verbena.VerbenaError as error:
        ops.reset()
        assert "make different calls" in str(error) and "algorithm 32" in str(error), error
        return True
    return False


@on_ranks(2)
def test_lossless_operators_between_hosts(rank):
    import verbena.ops
    from verbena.ops import Algorithm, Choice
    _enter_a_host(rank)
    verbena.ops.register_torch_ops("CPU")
    with verbena.SymmetricContext.from_environment() as context, _make(rank, context) as tp:
        verbena.ops.set_group("tp", tp)
        ops, size = torch.ops.verbena, tp.size
        x = _draw_bits(rank, (2 * size, 1500))
        calls = {
            "all_reduce": lambda lossless: ops.all_reduce(x, "tp", "sum", lossless),
            "max": lambda lossless: ops.all_reduce(x, "tp", "max", lossless),
            "all_gather": lambda lossless: ops.all_gather(x, 1, size, "tp", lossless),
            "reduce_scatter": lambda lossless: ops.reduce_scatter(x, 0, size, "tp", "sum", lossless),
            "all_to_all": lambda lossless: ops.all_to_all(x, 0, 1, size, "tp", lossless),
        }
        for name, call in calls.items():
            plain, encoded = call(False), call(True)
            _synchronize()
            assert torch.equal(plain.view(torch.int16), encoded.view(torch.int16)), name
            assert _encodes_one_side(rank, tp, lambda call=call: call(False), lambda call=call: call(True)), name
        reduced, moved = x.clone(), x.clone()
        ops.all_reduce_(reduced, "tp", "sum", True)
        ops.broadcast_(moved, 1, "tp", True)
        plain = ops.all_reduce(x, "tp")
        _synchronize()
        assert torch.equal(reduced.view(torch.int16), plain.view(torch.int16))
        assert torch.equal(moved.view(torch.int16), _draw_bits(1, x.shape).view(torch.int16))
        # Other elements than bfloat16: a sum sends them as they are, and an exchange of them is refused.
        wide = torch.full((100,), 1.5)
        total = ops.all_reduce(wide, "tp", "sum", True)
        _synchronize()
        assert torch.equal(total, 2 * wide)
        for refused in (lambda: ops.all_gather(wide, 0, size, "tp", True), lambda: tp.broadcast(wide, choice=Choice(Algorithm.LOSSLESS))):
            with pytest.raises(TypeError, match=r"encodes bfloat16 elements, but the elements of the tensor are torch.float32. Omit .*view\(torch.bfloat16\)"):
                refused()
        assert ops.all_gather(x.to("meta"), 1, size, "tp", True).shape == (2 * size, 1500 * size)
        verbena.ops.set_group("tp", None)


@on_ranks(2)
def test_a_setting_encodes_bfloat16_between_hosts(rank):
    from verbena.ops import Algorithm, Choice
    os.environ["VERBENA_OPS_ALGORITHM"] = "lossless"
    _enter_a_host(rank)
    with verbena.SymmetricContext.from_environment() as context, _make(rank, context) as ops:
        short, wide, plain = _draw_bits(rank, (3000,)), torch.full((3000,), 0.5), Choice(Algorithm.BULK_TWO_SHOT)
        counts = torch.full((ops.size,), 3000)
        assert ops.choose("broadcast", 1 << 20).algorithm == Algorithm.LOSSLESS
        calls = {
            "all_reduce": lambda x, choice: ops.all_reduce(x, choice=choice),
            "reduce_scatter": lambda x, choice: ops.reduce_scatter(x, 0, choice=choice),
            "all_gather": lambda x, choice: ops.all_gather(x, 0, choice=choice),
            "broadcast": lambda x, choice: ops.broadcast(x.clone(), choice=choice),
            "all_to_all": lambda x, choice: ops.all_to_all(x, choice=choice),
            "all_gather_v": lambda x, choice: ops.all_gather_v(x, counts, x.new_empty(6000), choice=choice),
        }
        for name, call in calls.items():
            assert _encodes_one_side(rank, ops, lambda call=call: call(short, None), lambda call=call: call(short, plain)), name
            assert not _encodes_one_side(rank, ops, lambda call=call: call(wide, None), lambda call=call: call(wide, plain)), name
        ops.all_reduce(short)
        assert "by LOSSLESS" in repr(ops)
        ops.all_reduce(wide)
        assert "by BULK_TWO_SHOT" in repr(ops)
        _synchronize()
        ops.check_error()


@on_ranks(2)
def test_tensors_of_a_group_live_until_its_launch(rank):
    """The calls of a group create temporary tensors of the same size. The memory of the emulated GPU is host memory, whose allocator knows
    no streams. Therefore the stream ends before the end of the group returns. On a GPU, the allocator keeps the order of the stream."""
    with driver.open_context(rank) as context, _make(rank, context) as ops:
        end_group = ops._ops.ops_group_end

        def end_and_wait(*arguments):
            result = end_group(*arguments)
            _synchronize()
            return result
        ops._ops.ops_group_end = end_and_wait
        a, b = (torch.arange(4096.).view(64, 64) + begin + rank for begin in (0, 5000))
        counts = torch.full((ops.size,), 16)
        with ops.group(a):
            first = ops.all_reduce(a.t())
            second = ops.all_reduce(b.t())
            third = ops.all_reduce(a.t() * 2, "max")  # nobody but the group keeps the input, nor the next call's output
            ops.all_reduce(b.t() * 3)
            fourth = ops.all_gather(b.t()[:16], 0)
            fifth = ops.all_gather_v((a * 5)[:16].clone(), counts.clone(), torch.empty(16 * ops.size, 64))
        totals = [ops.size * one.t() + (ops.size * (ops.size - 1) / 2 - ops.size * rank) for one in (a, b)]
        assert torch.equal(first, totals[0]) and torch.equal(second, totals[1])
        assert torch.equal(third, (a.t() + (ops.size - 1 - rank)) * 2)
        assert torch.equal(fourth, torch.cat([b.t()[:16] + (other - rank) for other in range(ops.size)]))
        assert torch.equal(fifth, torch.cat([(a[:16] + (other - rank)) * 5 for other in range(ops.size)]))
        ops.check_error()


class _Mistake(Exception):
    pass


@on_ranks(2)
def test_a_group_whose_block_raises_is_not_launched(rank):
    os.environ["VERBENA_SYMM_TIMEOUT_MS"] = "2000"
    with driver.open_context(rank) as context, _make(rank, context) as ops:
        x, out = torch.full((100,), float(rank + 1)), torch.zeros(100)
        # On all ranks: nothing was launched, and nobody waits.
        for wrong in (lambda: (_ for _ in ()).throw(_Mistake("of the user")), lambda: ops.all_reduce(x.long()),
                      lambda: ops.group().__enter__()):
            with pytest.raises((_Mistake, TypeError, verbena.VerbenaError)):
                with ops.group(x):
                    ops.all_reduce(x, out=out)
                    wrong()
            for call in (lambda: ops.all_reduce(x), lambda: ops.group(x).__enter__(), ops.check_error):
                with pytest.raises(verbena.VerbenaError, match="a group of 1 calls was not launched.*reset"):
                    call()
            ops.reset()
            ops.check_error()
            assert not out.any()
            got = ops.all_reduce(x)
            _synchronize()
            assert torch.equal(got, torch.full((100,), 3.0))
        # On one rank: its own next call says so, and the peer's wait ends by time and names it.
        try:
            with ops.group(x):
                ops.all_reduce(x)
                if rank == 1:
                    raise _Mistake("of one rank")
        except _Mistake:
            pass
        _synchronize()
        with pytest.raises(verbena.VerbenaError, match="of one rank" if rank == 1 else "rank 1"):
            ops.check_error()
        context.barrier()
        ops.reset()
        got = ops.all_reduce(x)
        _synchronize()
        assert torch.equal(got, torch.full((100,), 3.0))


def _make_group(rank, size, folder):
    """Returns the process group over the host that engines pass to their custom all-reduces."""
    import torch.distributed as dist
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=size)
    return dist.group.WORLD


def _check_engine(communicator, rank, size):
    parts = [_draw(other, (7, 16), torch.bfloat16) for other in range(size)]
    assert not communicator.disabled and communicator.world_size == size and communicator.rank == rank
    assert communicator.should_custom_ar(parts[rank])
    assert not communicator.should_custom_ar(torch.zeros(4, dtype=torch.int64)), "the engine's own way"
    assert not communicator.should_custom_ar(torch.zeros(0))
    with communicator.capture():
        assert communicator._IS_CAPTURING
        got = communicator.custom_all_reduce(parts[rank])
    assert not communicator._IS_CAPTURING
    _synchronize()
    assert torch.equal(got.to(torch.float64), sum(part.to(torch.float64) for part in parts))
    residual, weight = _draw(20, (7, 16), torch.bfloat16), _draw(21, (16,), torch.bfloat16)
    fused = communicator.custom_fused_ar_rms(parts[rank], residual, weight, 1e-6, use_1stage=True)
    _synchronize()
    added = got + residual
    assert torch.equal(fused[1], added)
    wide = added.float()
    want = wide * (wide.pow(2).mean(-1, keepdim=True) + 1e-6).rsqrt() * weight.float()
    assert torch.allclose(fused[0].float(), want, rtol=2 ** -7, atol=1e-6)
    assert communicator.custom_fused_ar_rms(parts[rank].float(), residual, weight, 1e-6) is None
    assert communicator.custom_fused_ar_rms(parts[rank], residual, weight.float(), 1e-6) is None, "the engine's own norm"
    return parts


@on_ranks(2)
def test_vllm(rank, tmp_path):
    driver.use_gpu(rank)
    group = _make_group(rank, 2, tmp_path)
    os.environ["VERBENA_SYMM_HEAP_BYTES"] = "1g"
    from verbena.integrations.vllm import VerbenaAllreduce
    made = VerbenaAllreduce(group=group, device=torch.device("cpu"), symm_mem_enabled=False, register_graph_buffers=True)
    assert os.environ["VERBENA_SYMM_TIMEOUT_MS"] == "600000", "others may compile for minutes"
    parts = _check_engine(made, rank, 2)
    gathered = made.custom_all_gather(parts[rank])
    twice = torch.cat([parts[rank], parts[rank]])
    scattered = made.custom_reduce_scatter(twice)
    assert made.custom_reduce_scatter(parts[rank]) is None, "seven rows for two ranks"
    _synchronize()
    assert torch.equal(gathered, torch.cat(parts))
    assert torch.equal(scattered.to(torch.float64), sum(part.to(torch.float64) for part in parts))
    made.register_graph_buffers()
    made.close()
    assert made.disabled and made.custom_all_reduce(parts[rank]) is None


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
@on_ranks(2)
def test_an_engine_with_a_late_rank_is_told(rank, engine, tmp_path):
    """Runs steps like an engine that does not check for errors. Each result must be right, or NaN, or an exception."""
    import importlib
    os.environ["VERBENA_SYMM_TIMEOUT_MS"] = "400"
    os.environ["VERBENA_SYMM_HEAP_BYTES"] = "1g"
    driver.use_gpu(rank)
    group = _make_group(rank, 2, tmp_path)
    made = importlib.import_module(f"verbena.integrations.{engine}").VerbenaAllreduce(group=group, device=torch.device("cpu"))
    gave_up, raised = tmp_path / "gave_up", 0
    for step in range(8):
        deadline = time.monotonic() + 60
        while step == 1 and rank == 1 and not gave_up.exists() and time.monotonic() < deadline:
            time.sleep(0.01)
        x = torch.full((64,), 10.0 * step + 1 + rank, dtype=torch.float32)  # kept: memory of the host knows no streams
        try:
            got = made.custom_all_reduce(x)
            _synchronize()
        except verbena.VerbenaError as error:
            assert error.result == verbena.Result.TIMEOUT
            raised += 1
            continue
        finally:
            if step == 1:
                gave_up.touch()
        assert raised == 0, "an engine goes on after a failure"
        assert got.isnan().all() or torch.equal(got, torch.full((64,), 20.0 * step + 3)), (rank, step, got)
    assert raised >= 5


@on_ranks(2)
def test_sglang(rank, tmp_path):
    driver.use_gpu(rank)
    group = _make_group(rank, 2, tmp_path)
    from verbena.integrations.sglang import VerbenaAllreduce
    made = VerbenaAllreduce(group=group, device=torch.device("cpu"))
    parts = _check_engine(made, rank, 2)
    out = torch.empty(14, 16, dtype=torch.bfloat16)
    made.all_gather_unreg(parts[rank], out=out)
    _synchronize()
    assert torch.equal(out, torch.cat(parts))
    made.close()


@on_ranks(2)
def test_an_engine_goes_its_own_way_where_it_must(rank, tmp_path):
    driver.use_gpu(rank)
    group = _make_group(rank, 2, tmp_path)
    os.environ["VERBENA_SYMM_HEAP_BYTES"] = "16m"  # no room for workspaces
    from verbena.integrations.vllm import VerbenaAllreduce
    with pytest.warns(UserWarning, match="custom collectives are off"):
        made = VerbenaAllreduce(group, torch.device("cpu"))
    assert made.disabled and made.custom_all_reduce(torch.zeros(4)) is None


@on_ranks(3)
def test_three_gpus_without_nvlink_are_left_to_the_engine(rank, tmp_path):
    driver.use_gpu(rank)
    group = _make_group(rank, 3, tmp_path)
    from verbena.integrations.engine import EngineCollectives
    from verbena.communicators import ProcessGroupCommunicator, adapt
    adapted = adapt(group)
    assert isinstance(adapted, ProcessGroupCommunicator) and (adapted.rank, adapted.size, adapted.backend) == (rank, 3, "gloo")
    with pytest.raises((AttributeError, RuntimeError)):
        adapted.find_native_handle()
    with pytest.warns(UserWarning, match="NVLink does not connect all pairs of the 3 GPUs"):
        made = EngineCollectives(group, torch.device("cpu"))
    assert made.disabled and not made.fully_connected
