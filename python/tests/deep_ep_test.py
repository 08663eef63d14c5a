"""verbena.integrations.deep_ep on emulated GPUs, imported as deep_ep: rows, counts, handles and sums of the low-latency calls, with and without
FP8 and hooks, two batches in flight."""
import sys

import pytest

import driver
import verbena
from ranks import run_ranks
from verbena.integrations.deep_ep import find_folder

torch = pytest.importorskip("torch")

EXPERTS, MAX_TOKENS, TOP_K, HIDDEN = 8, 6, 3, 640


def _draw(rank, seed):
    """What a rank gives, on whatever rank asks. All numbers are small: bfloat16 has them and their sums exactly."""
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
    """A counter that reads when the kernels have run: PyTorch on the host does not wait for an emulated GPU."""

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
    assert scales.stride(-2) == 1 or scales.shape[-2] == 1 or scales.shape[-1] == 1, "columns"
    if scales.dtype == torch.int32:
        exponents = scales.contiguous().view(torch.uint8).int()[..., :-(-HIDDEN // 128)]
        scales = torch.ldexp(torch.ones(()), exponents - 127)
    return data.float() * scales.repeat_interleave(128, dim=-1)[..., :HIDDEN]


def _check_rows(rows, counts, handle, rank, size, seed, is_exact):
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


def _move(rank, size):
    driver.use_gpu(rank)
    sys.path.insert(0, str(find_folder()))
    import deep_ep
    with verbena.SymmetricContext.from_environment() as context:
        buffer = deep_ep.Buffer(context, 0, deep_ep.Buffer.get_low_latency_rdma_size_hint(MAX_TOKENS, HIDDEN, size, EXPERTS), low_latency_mode=True)
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
        with pytest.raises(NotImplementedError, match="dispatch.. is missing in Verbena's deep_ep"):
            buffer.dispatch(rows)
        with pytest.raises(AttributeError):
            buffer.dispatches
        buffer.clean_low_latency_buffer(MAX_TOKENS, HIDDEN, EXPERTS)
        buffer.destroy()


def _leave_a_peer_out(rank):
    """Rank 1 makes no calls until all ranks clean the mask."""
    driver.use_gpu(rank)
    sys.path.insert(0, str(find_folder()))
    import deep_ep
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
                with pytest.raises(verbena.VerbenaError, match="left out of calls"):
                    buffer.low_latency_update_mask_buffer(1, False)
                buffer.low_latency_query_mask_buffer(status)
                assert status.tolist() == [0, 1]
            buffer.low_latency_clean_mask_buffer()
        buffer.destroy()


def test_a_rank_is_left_out():
    run_ranks(2, _leave_a_peer_out)


@pytest.mark.parametrize("size", [1, 2, 4])
def test_low_latency_calls(size):
    run_ranks(size, _move, size)


def test_the_name_is_on_no_path_by_default():
    assert str(find_folder()) not in sys.path and (find_folder() / "deep_ep" / "__init__.py").is_file()
