"""Tests verbena.integrations.deep_ep on emulated GPUs, imported as deep_ep, on one host and on several hosts. For low-latency calls, tests
rows, counts, handles and sums, with and without FP8 and hooks, and with two batches in flight. Also tests high-throughput calls and
ElasticBuffer. Runs DeepEP's own tests if DEEP_EP_FOLDER and DEEP_EP_V1_FOLDER are checkouts of DeepEP's main branch and of v1.2.1."""
import os
import sys

import pytest

import driver
import verbena
from ranks import on_ranks, place_on_host
from verbena.integrations.deep_ep import find_folder

torch = pytest.importorskip("torch")

EXPERTS, MAX_TOKENS, TOP_K, HIDDEN = 8, 6, 3, 640
on_hosts = pytest.mark.parametrize("size, hosts", [(1, 1), (2, 1), (4, 1), (2, 2), (4, 2)])


def _draw(rank, seed):
    """Returns the input of a rank; any rank can call this function. All numbers are small, so that bfloat16 represents them and their sums
    exactly."""
    generator = torch.Generator().manual_seed(100 * seed + rank)
    tokens = 0 if (rank + seed) % 4 == 3 else MAX_TOKENS - rank % 2
    rows = torch.randint(-4, 5, (tokens, HIDDEN), generator=generator).to(torch.bfloat16)
    ids = torch.stack([torch.randperm(EXPERTS, generator=generator)[:TOP_K] for _ in range(tokens)]) if tokens else torch.empty(0, TOP_K).long()
    ids[torch.rand(ids.shape, generator=generator) < 0.2] = -1
    weights = torch.randint(1, 4, ids.shape, generator=generator).float()
    return rows, ids, weights


def _synchronize():
    driver.call("cuStreamSynchronize", None)


class _Statistics:
    """A counter that reads its values only after the kernels have run, because PyTorch on the host does not wait for an emulated GPU."""

    def __init__(self, experts):
        self.counts = torch.zeros(experts, dtype=torch.int32)

    def add_(self, counts):
        _synchronize()
        self.counts += counts


