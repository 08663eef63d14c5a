"""Compares verbena.moe on emulated GPUs with sums that PyTorch computes on the host: ids without an expert, repeated ids, different numbers
of tokens per rank, every order of sums, casts, scales, calls in two phases, and operators."""
import ctypes
import dataclasses
import os

import pytest

import driver
import verbena
import verbena.moe
from ranks import on_ranks
from verbena.integrations.hosts import find_hosts

torch = pytest.importorskip("torch")

EXPERTS, MAX_TOKENS, TOP_K, HIDDEN = 12, 9, 3, 144
NO_EXPERT = (-1, EXPERTS, -7)


def _draw(rank, step, kind=None):
    """Returns the input of rank `rank` in a step: rows, ids and weights. Any rank can call this function. All numbers are small, so that
    bfloat16 represents them exactly."""
    generator = torch.Generator().manual_seed(1000 * step + rank)
    tokens = 0 if (rank + step) % 3 == 1 else MAX_TOKENS - rank
    rows = torch.randint(-8, 9, (tokens, HIDDEN), generator=generator).to(kind or torch.bfloat16)
    ids = torch.randint(0, EXPERTS + len(NO_EXPERT), (tokens, TOP_K), generator=generator)
    for number, wrong in enumerate(NO_EXPERT):
        ids[ids == EXPERTS + number] = wrong
    weights = torch.randint(1, 4, (tokens, TOP_K), generator=generator).float()
    return rows, ids, weights


def _make(context, **options):
    return verbena.moe.ExpertExchange(context, experts=EXPERTS, max_tokens=MAX_TOKENS, top_k=TOP_K, hidden=HIDDEN, exact=True, blocks=2,
                                      max_scale_bytes=8, **options)


def _synchronize():
    driver.call("cuStreamSynchronize", None)


