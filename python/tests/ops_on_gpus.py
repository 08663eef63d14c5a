#!/usr/bin/env python3
"""Tests collectives on GPUs under PyTorch. Each case is a shape that engines use, or a problem that users of engines have reported.

    torchrun --nproc-per-node 2 python/tests/ops_on_gpus.py [CASE...]

Prints a line for each case on rank 0; exit status 1 if one failed on any rank. Sums are of small whole numbers where a result
is compared exactly, and compared with the sum in float32 in the order of ranks where they are not.
"""
import os
import sys
import time
import traceback

import torch
import torch.distributed as dist

import verbena
import verbena.moe
from verbena.ops import Algorithm, Choice, Communicator, set_group

DTYPES = (torch.bfloat16, torch.float16, torch.float32)

# Packet::kSentinel of packet.cuh, signed: a word of data that would look like an empty place, as its neighbour would.
LOOKS_EMPTY = 0xd92e8e14 - (1 << 32)

# All-reduces of tensors anywhere, exact ones.
EXACT_ALGORITHMS = [one for one in Algorithm if Algorithm.ONE_SHOT <= one <= Algorithm.BULK_TWO_SHOT]


class Ranks:
    def __init__(self):
        self.device = torch.device("cuda", int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
        torch.cuda.set_device(self.device)
        dist.init_process_group("gloo")
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self.context = verbena.SymmetricContext.from_all_gather(self.gather, self.rank, self.size)
        self.tp = Communicator(self.context)
        set_group("tp", self.tp)

    def gather(self, mine):
        gathered = [None] * self.size
        dist.all_gather_object(gathered, mine)
        return gathered

    def whole(self, shape, dtype=torch.bfloat16, seed=0):
        """Returns whole numbers of each rank whose sums are exact in every type."""
        generator = torch.Generator().manual_seed(seed)
        return [torch.randint(-8, 9, shape, generator=generator).to(dtype) for _ in range(self.size)]

    def on_gpu(self, parts):
        return parts[self.rank].to(self.device)

    def expect(self, got, expected, what=""):
        torch.cuda.synchronize()
        self.tp.check_error()
        assert torch.equal(got.cpu(), expected), what


def sum_in_order(parts):
    total = parts[0].float()
    for part in parts[1:]:
        total = total + part.float()
    return total.to(parts[0].dtype)


def capture(body):
    stream = torch.cuda.Stream()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        result = body()
    return graph, result


def measure(body, repeats=20):
    """Returns the time of a captured call in microseconds."""
    graph, _ = capture(lambda: [body() for _ in range(repeats)])
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    graph.replay()
    begin.record()
    graph.replay()
    end.record()
    torch.cuda.synchronize()
    return 1000 * begin.elapsed_time(end) / repeats


# ---- Shapes ----

def case_all_reduce_shapes(r):
    for shape in ((2, 7168), (1, 4096), (128, 8192), (13, 2880), (17, 4096), (19, 8192), (2048, 2880), (512, 5376)):
        for dtype in DTYPES:
            parts = r.whole(shape, dtype)
            x = r.on_gpu(parts)
            r.expect(r.tp.all_reduce(x), sum(part.float() for part in parts).to(dtype), (shape, dtype))
            graph, y = capture(lambda: r.tp.all_reduce(x))
            for _ in range(3):
                graph.replay()
            r.expect(y, sum(part.float() for part in parts).to(dtype), (shape, dtype, "graph"))


def case_all_reduce_sizes(r):
    for bytes_ in [16, 48, 112, 1008, 4080, 65552, 1 << 20, (4 << 20) + 16, 64 << 20]:
        parts = r.whole((bytes_ // 2,))
        r.expect(r.tp.all_reduce(r.on_gpu(parts)), sum(part.float() for part in parts).bfloat16(), bytes_)


def case_odd_sizes_and_addresses(r):
    for count in (1, 3, 7, 1021, 65537):
        for offset in (0, 1, 3):
            parts = r.whole((count + offset,))
            x = r.on_gpu(parts)[offset:]
            r.expect(r.tp.all_reduce(x), sum(part.float() for part in parts).bfloat16()[offset:], (count, offset))


def case_rounding_is_in_the_order_of_ranks(r):
    generator = torch.Generator().manual_seed(5)
    for count in (100, 8192, 1 << 20):
        parts = [torch.randn(count, generator=generator).bfloat16() for _ in range(r.size)]
        for algorithm in EXACT_ALGORITHMS:
            got = r.tp.all_reduce(r.on_gpu(parts), choice=Choice(algorithm, 16, 256))
            r.expect(got, sum_in_order(parts), (count, algorithm))


def case_all_gather_shapes(r):
    for shape in ((1345,), (128, 7168), (4097, 8192), (65, 32320), (65, 7168)):
        parts = r.whole(shape)
        for dim in {0, len(shape) // 2, len(shape) - 1}:
            r.expect(r.tp.all_gather(r.on_gpu(parts), dim), torch.cat(parts, dim), (shape, dim))


def case_reduce_scatter_shapes(r):
    for shape, dim in (((64, 7168), 0), ((64, 7168), 1), ((5, 64, 33), 1), ((16 * r.size, 3), 0), ((3, 8 * r.size), 1)):
        parts = r.whole(shape)
        expected = sum(part.float() for part in parts).bfloat16().chunk(r.size, dim)[r.rank]
        r.expect(r.tp.reduce_scatter(r.on_gpu(parts), dim), expected, (shape, dim))


def case_uneven(r):
    counts = [(5 * other) % 7 for other in range(r.size)]
    parts = [part[:count] for part, count in zip(r.whole((7, 2880)), counts)]
    on_gpu = torch.tensor(counts, device=r.device)
    out = torch.zeros(sum(counts), 2880, dtype=torch.bfloat16, device=r.device)
    mine = parts[r.rank].to(r.device) if counts[r.rank] else torch.zeros(0, 2880, dtype=torch.bfloat16, device=r.device)
    r.expect(r.tp.all_gather_v(mine, on_gpu, out), torch.cat(parts))
    whole = r.whole((sum(counts), 2880))
    scattered = torch.zeros(counts[r.rank], 2880, dtype=torch.bfloat16, device=r.device)
    begin = sum(counts[:r.rank])
    expected = sum(part.float() for part in whole).bfloat16()[begin:begin + counts[r.rank]]
    r.expect(r.tp.reduce_scatter_v(r.on_gpu(whole), on_gpu, scattered), expected)


# ---- What users have complained about ----

def case_every_bit_pattern(r):
    """Sends subnormal numbers, NaN, and values that look like an empty slot. No call may hang, and the sums must be right."""
    patterns = torch.arange(65536, dtype=torch.int32).to(torch.int16).view(torch.bfloat16)
    rare = torch.tensor([LOOKS_EMPTY, 1, LOOKS_EMPTY ^ 1, LOOKS_EMPTY], dtype=torch.int32).view(torch.bfloat16)
    patterns = torch.cat([patterns, rare.repeat(64)])
    zeros = torch.zeros_like(patterns)
    x = (patterns if r.rank == 0 else zeros).to(r.device)
    for algorithm in EXACT_ALGORITHMS:
        got = r.tp.all_reduce(x, choice=Choice(algorithm, 8, 512)).cpu()
        r.tp.check_error()
        is_nan = torch.isnan(patterns)
        assert torch.equal(got[~is_nan], patterns[~is_nan]) and torch.isnan(got[is_nan]).all(), algorithm


def case_changing_data_in_a_graph(r):
    x = torch.zeros(4096, dtype=torch.bfloat16, device=r.device)
    graph, y = capture(lambda: r.tp.all_reduce(x))
    for replay in range(200):
        x.fill_(replay % 16 + r.rank)
        graph.replay()
        x.fill_(float("nan"))  # right behind it: a slow peer needs nothing of it
        r.expect(y, torch.full((4096,), float(sum(replay % 16 + other for other in range(r.size)))).bfloat16(), replay)


def case_temporaries_and_eight_sizes_in_one_capture(r):
    sizes = [2 ** power * 1024 for power in range(8)]
    sources = [r.on_gpu(r.whole((size,), seed=size)) for size in sizes]
    graph, results = capture(lambda: [r.tp.all_reduce(source * 2) for source in sources])
    torch.empty(64 << 20, device=r.device).fill_(1)  # takes freed memory
    for _ in range(5):
        graph.replay()
    for size, result in zip(sizes, results):
        expected = (sum(part.float() for part in r.whole((size,), seed=size)) * 2).bfloat16()
        r.expect(result, expected, size)


def case_recapture_does_not_grow(r):
    x = torch.zeros(1024, dtype=torch.bfloat16, device=r.device)

    def recapture():
        graph, result = capture(lambda: r.tp.all_reduce(x))
        # cudaMallocAsync has memory of a graph from its first replay to its end.
        graph.replay()
        torch.cuda.synchronize()
        del result
        del graph

    recapture()
    torch.cuda.synchronize()
    before = torch.cuda.mem_get_info()[0]
    for _ in range(200):
        recapture()
    torch.cuda.synchronize()
    assert before - torch.cuda.mem_get_info()[0] < 64 << 20


def case_a_late_rank(r):
    x = torch.ones(8192, dtype=torch.bfloat16, device=r.device)
    for late in range(r.size):
        if r.rank == late:
            time.sleep(1)
        r.expect(r.tp.all_reduce(x), torch.full((8192,), float(r.size)).bfloat16(), late)


def case_sms_held_by_another_stream(r):
    """Blocks that cannot start at the same time must run one after the other, and wait only for the blocks of peers with the same index."""
    other = torch.cuda.Stream()
    a = torch.randn(8192, 8192, device=r.device)
    with torch.cuda.stream(other):
        for _ in range(20):
            a @ a
    parts = r.whole((128, 8192))
    r.expect(r.tp.all_reduce(r.on_gpu(parts)), sum(part.float() for part in parts).bfloat16())


def case_two_streams(r):
    if r.size > torch.cuda.device_count():
        return "needs a GPU for each rank: kernels of several communicators of several ranks do not fit on one"
    with Communicator(r.context) as second:
        streams = [torch.cuda.Stream(), torch.cuda.Stream()]
        parts = r.whole((64, 7168))
        x, results = r.on_gpu(parts), []
        torch.cuda.synchronize()
        for turn in range(50):
            for communicator, stream in zip((r.tp, second), streams):
                with torch.cuda.stream(stream):
                    results.append(communicator.all_reduce(x))
        for result in results:
            r.expect(result, sum(part.float() for part in parts).bfloat16())
        second.check_error()


def case_groups_that_overlap(r):
    """Pairs beside the whole: the other ranks are no members."""
    if r.size < 4:
        return "needs 4 ranks"
    pair = r.context.create_team([0, 1] if r.rank < 2 else [])
    with Communicator(r.context, pair, is_member=r.rank < 2) as first:
        if r.rank < 2:
            got = first.all_reduce(torch.full((1000,), float(r.rank + 1), device=r.device))
            r.expect(got, torch.full((1000,), 3.0))
        r.expect(r.tp.all_reduce(torch.ones(1000, device=r.device)), torch.full((1000,), float(r.size)))


def case_batch_does_not_change_a_row(r):
    generator = torch.Generator().manual_seed(9)
    rows = [torch.randn(512, 2880, generator=generator).bfloat16() for _ in range(r.size)]
    whole = r.tp.all_reduce(r.on_gpu(rows)).cpu()
    for batch in (1, 2, 7, 64, 300):
        assert torch.equal(r.tp.all_reduce(r.on_gpu([part[:batch] for part in rows])).cpu(), whole[:batch]), batch


def case_compiled(r):
    @torch.compile
    def layer(x):
        return torch.ops.verbena.all_reduce(x * 2, "tp") + 1
    for tokens in (1, 3, 8):
        parts = r.whole((tokens, 4096))
        r.expect(layer(r.on_gpu(parts)), (sum(part.float() for part in parts) * 2 + 1).bfloat16(), tokens)


def case_allocators(r):
    """Works with any value of PYTORCH_CUDA_ALLOC_CONF. Run this case with expandable_segments:True and with backend:cudaMallocAsync,
    too."""
    for turn in range(20):
        parts = r.whole((1000 * (turn + 1),), seed=turn)
        x = r.on_gpu(parts)
        r.expect(r.tp.all_reduce(x), sum(part.float() for part in parts).bfloat16(), turn)
        del x
        torch.cuda.empty_cache()
    return os.environ.get("PYTORCH_CUDA_ALLOC_CONF", "the allocator as it is")


def case_a_peer_that_does_not_come(r):
    with Communicator(r.context) as short:
        x = torch.ones(100, device=r.device)
        if r.rank != 0:
            short.all_reduce(x)
            torch.cuda.synchronize()
            try:
                short.check_error()
                raise AssertionError("nothing was said")
            except verbena.VerbenaError as error:
                assert "rank 0" in str(error), error
        r.context.barrier()
        short.reset()
        r.expect(short.all_reduce(x), torch.full((100,), float(r.size)))


def case_many_replays(r):
    x, y = torch.zeros(2048, dtype=torch.int32, device=r.device), torch.zeros(2048, dtype=torch.int32, device=r.device)
    def body():
        x.add_(r.rank + 1)
        r.tp.all_reduce(x, out=y)
    graph, _ = capture(body)
    for turn in range(1, 11):
        for _ in range(1000):
            graph.replay()
        r.expect(y, torch.full((2048,), 1000 * turn * sum(range(1, r.size + 1)), dtype=torch.int32), turn)


def case_experts_of_a_mixture(r):
    """Sends tokens to the experts of all ranks and back, in one graph that is replayed with other rows, experts and weights."""
    experts, tokens, top_k, hidden = 32 * r.size, 48, 8, 7168
    with verbena.moe.ExpertExchange(r.context, experts=experts, max_tokens=tokens, top_k=top_k, hidden=hidden) as exchange:
        rows = torch.zeros(tokens, hidden, dtype=torch.bfloat16, device=r.device)
        ids = torch.zeros(tokens, top_k, dtype=torch.int64, device=r.device)
        weights = torch.zeros(tokens, top_k, device=r.device)

        def layer():  # expert e gives its input times e + 1
            sent = exchange.dispatch(rows, ids, weights)
            numbers = sent.ids + r.rank * (experts // r.size) + 1
            return exchange.combine((sent.rows.unsqueeze(2) * numbers.unsqueeze(-1)).to(torch.bfloat16), sent)

        graph, out = capture(layer)
        for turn in range(300):
            generator = torch.Generator().manual_seed(1000 * turn + r.rank)
            rows.copy_(torch.randint(-2, 3, rows.shape, generator=generator))
            ids.copy_(torch.randint(-1, experts, ids.shape, generator=generator))
            weights.copy_(torch.randint(1, 4, weights.shape, generator=generator))
            result = layer() if turn % 10 == 0 else None
            graph.replay()
            torch.cuda.synchronize()
            exchange.check_error()
            factors = torch.where(ids >= 0, weights.double() * (ids + 1), torch.zeros((), dtype=torch.float64, device=r.device)).sum(1)
            want = rows.double() * factors.unsqueeze(1)
            for found in (out, result):
                assert found is None or torch.allclose(found.double(), want, rtol=2 ** -6, atol=2 ** -6), turn


def case_experts_with_their_rows_together(r):
    """Groups rows by expert, with the exact and with the maximum number of rows. Also sends rows by the routing of an earlier dispatch."""
    experts, tokens, top_k, hidden = 16 * r.size, 40, 6, 4096
    with verbena.moe.ExpertExchange(r.context, experts=experts, max_tokens=tokens, top_k=top_k, hidden=hidden, max_scale_bytes=128) as exchange:
        for turn in range(60):
            generator = torch.Generator().manual_seed(1000 * turn + r.rank)
            count = int(torch.randint(0, tokens + 1, (), generator=generator))
            rows = torch.randint(-2, 3, (count, hidden), generator=generator).to(torch.bfloat16).to(r.device)
            ids = torch.randint(-1, experts, (count, top_k), generator=generator).to(r.device)
            weights = torch.randint(1, 4, (count, top_k), generator=generator).float().to(r.device)
            sent = exchange.dispatch(rows, ids, weights, grouping="ragged", alignment=16, exact_rows=turn % 2 == 0)
            if turn % 3 == 0:
                sent = exchange.dispatch(rows + rows, sent, grouping="expert")
            factors = (sent.row_experts + r.rank * (experts // r.size) + 1).unsqueeze(-1)
            out = exchange.combine((sent.rows * factors).to(torch.bfloat16), sent)
            torch.cuda.synchronize()
            exchange.check_error()
            factors = torch.where(ids >= 0, weights.double() * (ids + 1), torch.zeros((), dtype=torch.float64, device=r.device)).sum(1)
            want = rows.double() * factors.unsqueeze(1) * (2 if turn % 3 == 0 else 1)
            assert torch.allclose(out.double(), want, rtol=2 ** -6, atol=2 ** -6), turn


def case_long_batches_of_engines(r):
    """Runs two layers one after the other, as vLLM and SGLang do, through exchanges that share a window, and compares the results with an
    exchange that is not in windows. Ranks may share a GPU, so NVLink is not required here."""
    from verbena.integrations import experts as engines
    from verbena.moe import Order
    experts, top_k, hidden, sizes = 32 * r.size, 8, 7168, (512, 2048, 4096)
    options = {"experts": experts, "top_k": top_k, "hidden": hidden, "max_scale_bytes": 4 * hidden // 64}
    are_all_linked, engines.are_all_linked = engines.are_all_linked, lambda ranks: True
    exchanges = engines.Exchanges(dist.group.WORLD)
    engines.are_all_linked = are_all_linked
    free = [torch.cuda.mem_get_info()[0]]
    small, middle, large = (made[0] for made in exchanges.get_sizes(sizes, **options))
    free.append(torch.cuda.mem_get_info()[0])
    plain = [exchanges.get(max_tokens=size, **options)[0] for size in sizes[1:]]
    free.append(torch.cuda.mem_get_info()[0])
    assert middle.memory.data_ptr() == large.memory.data_ptr() and not isinstance(small, engines.WindowExchange)
    assert middle.memory.device == r.device

    def run(exchange, x, ids, weights, cast):
        sent = exchange.dispatch(x, ids, weights, cast=cast)
        rows = sent.rows.float() * (1 if cast is None else sent.scales.repeat_interleave(128, -1))
        numbers = torch.where(sent.ids >= 0, sent.weights * (sent.ids + r.rank * (experts // r.size) + 1), 0).sum(-1, keepdim=True)
        is_in_windows = isinstance(exchange, engines.WindowExchange)
        assert (sent.rows.data_ptr() == large.memory.data_ptr()) == is_in_windows
        out = exchange.make_rows(x.dtype).view(rows.shape) if is_in_windows else torch.empty_like(rows, dtype=x.dtype)
        return exchange.combine(out.copy_(rows * numbers), sent, Order.ROWS)

    for exchange, other in zip((middle, large), plain):
        tokens = exchange.max_tokens
        x = torch.zeros(tokens, hidden, dtype=torch.bfloat16, device=r.device)
        ids = torch.zeros(tokens, top_k, dtype=torch.int32, device=r.device)
        weights = torch.zeros(tokens, top_k, device=r.device)

        def two_layers(exchange, cast):
            return run(exchange, run(exchange, x, ids, weights, cast) / 1024, ids, weights, cast)

        for cast in (None, "fp8_block"):
            graph = None
            for turn in range(8):
                generator = torch.Generator(r.device).manual_seed(1000 * turn + r.rank)
                x.normal_(generator=generator)
                ids.random_(-1, experts, generator=generator)
                weights.uniform_(0.1, 1, generator=generator)
                if turn == 1:
                    graph, out = capture(lambda: two_layers(exchange, cast))
                if turn == 0:
                    out = two_layers(exchange, cast)
                else:
                    graph.replay()
                want = two_layers(other, cast)
                torch.cuda.synchronize()
                exchange.check_error()
                assert torch.equal(out, want) and not out.isnan().any(), (tokens, cast, turn)
    sent = {one: one.dispatch(x, ids, weights, cast=cast) for one in (large, plain[1])}
    places = {one: one.make_rows(x.dtype).view(r.size, -1, hidden) if one is large else torch.empty(r.size, len(x), hidden, dtype=x.dtype,
              device=r.device) for one in sent}
    times = [measure(body) for one in (large, plain[1]) for body in (
        lambda: one.dispatch(x, ids, weights, cast=cast), lambda: one.combine(places[one], sent[one], Order.ROWS))]
    exchanges.close()
    return (f"4096 tokens in windows: dispatch {times[0]:.0f} us, combine {times[1]:.0f}; not in windows {times[2]:.0f}, {times[3]:.0f}; "
            f"GPU memory of all ranks on this GPU: exchanges for {sizes} tokens {(free[0] - free[1]) / 1e6:.0f} MB, the last two not in windows "
            f"{(free[1] - free[2]) / 1e6:.0f}")


def case_low_latency_calls_of_deep_ep(r):
    """Runs DeepEP's low-latency dispatch and combine with every kind of scales, in eager mode with hooks, and in a graph that is replayed
    with other routing."""
    from verbena.integrations.deep_ep import Buffer
    experts, tokens, top_k, hidden = 32 * r.size, 64, 8, 7168
    buffer = Buffer(r.context, low_latency_mode=True)
    generator = torch.Generator(r.device).manual_seed(r.rank)
    x = torch.randn(tokens, hidden, dtype=torch.bfloat16, device=r.device, generator=generator)
    ids = torch.zeros(tokens, top_k, dtype=torch.int64, device=r.device)
    weights = torch.zeros(tokens, top_k, device=r.device)

    def widen(rows):
        if not isinstance(rows, tuple):
            return rows
        data, scales = rows
        if scales.dtype == torch.int32:
            scales = torch.ldexp(torch.ones((), device=r.device), scales.contiguous().view(torch.uint8).int() - 127)
        return (data.float() * scales.repeat_interleave(128, -1)[..., :hidden]).to(torch.bfloat16)

    forms = [{"use_fp8": False}, {}, {"round_scale": True}, {"round_scale": True, "use_ue8m0": True}]
    for form in forms:
        def layer(form=form, hooks=False):
            rows, counts, handle, _, hook = buffer.low_latency_dispatch(x, ids, tokens, experts, return_recv_hook=hooks, **form)
            if hooks:
                hook()
            out, _, hook = buffer.low_latency_combine(widen(rows).contiguous(), ids, weights, handle, return_recv_hook=hooks)
            if hooks:
                hook()
            return out, counts

        layer()
        graph, (out, counts) = capture(layer)
        for turn in range(20):
            ids.copy_(torch.stack([torch.randperm(experts, device=r.device, generator=generator)[:top_k] for _ in range(tokens)]))
            ids[torch.rand(ids.shape, device=r.device, generator=generator) < 0.1] = -1
            weights.copy_(torch.rand(weights.shape, device=r.device, generator=generator))
            if turn % 4 == 0:
                result, result_counts = layer(hooks=True)
            else:
                graph.replay()
                result, result_counts = out, counts
            torch.cuda.synchronize()
            want = x.double() * weights.double().masked_fill(ids < 0, 0).sum(1, keepdim=True)
            error = 1 - 2 * (result.double() * want).sum() / (result.double() ** 2 + want ** 2).sum()
            assert error < (1e-5 if form == forms[0] else 1e-3), (form, turn, float(error))
            gathered = torch.stack(r.gather(torch.bincount(ids[ids >= 0], minlength=experts).cpu())).sum(0)
            share = experts // r.size
            assert torch.equal(result_counts.cpu().long(), gathered[r.rank * share:(r.rank + 1) * share]), (form, turn)
    buffer.destroy()


def case_high_throughput_calls_of_deep_ep(r):
    """Runs DeepEP's calls for long batches: with a wait for the counts, at the same time as work of another stream, and in a graph."""
    from verbena.integrations.deep_ep import Buffer
    experts, tokens, top_k, hidden = 16 * r.size, 512, 4, 4096
    buffer = Buffer(r.context)
    generator = torch.Generator(r.device).manual_seed(r.rank)
    x = torch.randint(-8, 9, (tokens, hidden), device=r.device, generator=generator).to(torch.bfloat16)
    ids = torch.zeros(tokens, top_k, dtype=torch.int64, device=r.device)
    weights = torch.zeros(tokens, top_k, device=r.device)

    def layer(**options):
        per_rank, _, per_expert, in_rank, _ = buffer.get_dispatch_layout(ids, experts)
        rows, _, row_weights, _, handle, event = buffer.dispatch(
            x, num_tokens_per_rank=per_rank, is_token_in_rank=in_rank, num_tokens_per_expert=per_expert, topk_idx=ids, topk_weights=weights, **options)
        if event.event is not None:
            event.current_stream_wait()
        out, out_weights, _ = buffer.combine(rows * (r.rank + 1), handle, topk_weights=row_weights)
        return out, out_weights

    def check(out, out_weights, turn):
        torch.cuda.synchronize()
        buffer._rows.check_error()
        share = experts // r.size
        in_rank = torch.stack([((ids // share == one) & (ids >= 0)).any(1) for one in range(r.size)], 1)
        factor = (in_rank * torch.arange(1, r.size + 1, device=r.device)).sum(1, keepdim=True)
        assert torch.equal(out.float(), (x.float() * factor).to(torch.bfloat16).float()), turn
        assert torch.equal(out_weights, weights.masked_fill(ids < 0, 0)), turn

    layer(num_worst_tokens=r.size * tokens)
    graph, result = capture(lambda: layer(num_worst_tokens=r.size * tokens))
    for turn in range(20):
        ids.copy_(torch.stack([torch.randperm(experts, device=r.device, generator=generator)[:top_k] for _ in range(tokens)]))
        ids[torch.rand(ids.shape, device=r.device, generator=generator) < 0.3] = -1
        weights.copy_(torch.rand(weights.shape, device=r.device, generator=generator))
        if turn % 2 == 0:
            graph.replay()
            check(*result, turn)
        else:
            check(*layer(async_finish=turn % 4 == 1, previous_event=buffer.capture() if turn % 8 == 1 else None), turn)
    buffer.destroy()


def case_op_of_mori(r):
    """Runs MORI's dispatch of e4m3 rows with scales, and MORI's combine, in one graph that is replayed with other rows, experts and
    weights."""
    from verbena.integrations.mori import EpDispatchCombineConfig, EpDispatchCombineOp
    share, tokens, top_k, hidden = 8, 64, 4, 6144
    op = EpDispatchCombineOp(EpDispatchCombineConfig(
        data_type=torch.float8_e4m3fn, rank=r.rank, world_size=r.size, hidden_dim=hidden, scale_dim=hidden // 128, scale_type_size=4,
        max_token_type_size=2, max_num_inp_token_per_rank=tokens, num_experts_per_rank=share, num_experts_per_token=top_k, block_num=48), r.context)
    rows = torch.zeros(tokens, hidden, dtype=torch.float8_e4m3fn, device=r.device)
    scales = torch.zeros(tokens, hidden // 128, device=r.device)
    ids = torch.zeros(tokens, top_k, dtype=torch.int32, device=r.device)
    weights = torch.zeros(tokens, top_k, device=r.device)

    def widen(rows, scales):
        return rows.float() * scales.repeat_interleave(128, 1)

    def layer():  # expert e gives its input times e + 1
        came, came_weights, came_scales, came_ids, count = op.dispatch(rows, weights, scales, ids)
        is_here = torch.div(came_ids, share, rounding_mode="floor") == r.rank
        factors = torch.where(is_here, came_weights * (came_ids + 1), 0).sum(1, keepdim=True)
        has_row = (torch.arange(len(came), device=r.device) < count).unsqueeze(1)
        return op.combine(torch.where(has_row, widen(came, came_scales) * factors, 0).to(torch.bfloat16), None, ids)[0]

    layer()
    graph, out = capture(layer)
    for turn in range(100):
        generator = torch.Generator().manual_seed(1000 * turn + r.rank)
        rows.copy_(torch.randint(-8, 9, rows.shape, generator=generator).to(torch.float8_e4m3fn))
        scales.copy_(2.0 ** torch.randint(-3, 4, scales.shape, generator=generator))
        ids.copy_(torch.randint(-1, share * r.size, ids.shape, generator=generator))
        weights.copy_(torch.randint(1, 4, weights.shape, generator=generator))
        graph.replay()
        torch.cuda.synchronize()
        op.check_error()
        want = widen(rows, scales).double() * torch.where(ids >= 0, weights.double() * (ids + 1), 0).sum(1, keepdim=True)
        assert torch.allclose(out.double(), want, rtol=2 ** -6, atol=2.0), turn
    op.free()


def case_host_cost(r):
    """Measures the microseconds that the host needs for one eager call, launched without waiting for the GPU."""
    x = torch.zeros(4096, dtype=torch.bfloat16, device=r.device)
    out = torch.empty_like(x)
    c_call, handle, stream = r.tp._ops.ops_all_reduce, r.tp.handle, torch.cuda.current_stream().cuda_stream
    calls = {"verbena_ops_all_reduce by ctypes": lambda: c_call(handle, x.data_ptr(), out.data_ptr(), 4096, 2, 0, None, stream),
             "tp.all_reduce(x, out=out)": lambda: r.tp.all_reduce(x, out=out),
             "tp.all_reduce(x)": lambda: r.tp.all_reduce(x),
             'torch.ops.verbena.all_reduce(x, "tp")': lambda: torch.ops.verbena.all_reduce(x, "tp"),
             "torch.add(x, x, out=out)": lambda: torch.add(x, x, out=out)}
    remark = []
    for name, call in calls.items():
        fastest_us = 1e9
        for _ in range(15):
            call()
            torch.cuda.synchronize()
            begin = time.perf_counter()
            for _ in range(100):
                call()
            fastest_us = min(fastest_us, (time.perf_counter() - begin) * 1e4)
            torch.cuda.synchronize()
        remark.append(f"{name} {fastest_us:.2f} us")
    return "; ".join(remark)


def main():
    os.environ.setdefault("VERBENA_SYMM_TIMEOUT_MS", "10000")
    ranks = Ranks()
    cases = {name[5:]: body for name, body in globals().items() if name.startswith("case_")}
    failed = 0
    for name in sys.argv[1:] or cases:
        began, remark = time.monotonic(), ""
        try:
            remark = cases[name](ranks) or ""
            is_right = True
        except Exception:
            traceback.print_exc()
            is_right = False
        verdicts = ranks.gather(is_right)
        failed += not all(verdicts)
        if ranks.rank == 0:
            verdict = "ok" if all(verdicts) else f"FAILED on ranks {[i for i, fine in enumerate(verdicts) if not fine]}"
            print(f"{verdict}: {name.replace('_', ' ')} ({time.monotonic() - began:.1f} s) {remark}", flush=True)
        if not all(verdicts):
            ranks.tp.reset()
    torch.cuda.synchronize()
    ranks.tp.free()
    ranks.context.close()
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