def _widen(rows):
    """The numbers of the dispatched rows."""
    if not isinstance(rows, tuple):
        return rows.float()
    data, scales = rows
    if scales.dtype == torch.int32:
        exponents = scales.contiguous().view(torch.uint8).int()[..., :-(-HIDDEN // 128)]
        scales = torch.ldexp(torch.ones(()), exponents - 127)
    return data.float() * scales.repeat_interleave(128, dim=-1)[..., :HIDDEN]


def _is_in_columns(scales):
    return scales.stride(-2) == 1 or 1 in scales.shape[-2:]


def _check_rows(rows, counts, handle, rank, size, seed, is_exact):
    assert not isinstance(rows, tuple) or _is_in_columns(rows[1])
    local = EXPERTS // size
    numbers, sources, ranges = _widen(rows), handle[0], handle[1]
    assert handle[2:] == (MAX_TOKENS, HIDDEN, EXPERTS) and len(handle) == 5
    for expert in range(local):
        place = 0
        for source in range(size):
            theirs, ids, _ = _draw(source, seed)
            tokens = (ids == rank * local + expert).any(1).nonzero().flatten().tolist()
            assert ranges[expert, source].item() == place << 32 | len(tokens)
            for token in tokens:
                assert sources[expert, place] == token
                want = theirs[token].float()
                assert torch.equal(numbers[expert, place], want) if is_exact else torch.allclose(numbers[expert, place], want, rtol=2 ** -3, atol=0.01)
                place += 1
        assert counts[expert] == place and (sources[expert, place:] == -1).all()


def _expect(rank, seed):
    """Expert e gives its rows times e % 3 + 1."""
    rows, ids, weights = _draw(rank, seed)
    return (rows.float() * (torch.where(ids >= 0, weights * (ids % 3 + 1), torch.zeros(()))).sum(1, keepdim=True)).to(torch.bfloat16)


def _run_experts(numbers, counts, rank, size):
    local = EXPERTS // size
    out = torch.full(numbers.shape, float("nan"), dtype=torch.bfloat16)
    for expert in range(local):
        out[expert, :counts[expert]] = (numbers[expert, :counts[expert]] * ((rank * local + expert) % 3 + 1)).to(torch.bfloat16)
    return out


@on_hosts
@on_ranks("size")
def test_low_latency_calls(rank, size, hosts):
    place_on_host(rank, size, hosts)
    deep_ep = _find_deep_ep(rank)
    with verbena.SymmetricContext.from_environment() as context:
        buffer = deep_ep.Buffer(context, 0, deep_ep.Buffer.get_low_latency_rdma_size_hint(MAX_TOKENS, HIDDEN, size, EXPERTS), low_latency_mode=True)
        assert context.lsa.size == size // hosts
        assert (buffer.rank, buffer.group_size) == (rank, size) and buffer.num_rdma_bytes > 0 and deep_ep.topk_idx_t == torch.int64
        forms = [{"use_fp8": False}]
        if hasattr(torch, "float8_e4m3fn"):
            forms += [{}, {"round_scale": True}, {"round_scale": True, "use_ue8m0": True}]
        for seed, form in enumerate(forms):
            rows, ids, weights = _draw(rank, seed)
            statistics = _Statistics(EXPERTS // size)
            came, counts, handle, event, hook = buffer.low_latency_dispatch(
                rows, ids, MAX_TOKENS, EXPERTS, cumulative_local_expert_recv_stats=statistics, async_finish=seed % 2 == 1, **form)
            assert hook is None and torch.equal(statistics.counts, counts)
            _check_rows(came, counts, handle, rank, size, seed, is_exact="use_fp8" in form)
            out = torch.empty_like(rows)
            combined, event, hook = buffer.low_latency_combine(_run_experts(_widen(came), counts, rank, size), ids, weights, handle, out=out)
            _synchronize()
            assert combined is out and hook is None
            if "use_fp8" in form:
                assert torch.equal(combined, _expect(rank, seed))
        # Two batches in flight, received by hooks; the experts write into the memory that is combined.
        batches = []
        for seed in (7, 8):
            rows, ids, weights = _draw(rank, seed)
            batches.append((seed, ids, weights, buffer.low_latency_dispatch(rows, ids, MAX_TOKENS, EXPERTS, use_fp8=False, return_recv_hook=True)))
        results = []
        for seed, ids, weights, (came, counts, handle, event, hook) in batches:
            hook()
            _synchronize()
            _check_rows(came, counts, handle, rank, size, seed, is_exact=True)
            buffer.get_next_low_latency_combine_buffer(handle).copy_(_run_experts(came.float(), counts, rank, size))
            results.append((seed, *buffer.low_latency_combine(None, ids, weights, handle, zero_copy=True, return_recv_hook=True)))
        for seed, combined, event, hook in results:
            hook()
            _synchronize()
            assert torch.equal(combined, _expect(rank, seed))
        with pytest.raises(AttributeError):
            buffer.dispatches
        buffer.clean_low_latency_buffer(MAX_TOKENS, HIDDEN, EXPERTS)
        buffer.destroy()


@pytest.mark.parametrize("hosts", [1, 2])
@on_ranks(2)
def test_a_rank_is_left_out(rank, hosts):
    """Rank 1 makes no calls until all ranks clean the mask."""
    place_on_host(rank, 2, hosts)
    deep_ep = _find_deep_ep(rank)
    with verbena.SymmetricContext.from_environment() as context:
        buffer = deep_ep.Buffer(context, low_latency_mode=True, enable_shrink=True)
        status = torch.full((2,), 7, dtype=torch.int32)
        for left_out in ([], [1], []):
            if left_out and rank == 0:
                buffer.low_latency_update_mask_buffer(1, True)
            if rank not in left_out:
                buffer.low_latency_query_mask_buffer(status)
                assert status.tolist() == [int(one in left_out) for one in range(2)]
                for seed in (1, 2):
                    rows, ids, weights = _draw(rank, seed)
                    came, counts, handle, _, _ = buffer.low_latency_dispatch(rows, ids, MAX_TOKENS, EXPERTS, use_fp8=False)
                    _synchronize()
                    combined, _, _ = buffer.low_latency_combine(_run_experts(came.float(), counts, rank, 2), ids, weights, handle)
                    _synchronize()
                    is_there = (ids >= 0) & (ids < EXPERTS // 2 * (2 - len(left_out)))
                    factors = torch.where(is_there, weights * (ids % 3 + 1), torch.zeros(())).sum(1, keepdim=True)
                    assert torch.equal(combined, (rows.float() * factors).to(torch.bfloat16))
            if left_out and rank == 0:
                with pytest.raises(verbena.VerbenaError, match="excluded from earlier calls"):
                    buffer.low_latency_update_mask_buffer(rank_to_mask=1)
                buffer.low_latency_query_mask_buffer(status)
                assert status.tolist() == [0, 1]
            buffer.low_latency_clean_mask_buffer()
        buffer.destroy()


@on_ranks(4)
def test_what_hosts_refuse(rank):
    """Each constructor names the remedy, and frees the memory that it has allocated, so that the next constructor works."""
    place_on_host(rank, 4, 2)
    deep_ep = _import_deep_ep(rank)
    with verbena.SymmetricContext.from_environment() as context:
        with pytest.raises(NotImplementedError, match="Pass enable_shrink=False, or have one rank on each host"):
            deep_ep.Buffer(context, low_latency_mode=True, enable_shrink=True)
        with pytest.raises(NotImplementedError, match="2 hosts, and .*Pass allow_multiple_reduction=True"):
            deep_ep.ElasticBuffer(context, allow_multiple_reduction=False)
        buffer = deep_ep.Buffer(context, low_latency_mode=True)
        with pytest.raises(NotImplementedError, match="Pass enable_shrink=False"):
            buffer.low_latency_update_mask_buffer(1, True)
        buffer.destroy()


@on_ranks(3)
def test_hosts_with_other_numbers_of_ranks(rank):
    place_on_host(rank, 3, 2)
    deep_ep = _import_deep_ep(rank)
    with verbena.SymmetricContext.from_environment() as context:
        for kind in (deep_ep.Buffer, deep_ep.ElasticBuffer):
            with pytest.raises(verbena.VerbenaError, match="with the same number of ranks on each host"):
                kind(context)


def _find_deep_ep(rank):
    driver.use_gpu(rank)
    sys.path.insert(0, str(find_folder()))
    import deep_ep
    from verbena.integrations import deep_ep as ours, rank_rows
    rank_rows.share_multiprocessors = ours.share_multiprocessors = lambda: 1
    return deep_ep


def _import_deep_ep(rank):
    driver.wait_for_launches()
    torch.set_default_dtype(torch.bfloat16)  # as DeepEP's tests do: no sum may depend on it
    return _find_deep_ep(rank)


ROUTINGS = ["random", "one expert", "nobody"]


def _route(rank, seed, routing):
    """Returns the input of a rank: rows, ids and weights. The numbers of tokens differ between ranks, and one rank, which depends on the
    seed, has no tokens."""
    rows, ids, weights = _draw(rank, seed)
    weights += 2 ** -20 + rank * 2 ** -18  # more bits than bfloat16 has
    if routing == "one expert":
        ids[:, 0], ids[:, 1:] = EXPERTS - 1, -1
    elif routing == "nobody":
        ids[:] = -1
    return rows, ids, weights


def _expect_came(rank, size, seed, routing):
    """Returns the expected rows in order, as [(source rank, token, ids of this rank's experts counted from 0)]."""
    local, came = EXPERTS // size, []
    for source in range(size):
        ids = _route(source, seed, routing)[1] - rank * local
        ids[(ids < 0) | (ids >= local)] = -1
        came += [(source, token, ids[token]) for token in (ids >= 0).any(1).nonzero().flatten().tolist()]
    return came


def _pick(came, seed, routing, which):
    """Returns the part of the sources' input that belongs to the received rows: rows if the index is 0, weights if it is 2."""
    shape = [0, HIDDEN if which == 0 else TOP_K]
    given = [_route(source, seed, routing)[which][token] for source, token, _ in came]
    return torch.stack(given) if given else torch.zeros(shape, dtype=torch.bfloat16 if which == 0 else torch.float32)


def _cast(rows):
    """Returns a pair of e4m3 rows and scales in column-major order. Each scale is a power of two, so that nothing is rounded."""
    scales = torch.full([-(-HIDDEN // 128), rows.shape[0]], 0.5, dtype=torch.float32).t()
    scales[:, 1:] = 2.0
    return (rows.float() / scales.repeat_interleave(128, 1)[:, :HIDDEN]).to(torch.float8_e4m3fn), scales


def _stack_ids(came):
    return torch.stack([ids for _, _, ids in came]) if came else torch.empty(0, TOP_K, dtype=torch.int64)


def _check_high_throughput(buffer, rank, size, hosts, seed, routing, form):
    rows, ids, weights = _route(rank, seed, routing)
    came = _expect_came(rank, size, seed, routing)
    per_rank, per_rdma_rank, per_expert, is_in_rank, event = buffer.get_dispatch_layout(ids, EXPERTS, async_finish=True)
    event.current_stream_wait()
    share = EXPERTS // size
    want_in_rank = torch.stack([((ids // share == one) & (ids >= 0)).any(1) for one in range(size)], 1)
    assert torch.equal(is_in_rank, want_in_rank) and torch.equal(per_rank, want_in_rank.sum(0).int())
    want_in_host = want_in_rank.view(len(ids), hosts, size // hosts).any(2)
    assert per_rdma_rank is None if hosts == 1 else torch.equal(per_rdma_rank, want_in_host.sum(0).int())
    assert per_expert.tolist() == [(ids == expert).sum().item() for expert in range(EXPERTS)]
    layout = {"num_tokens_per_rank": per_rank, "num_tokens_per_rdma_rank": per_rdma_rank, "is_token_in_rank": is_in_rank,
              "num_tokens_per_expert": per_expert}
    x = _cast(rows) if form["fp8"] else rows
    given = {"topk_idx": ids, "topk_weights": weights} if form["top_k"] else {}
    alignment = form["alignment"]
    got, got_ids, got_weights, counts, handle, event = buffer.dispatch(x, **layout, **given, expert_alignment=alignment,
                                                                       previous_event=buffer.capture(), async_finish=True)
    event.current_stream_wait()
    want, want_ids = _pick(came, seed, routing, 0), _stack_ids(came)
    assert (got[0].dtype == torch.float8_e4m3fn and got[1].is_contiguous()) if form["fp8"] else got.dtype == torch.bfloat16
    assert torch.equal(_widen(got), want.float())
    assert counts == [-(-(want_ids == expert).sum().item() // alignment) * alignment for expert in range(share)]
    if form["top_k"]:
        want_weights = _pick(came, seed, routing, 2).masked_fill(want_ids < 0, 0)
        assert torch.equal(got_ids, want_ids) and got_ids.dtype == torch.int64 and torch.equal(got_weights, want_weights)
        worst = size * MAX_TOKENS + 3
        some, some_ids, some_weights, none, worst_handle, event = buffer.dispatch(x, **layout, **given, num_worst_tokens=worst)
        assert none == [] and event.event is None and _widen(some).shape[0] == worst and torch.equal(_widen(some)[:len(came)], want.float())
        assert torch.equal(some_ids[:len(came)], want_ids) and (some_ids[len(came):] == -1).all() and not some_weights[len(came):].any()
        padded = torch.zeros(worst, HIDDEN, dtype=torch.bfloat16)
        padded[:len(came)] = want
        assert torch.equal(buffer.combine(padded, worst_handle)[0], (rows.float() * is_in_rank.sum(1, keepdim=True)).to(torch.bfloat16))
    else:
        assert got_ids is None and got_weights is None
    # The handle, as DeepEP's callers read it.
    ends = [sum(_expects_row(source, receiver, seed, routing, size) for source in range(last + 1)) for last in range(size) for receiver in range(size)]
    if hosts == 1:
        matrix, sent_counts, begins, sources, in_rank, numbers = handle
        assert matrix.dtype == torch.int32 and matrix.flatten().tolist() == ends
        assert sources.tolist() == [token for _, token, _ in came] and torch.equal(in_rank, is_in_rank)
        assert sent_counts.flatten().tolist() == per_rank.tolist() and begins.shape == (size, 1)
        assert torch.equal(numbers >= 0, is_in_rank) and len(handle) == 6
    else:
        in_rank, in_hosts, sent_counts = handle[:3]
        assert torch.equal(in_rank, is_in_rank) and torch.equal(in_hosts.flatten(), per_rdma_rank)
        assert sent_counts.flatten().tolist() == per_rank.tolist() and handle[-4].dtype == torch.int32
        assert handle[-4].tolist() == ends[rank::size] and handle[5].flatten().tolist() == [0, *ends[rank::size]][:size]
        with pytest.raises(NotImplementedError, match="element 7 of the handle is an offset"):
            handle[-3]
    # Other rows by the same handle.
    again, *nothing, event = buffer.dispatch(_cast(-rows) if form["fp8"] else -rows, handle=handle)
    assert torch.equal(_widen(again), -want.float()) and nothing == [None] * 4
    # Under DeepEP's names for ranks of several hosts.
    again, *nothing, event = buffer.internode_dispatch(x, **layout, config=buffer.get_dispatch_config(size))
    assert torch.equal(_widen(again), want.float())
    total, *nothing = buffer.internode_combine(want, nothing[-1], config=buffer.get_combine_config(size))
    assert torch.equal(total, (rows.float() * is_in_rank.sum(1, keepdim=True)).to(torch.bfloat16))
    # Sums: rank r gives its rows times r + 1, and weights of its slots alone.
    factor = (is_in_rank * torch.arange(1, size + 1)).sum(1, keepdim=True).float()
    for biases in range(3):
        bias = tuple(torch.full_like(rows, 3 * one + 1) + 2 ** -7 for one in range(biases))
        total, total_weights, event = buffer.combine((want * (rank + 1)).to(torch.bfloat16), handle, bias=bias[0] if biases == 1 else bias or None,
                                                     topk_weights=got_weights, async_finish=True)
        event.current_stream_wait()
        assert torch.equal(total, (sum(one.float() for one in bias) + rows.float() * factor).to(torch.bfloat16)), biases
        if form["top_k"]:
            assert torch.equal(total_weights, weights.masked_fill(ids < 0, 0))
        else:
            assert total_weights is None


def _expects_row(source, receiver, seed, routing, size):
    ids = _route(source, seed, routing)[1]
    return int(((ids >= 0) & (ids // (EXPERTS // size) == receiver)).any(1).sum())


@pytest.mark.skipif(not hasattr(torch, "float8_e4m3fn"), reason="this PyTorch has no e4m3")
@on_hosts
@on_ranks("size")
def test_high_throughput_calls(rank, size, hosts):
    place_on_host(rank, size, hosts)
    deep_ep = _import_deep_ep(rank)
    with verbena.SymmetricContext.from_environment() as context:
        config = deep_ep.Config(24, 8, 256)
        assert [config.get_rdma_buffer_size_hint(2 * HIDDEN, ranks) > 0 for ranks in (4, 8, 16, 32)] == [False, False, True, True]
        buffer = deep_ep.Buffer(context, config.get_nvl_buffer_size_hint(2 * HIDDEN, size), explicitly_destroy=True)
        forms = [{"fp8": fp8, "top_k": top_k, "alignment": 4 if top_k else 1} for fp8 in (False, True) for top_k in (False, True)]
        for seed, form in enumerate(forms):
            for routing in ROUTINGS if seed == 1 else ROUTINGS[:1]:
                _check_high_throughput(buffer, rank, size, hosts, seed, routing, form)
        rows, ids, weights = _draw(rank, 1)
        per_rank, _, per_expert, in_rank, event = buffer.get_dispatch_layout(ids, EXPERTS)
        with pytest.raises(ValueError, match="no event"):
            event.current_stream_wait()
        layout = {"num_tokens_per_rank": per_rank, "num_tokens_per_expert": per_expert, "config": config}
        most = verbena.moe.ExpertExchange.find_max_tokens(size)
        many = most + 1 if rank == 0 else 2  # refused on all ranks
        with pytest.raises(ValueError, match=f"a rank has {most + 1} tokens, but a call takes at most {most}"):
            buffer.dispatch(torch.zeros(many, HIDDEN, dtype=torch.bfloat16), **layout, is_token_in_rank=torch.ones(many, size, dtype=torch.bool))
        with pytest.raises(ValueError, match="33 tokens, more than the maximum"):
            buffer.dispatch(torch.zeros(33, HIDDEN, dtype=torch.bfloat16), **layout, is_token_in_rank=torch.ones(33, size, dtype=torch.bool),
                            num_worst_tokens=size)
        with pytest.raises(ValueError, match="needs num_tokens_per_rank"):
            buffer.dispatch(rows)
        with pytest.raises(ValueError, match="pass both topk_idx and topk_weights"):
            buffer.dispatch(rows, **layout, is_token_in_rank=in_rank, topk_idx=ids)
        deep_ep.Buffer.set_num_sms(12)
        assert [find(size).num_sms for find in (deep_ep.Buffer.get_dispatch_config, deep_ep.Buffer.get_combine_config)] == [12, 12]
        with pytest.raises(TypeError, match="elements of 4 bytes"):
            buffer.dispatch(rows, **layout, is_token_in_rank=in_rank, topk_idx=ids, topk_weights=weights.to(torch.bfloat16))
        with pytest.raises(ValueError, match="must be even"):
            deep_ep.Buffer.set_num_sms(3)
        assert buffer.get_local_buffer_tensor(torch.uint8, torch.Size([16])).shape == (16,)
        buffer.destroy()


def _check_elastic(buffer, rank, size, hosts, seed, routing, form):
    rows, ids, weights = _route(rank, seed, routing)
    came, share = _expect_came(rank, size, seed, routing), EXPERTS // size
    want, want_ids = _pick(came, seed, routing, 0), _stack_ids(came)
    want_weights = _pick(came, seed, routing, 2).masked_fill(want_ids < 0, 0)
    counts = [(want_ids == expert).sum().item() for expert in range(share)]
    statistics = torch.ones(share, dtype=torch.int32)
    arguments = {"num_experts": EXPERTS, "num_max_tokens_per_rank": MAX_TOKENS, "expert_alignment": 4, "do_cpu_sync": form["sync"],
                 "do_expand": form["expand"], "topk_weights": weights, "previous_event": buffer.capture(), "async_with_compute_stream": True,
                 "cumulative_local_expert_recv_stats": statistics, "do_zero_padding": form["expand"],
                 "use_tma_aligned_col_major_sf": form["fp8"]}
    x = _cast(rows) if form["fp8"] else rows
    got, got_ids, got_weights, handle, event = buffer.dispatch(x, ids, **arguments)
    with event(release_handle=True):
        pass
    assert not form["fp8"] or _is_in_columns(got[1])
    assert event.event is None and statistics.tolist() == [count + 1 for count in counts]
    assert handle.psum_num_recv_tokens_per_scaleup_rank[-1] == len(came)
    assert handle.recv_src_metadata[:len(came), 0].tolist() == [source * MAX_TOKENS + token for source, token, _ in came]
    assert handle.num_unaligned_recv_tokens_per_expert.tolist() == counts
    aligned = [-(-count // 4) * 4 for count in counts]
    assert handle.num_recv_tokens_per_expert_list == (aligned if form["sync"] else [])
    assert handle.topk_idx.data_ptr() != ids.data_ptr() or not ids.numel()
    begins = [sum(aligned[:expert]) for expert in range(share)]
    if form["expand"]:
        assert handle.psum_num_recv_tokens_per_expert.tolist() == [begin + count for begin, count in zip(begins, counts)] and got_ids is None
        expected = [(expert, row, slot) for expert in range(share) for row, (_, _, one) in enumerate(came) for slot in (one == expert).nonzero().flatten().tolist()]
        number = [0] * share
        places = torch.full([len(came), TOP_K], -1, dtype=torch.int32)
        for expert, row, slot in expected:
            places[row, slot] = begins[expert] + number[expert]
            number[expert] += 1
        assert torch.equal(handle.recv_src_metadata[:len(came), 2:], places)
        data = _widen(got)
        assert data.shape[0] == sum(aligned) if form["sync"] else data.shape[0] >= sum(aligned)
        filled = torch.zeros(data.shape[0], dtype=torch.bool)
        for _, row, slot in expected:
            filled[places[row, slot]] = True
            assert torch.equal(data[places[row, slot]], want[row].float()) and got_weights[places[row, slot]] == want_weights[row, slot]
        assert not data[~filled].any() and not got_weights[~filled].any()
    else:
        assert handle.psum_num_recv_tokens_per_expert.tolist() == [begin + more for begin, more in zip(begins, aligned)]
        assert torch.equal(_widen(got)[:len(came)], want.float()) and torch.equal(got_ids[:len(came)], want_ids)
        assert torch.equal(got_weights[:len(came)], want_weights) and (got_ids[len(came):] == -1).all()
        assert _widen(got).shape[0] == (len(came) if form["sync"] else size * MAX_TOKENS)
    again, again_ids, again_weights, same, event = buffer.dispatch(x, handle=handle, do_expand=form["expand"], do_zero_padding=form["expand"])
    assert same is handle and again_weights is None and torch.equal(_widen(again)[:len(came)], _widen(got)[:len(came)])
    # Factors of the slots: three rows of a rank that bfloat16 adds to another sum than float; and sums of ranks that float adds to another
    # sum in another order.
    factors = torch.tensor([1.0, 2 ** -8, 2 ** -8] if seed % 2 == 0 else [2.0 ** 20, 2 ** -6, -2.0 ** 20], dtype=torch.float32)
    bias = torch.full_like(rows, 2.0 ** 5) if form["bias"] else None
    if form["expand"]:
        given = torch.full(_widen(got).shape, float("nan"), dtype=torch.bfloat16)
        for _, row, slot in expected:
            given[places[row, slot]] = (want[row].float() * factors[slot]).to(torch.bfloat16)
    else:
        given = torch.zeros(_widen(got).shape, dtype=torch.bfloat16)
        for row, (_, _, one) in enumerate(came):
            given[row] = _add_slots(want[row], one >= 0, factors)
    total, total_weights, event = buffer.combine(given, handle, topk_weights=got_weights, bias=bias)
    for token in range(len(rows)):
        rank_of = torch.where(ids[token] >= 0, ids[token] // share, -1)
        last = [max([slot for slot in range(TOP_K) if rank_of[slot] == one], default=-1) for one in range(size)]
        sums = torch.zeros(HIDDEN, dtype=torch.float32) + (0 if bias is None else bias[token].float())
        if hosts > 1:
            sums += _add_hosts([_add_slots(rows[token], rank_of == one, factors).float() for one in range(size)], rank, hosts)
        elif form["expand"] and not buffer.allow_multiple_reduction:
            for slot in (ids[token] >= 0).nonzero().flatten().tolist():
                sums += (rows[token].float() * factors[slot]).to(torch.bfloat16).float()
        else:
            for one in sorted((one for one in range(size) if last[one] >= 0), key=last.__getitem__):
                sums += _add_slots(rows[token], rank_of == one, factors).float()
        assert torch.equal(total[token], sums.to(torch.bfloat16)), token
    assert torch.equal(total_weights, weights.masked_fill(ids < 0, 0))


def _add_hosts(parts, rank, hosts):
    """Adds the ranks' parts of a row. Rounds once for each other host, and once at the end."""
    share = len(parts) // hosts
    sums = [sum(parts[host * share:host * share + share]) for host in range(hosts)]
    others = [one.to(torch.bfloat16).float() for host, one in enumerate(sums) if host != rank // share]
    return sum(others, sums[rank // share]).to(torch.bfloat16).float()


def _add_slots(row, mask, factors):
    total = torch.zeros(HIDDEN, dtype=torch.float32)
    for slot in mask.nonzero().flatten().tolist():
        total += (row.float() * factors[slot]).to(torch.bfloat16).float()
    return total.to(torch.bfloat16)


@pytest.mark.skipif(not hasattr(torch, "float8_e4m3fn"), reason="this PyTorch has no e4m3")
@on_hosts
@on_ranks("size")
def test_elastic_buffer(rank, size, hosts):
    place_on_host(rank, size, hosts)
    deep_ep = _import_deep_ep(rank)
    with verbena.SymmetricContext.from_environment() as context:
        forms = [{"fp8": seed % 2 == 1, "expand": expand, "sync": sync, "bias": seed in (0, 2)}
                 for seed, (expand, sync) in enumerate([(False, True), (True, True), (True, False), (False, False), (True, True)])]
        for adds_twice in (True, False) if hosts == 1 else (True,):
            buffer = deep_ep.ElasticBuffer(context, num_max_tokens_per_rank=MAX_TOKENS, hidden=HIDDEN, allow_multiple_reduction=adds_twice,
                                           explicitly_destroy=True)
            assert buffer.get_logical_domain_size() == (1, size) and buffer.get_physical_domain_size() == (hosts, size // hosts)
            assert (buffer.rank_idx, buffer.num_ranks) == (rank, size)
            assert buffer.num_bytes == deep_ep.ElasticBuffer.get_buffer_size_hint(context, MAX_TOKENS, HIDDEN)
            for seed, form in enumerate(forms if adds_twice else forms[1:3]):
                for routing in ROUTINGS if seed == 1 and adds_twice else ROUTINGS[:1]:
                    _check_elastic(buffer, rank, size, hosts, seed, routing, form)
            buffer.barrier()
            with pytest.raises(NotImplementedError, match="engram_write"):
                buffer.engram_write(None)
            with pytest.raises(ValueError, match="needs topk_idx"):
                buffer.dispatch(torch.zeros(1, HIDDEN, dtype=torch.bfloat16))
            buffer.destroy()


@pytest.mark.parametrize("folder, file, ranks, hosts, arguments", [
    ("DEEP_EP_V1_FOLDER", "tests/test_low_latency.py", 2, 1, "--num-tokens 8 --hidden 1024 --num-topk 4 --num-experts 8"),
    ("DEEP_EP_V1_FOLDER", "tests/test_low_latency.py", 4, 2, "--num-tokens 8 --hidden 1024 --num-topk 4 --num-experts 8"),
    ("DEEP_EP_V1_FOLDER", "tests/test_intranode.py", 2, 1, "--num-tokens 24 --hidden 256 --num-topk 4 --num-experts 16"),
    ("DEEP_EP_FOLDER", "tests/elastic/test_ep.py", 2, 1, "--num-tokens 12 --hidden 256 --num-topk 4 --num-experts 16 --test-first-only")])
def test_the_tests_of_deep_ep(folder, file, ranks, hosts, arguments):
    if folder not in os.environ:
        pytest.skip(f"{folder} is not set: {file} of DeepEP is not here")
    from deep_ep_suite import run_suite
    run_suite(os.environ[folder], file, ranks, arguments.split(), hosts)


def test_the_name_is_on_no_path_by_default():
    assert str(find_folder()) not in sys.path and (find_folder() / "deep_ep" / "__init__.py").is_file()