def _list_expected(rank, ranks, step):
    """Returns (source rank, token, local ids) of the rows that reach a rank, in order."""
    share = EXPERTS // ranks
    rows = []
    for source in range(ranks):
        _, ids, _ = _draw(source, step)
        for token, row in enumerate(ids.tolist()):
            local = [one - rank * share if 0 <= one < EXPERTS and one // share == rank else -1 for one in row]
            if any(one >= 0 for one in local):
                rows.append((source, token, local))
    return rows


def _check_received(sent, rank, ranks, step):
    expected = _list_expected(rank, ranks, step)
    assert sent.counts.tolist() == [sum(source == other for source, _, _ in expected) for other in range(ranks)]
    place = [0] * ranks
    for source, token, local in expected:
        at = place[source]
        place[source] += 1
        assert sent.sources[source, at] == token and sent.ids[source, at].tolist() == local
        weights = _draw(source, step)[2][token]
        assert sent.weights[source, at].tolist() == [float(weight) if one >= 0 else 0.0 for weight, one in zip(weights, local)]
        assert torch.equal(sent.rows[source, at], _draw(source, step)[0][token])
    for source in range(ranks):
        assert (sent.sources[source, place[source]:] == -1).all() and (sent.ids[source, place[source]:] == -1).all()


def _run_experts(sent, rank, ranks):
    """Expert e gives its input times e + 1."""
    numbers = sent.ids + rank * (EXPERTS // ranks) + 1
    return (sent.rows.unsqueeze(2).float() * numbers.unsqueeze(-1)).to(torch.bfloat16).contiguous()


def _expect_sums(rank, step):
    rows, ids, weights = _draw(rank, step)
    valid = (ids >= 0) & (ids < EXPERTS)
    return rows.double() * torch.where(valid, weights * (ids + 1), torch.zeros(())).sum(1, keepdim=True).double()


@pytest.mark.parametrize("size", [1, 2, 4])
@on_ranks("size")
def test_tokens_go_there_and_back(rank, size):
    with driver.open_context(rank) as context, _make(context) as exchange:
        assert exchange.ranks == size and verbena.moe.ExpertExchange.workspace_bytes(
            size, experts=EXPERTS, max_tokens=MAX_TOKENS, top_k=TOP_K, hidden=HIDDEN, blocks=2) > 0
        out = None
        for step in range(6):
            rows, ids, weights = _draw(rank, step)
            ids = ids if step % 2 else ids.to(torch.int32)
            scales = torch.arange(2 * len(rows), dtype=torch.float32).view(-1, 2) + 100 * rank
            phased = step >= 3
            out = exchange.dispatch(rows, ids, weights, scales=scales, out=out, phase=verbena.moe.Phase.SEND if phased else verbena.moe.Phase.BOTH)
            if phased:
                exchange.dispatch(rows, ids, weights, scales=scales, out=out, phase=verbena.moe.Phase.RECEIVE)
            _synchronize()
            exchange.check_error()
            _check_received(out, rank, size, step)
            for source, token, _ in _list_expected(rank, size, step):
                at = (out.sources[source] == token).nonzero()[0, 0]
                assert out.scales[source, at].tolist() == [100.0 * source + 2 * token, 100.0 * source + 2 * token + 1]
            expert_rows = _run_experts(out, rank, size)
            added = (expert_rows.float() * out.weights.unsqueeze(-1)).nan_to_num(0).sum(2).to(torch.bfloat16)
            results = [exchange.combine(expert_rows, out, order) for order in ("reduced", "exact")] + [exchange.combine(added, out, "rows")]
            _synchronize()
            exchange.check_error()
            for name, result in zip(("reduced", "exact", "rows"), results):
                want = _expect_sums(rank, step)
                assert torch.allclose(result.double(), want, rtol=2 ** -6, atol=2.0), name
            assert torch.equal(results[0], results[2]), "the same additions, by the kernel and here"
        with pytest.raises(TypeError, match="int32 or int64"):
            exchange.dispatch(rows, ids.float(), weights)
        with pytest.raises(ValueError, match=r"ids \[tokens, 3\]"):
            exchange.dispatch(rows, ids[:, :2], weights)
        with pytest.raises(ValueError, match="must be contiguous"):
            exchange.combine(expert_rows, out, "rows")
        two = torch.ones(1, HIDDEN, dtype=torch.bfloat16).expand(2, HIDDEN)
        with pytest.raises(ValueError, match="do not overlap"):
            exchange.dispatch(two, torch.zeros(2, TOP_K, dtype=torch.int64))
        with pytest.raises(ValueError, match="do not overlap"):
            exchange.dispatch(two.contiguous(), torch.zeros(1, TOP_K, dtype=torch.int64).expand(2, TOP_K))
        with pytest.raises(ValueError, match="needs the argument"):
            exchange.dispatch(rows, ids, weights, phase=verbena.moe.Phase.RECEIVE)


@pytest.mark.skipif(not hasattr(torch, "float8_e4m3fn"), reason="this PyTorch has no e4m3")
@on_ranks(2)
def test_wrong_tensors(rank):
    """Each of these would be written or read beyond its end."""
    with driver.open_context(rank) as context, _make(context) as exchange, verbena.moe.ExpertExchange(
            context, experts=EXPERTS, max_tokens=2, top_k=TOP_K, hidden=HIDDEN, exact=True, blocks=2) as smaller:
        rows, ids, weights = _draw(rank, 0)
        scales = torch.zeros(len(rows), 2)
        by_rank = exchange.dispatch(rows, ids, weights)
        ragged = exchange.dispatch(rows, ids, weights, scales=scales, grouping="ragged")
        short = dataclasses.replace(ragged, rows=ragged.rows[:-1])
        marks = dataclasses.replace(ragged, row_experts=ragged.row_experts[:-1])
        cast = exchange.dispatch(rows, ids, weights, cast="fp8_block", column_scales=True)
        of_smaller = smaller.make_dispatched(rows)
        _synchronize()
        exchange.check_error()
        wrong = [(by_rank, {"grouping": "expert"}, "grouped by RANK"), (ragged, {"grouping": "ragged"}, "`out` has scales"),
                 (by_rank, {"scales": scales}, "no scales"), (by_rank, {"cast": "fp8_block"}, "float8_e4m3fn"),
                 (cast, {}, "bfloat16"), (cast, {"cast": "fp8_block"}, "must be contiguous"),
                 (cast, {"cast": "fp8_block_exponent", "column_scales": True}, "int32"),
                 (short, {"grouping": "ragged", "scales": scales}, "shape"), (marks, {"grouping": "ragged", "scales": scales}, "shape"),
                 (ragged, {"grouping": "ragged", "scales": scales.double()}, "float64"), (of_smaller, {}, "of this exchange")]
        for out, options, cause in wrong:
            with pytest.raises(ValueError, match=f"`out` does not match.*{cause}"):
                exchange.dispatch(rows, ids, weights, out=out, **options)
        with pytest.raises(ValueError, match="of this exchange"):
            exchange.dispatch(rows, of_smaller)
        experts = torch.zeros(2, MAX_TOKENS, TOP_K, HIDDEN, dtype=torch.bfloat16)
        with pytest.raises(ValueError, match="of this exchange"):
            exchange.combine(experts, of_smaller)
        with pytest.raises(TypeError, match="bfloat16, not torch.float8_e4m3fn"):
            exchange.combine(experts, by_rank, out=torch.empty(len(rows), HIDDEN, dtype=torch.float8_e4m3fn))
        with pytest.raises(verbena.VerbenaError, match="alignment is"):
            exchange.dispatch(rows, ids, weights, scales=scales, grouping="ragged", alignment=2 ** 31, out=ragged)
        with pytest.raises(ValueError, match="alignment"):
            exchange.dispatch(rows, ids, weights, grouping="ragged", alignment=2 ** 31)
        same = exchange.dispatch(rows, ids, weights, cast="fp8_block", column_scales=True, out=cast)
        _synchronize()
        exchange.check_error()
        assert same.rows.data_ptr() == cast.rows.data_ptr()


@pytest.mark.parametrize("size", [2, 4])
@on_ranks("size")
def test_rows_in_windows(rank, size):
    with driver.open_context(rank) as context, verbena.moe.ExpertExchange(
            context, experts=EXPERTS, max_tokens=MAX_TOKENS, top_k=TOP_K, hidden=HIDDEN, blocks=2, max_scale_bytes=8, in_windows=True) as exchange:
        def place(like):
            window = context.allocate(like.numel() * like.element_size())
            return torch.frombuffer((ctypes.c_uint8 * len(window)).from_address(window.address), dtype=like.dtype).view(like.shape)

        made = exchange.make_dispatched(torch.empty(0, HIDDEN, dtype=torch.bfloat16), torch.empty(0, 2))
        made = [place(one) for one in (made.rows, made.scales, made.handle)]
        expert_rows = place(torch.empty(size, MAX_TOKENS, HIDDEN, dtype=torch.bfloat16))
        for step in range(4):
            rows, ids, weights = _draw(rank, step)
            scales = torch.full((len(rows), 2), 100.0 * rank)
            out = exchange.view_handle(*made, len(rows))
            out = exchange.dispatch(rows, ids, weights, scales=scales, out=out)
            _synchronize()
            exchange.check_error()
            _check_received(out, rank, size, step)
            for source, count in enumerate(out.counts.tolist()):
                assert (out.scales[source, :count] == 100.0 * source).all()
            expert_rows.copy_((_run_experts(out, rank, size).float() * out.weights.unsqueeze(-1)).nan_to_num(0).sum(2))
            result = exchange.combine(expert_rows, out, "rows")
            _synchronize()
            exchange.check_error()
            assert torch.allclose(result.double(), _expect_sums(rank, step), rtol=2 ** -6, atol=2.0)
        with pytest.raises(verbena.VerbenaError, match="output is not in a window"):
            exchange.dispatch(rows, ids, weights, scales=scales)
        with pytest.raises(verbena.VerbenaError, match="rows is not in a window"):
            exchange.combine(expert_rows.clone(), out, "rows")
        with pytest.raises(verbena.VerbenaError, match="takes only VERBENA_MOE_ROWS"):
            exchange.combine(torch.empty(size, MAX_TOKENS, TOP_K, HIDDEN, dtype=torch.bfloat16), out, "reduced")


def test_the_most_tokens_of_an_exchange():
    """More are refused by the library."""
    exchange = verbena.moe.ExpertExchange
    sizes = {"top_k": 1, "hidden": 8}
    for ranks in (1, 2, 16, 17, 24, 32):
        most = exchange.find_max_tokens(ranks)
        assert exchange.workspace_bytes(ranks, experts=ranks, max_tokens=most, **sizes) > 0
        with pytest.raises(ValueError, match="is not supported"):
            exchange.workspace_bytes(ranks, experts=ranks, max_tokens=most + 1, **sizes)


@on_ranks(4)
def test_tokens_go_between_hosts(rank):
    size = 4
    os.environ.update(VERBENA_HOSTID=f"host-{rank % 2}", VERBENA_IBVERBS_LIB="softverbs")
    with driver.open_context(rank) as context:
        with pytest.raises(verbena.VerbenaError, match="works only if all ranks of the team are on one host"):
            _make(context)
        assert find_hosts(context) == [0, 1, 0, 1]
        sizes = {"experts": EXPERTS, "max_tokens": MAX_TOKENS, "top_k": TOP_K, "hidden": HIDDEN, "blocks": 2}
        assert verbena.moe.ExpertExchange.workspace_bytes(size, hosts=2, **sizes) != verbena.moe.ExpertExchange.workspace_bytes(size, **sizes)
        with verbena.moe.ExpertExchange(context, **sizes) as exchange:
            for step in range(4):
                sent = exchange.dispatch(*_draw(rank, step))
                _synchronize()
                exchange.check_error()
                _check_received(sent, rank, size, step)
                expert_rows = _run_experts(sent, rank, size)
                added = (expert_rows.float() * sent.weights.unsqueeze(-1)).nan_to_num(0).sum(2).to(torch.bfloat16)
                results = [exchange.combine(expert_rows, sent, "reduced"), exchange.combine(added, sent, "rows")]
                _synchronize()
                exchange.check_error()
                for result in results:
                    assert torch.allclose(result.double(), _expect_sums(rank, step), rtol=2 ** -6, atol=2.0)


@on_ranks(3)
def test_a_rank_that_is_no_member(rank):
    with driver.open_context(rank) as context:
        pair = context.create_team([0, 1] if rank < 2 else [])
        with _make(context, team=pair, is_member=rank < 2) as exchange:
            rows, ids, weights = _draw(rank, 0)
            if rank < 2:
                sent = exchange.dispatch(rows, ids, weights)
                _synchronize()
                exchange.check_error()
                _check_received(sent, rank, 2, 0)
            else:
                assert exchange.ranks == 0
                with pytest.raises(verbena.VerbenaError, match="not a member"):
                    exchange.dispatch(rows, ids, weights)
            exchange.reset()


@pytest.mark.skipif(not hasattr(torch, "float8_e4m3fn"), reason="this PyTorch has no e4m3")
@on_ranks(2)
def test_rows_are_cast_on_the_way(rank):
    with driver.open_context(rank) as context, _make(context) as exchange:
        rows, ids, weights = _draw(rank, 0)
        rows = (rows + 0.125).contiguous()
        sent = exchange.dispatch(rows, ids, weights, cast="fp8_block")
        _synchronize()
        exchange.check_error()
        assert sent.rows.dtype == torch.float8_e4m3fn and list(sent.scales.shape) == [2, MAX_TOKENS, 2]
        for source, token, _ in _list_expected(rank, 2, 0):
            at = (sent.sources[source] == token).nonzero()[0, 0]
            given = (_draw(source, 0)[0] + 0.125)[token].float()
            for block in range(2):
                part = slice(128 * block, min(128 * block + 128, HIDDEN))
                scale = max(given[part].abs().max().item(), 1e-4) / 448
                assert sent.scales[source, at, block].item() == pytest.approx(scale, rel=1e-6)
                back = sent.rows[source, at, part].float() * sent.scales[source, at, block]
                assert torch.allclose(back, given[part], rtol=2 ** -3, atol=scale)


@on_ranks(3)
def test_a_peer_that_does_not_come_is_named(rank):
    os.environ["VERBENA_SYMM_TIMEOUT_MS"] = "400"
    with driver.open_context(rank) as context, _make(context) as exchange:
        rows, ids, weights = _draw(rank, 2)
        if rank != 2:
            sent = exchange.dispatch(rows, ids, weights)
            _synchronize()
            with pytest.raises(verbena.VerbenaError, match="rank 2") as told:
                exchange.check_error()
            assert told.value.result == verbena.Result.TIMEOUT and not sent.counts.any() and (sent.ids == -1).all()
        context.barrier()
        exchange.reset()
        exchange.dispatch(rows, ids, weights)
        _synchronize()
        exchange.check_error()


@on_ranks(3)
def test_a_peer_is_left_out(rank):
    """Rank 2 makes no calls between two resets."""
    with driver.open_context(rank) as context, _make(context) as exchange:
        rows, ids, weights = _draw(rank, 0)
        for living in ([0, 1], [0, 1, 2]):
            if rank in living:
                exchange.set_living(living)
                assert exchange.get_living() == living
                sent = exchange.dispatch(rows, ids, weights)
                _synchronize()
                exchange.check_error()
                result = exchange.combine(_run_experts(sent, rank, 3), sent)
                _synchronize()
                exchange.check_error()
                is_there = (ids >= 0) & (ids < EXPERTS // 3 * len(living))
                factors = torch.where(is_there, weights * (ids + 1), torch.zeros(())).sum(1, keepdim=True)
                assert torch.allclose(result.double(), rows.double() * factors, rtol=2 ** -6, atol=2.0)
                with pytest.raises(verbena.VerbenaError, match="excludes this rank"):
                    exchange.set_living([(rank + 1) % 3])
            if living == [0, 1] and rank != 2:
                with pytest.raises(verbena.VerbenaError, match="verbena_moe_reset"):
                    exchange.set_living([0, 1, 2])
            exchange.reset()


@on_ranks(2)
def test_operators(rank):
    driver.use_gpu(rank)
    from verbena.ops import register_torch_ops
    register_torch_ops("CPU")
    with verbena.SymmetricContext.from_environment() as context, _make(context) as exchange:
        verbena.moe.set_exchange("experts", exchange)
        rows, ids, weights = _draw(rank, 2)

        def layer(rows, ids, weights):
            came, _, handle, _, _ = torch.ops.verbena.moe_dispatch(rows, ids, weights, None, "experts")
            first = torch.ops.verbena.moe_combine(came, handle, rows.shape[0], "experts", "rows")
            came, _, handle, _, _ = torch.ops.verbena.moe_dispatch(rows, ids, weights, None, "experts", grouping="ragged", alignment=4)
            return first, torch.ops.verbena.moe_combine(came, handle, rows.shape[0], "experts", "reduced", "ragged")
        with torch.inference_mode():
            want = layer(rows, ids, weights)
            _synchronize()
            if torch.__version__ >= "2.6":
                # The graph alone, from fake tensors: generated code would read what an emulated GPU has not written yet.
                from torch.fx.experimental.proxy_tensor import make_fx
                graph = make_fx(layer, tracing_mode="fake")(rows, ids, weights)
                got = graph(rows, ids, weights)
                _synchronize()
                assert all(torch.equal(one, other) for one, other in zip(want, got))
        exchange.check_error()
        assert [list(one.shape) for one in want] == [[len(rows), HIDDEN]] * 2
        verbena.moe.set_exchange("experts", None)
        with pytest.raises(KeyError, match="no exchange has the name 'experts'"):
            verbena.moe.get_exchange("experts")
