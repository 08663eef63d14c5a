"""Tests quantised all-reduces, norms, and all-reduces fused with norms on tensors, on emulated GPUs. Also tests their operators and the
hooks in which engines fuse them."""

import operator
import os
import types

import pytest

import driver
import verbena
from ranks import on_ranks

torch = pytest.importorskip("torch")

BLOCKS = 2
HIDDEN = 264


def _make(context, **options):
    from verbena.ops import Communicator
    return Communicator(context, blocks=BLOCKS, **options)


def _draw(rank, *shape, dtype=torch.bfloat16):
    return torch.randn(shape, generator=torch.Generator().manual_seed(100 + rank)).to(dtype)


def _synchronize():
    driver.call("cuStreamSynchronize", None)


def _norm(x, residual, weight, epsilon=1e-6, offset=0.0):
    h = x.float() + (0 if residual is None else residual.float())
    out = h / torch.sqrt((h * h).mean(-1, keepdim=True) + epsilon) * (offset + weight.float())
    return out, h.to(x.dtype)


def _is_close(got, want, ulps=1.0):
    return bool(((got.float() - want.float()).abs() <= ulps * 2.0 ** -7 * want.float().abs() + 1e-6).all())


@on_ranks(3)
def test_all_reduces_in_few_bits(rank):
    from verbena.ops import CODECS, Choice
    with driver.open_context(rank) as context, _make(context) as ops:
        parts = [_draw(other, 3000) for other in range(ops.size)]
        exact = sum(part.double() for part in parts)
        limits = {"fp8": 0.036, "int8": 0.0095, "int6": 0.034, "int4": 0.12, "mxfp8": 0.038, "fp8_int8": 0.026, "int4_int8": 0.08}
        assert limits.keys() == CODECS.keys()
        for codec, limit in limits.items():
            forced = Choice(CODECS[codec], BLOCKS, 64)
            got = [ops.all_reduce_quantised(parts[rank], codec, choice=forced, seed=seed) for seed in (0, 5)]
            _synchronize()
            for one, most in zip(got, (limit, 2 * limit)):
                assert float((one.double() - exact).norm() / exact.norm()) <= most, codec
                same = ops.all_gather(one, 0)
                _synchronize()
                assert all(torch.equal(same[:3000], other) for other in same.chunk(ops.size)), "the same on all ranks"
        # Small ones, and numbers of 32 bits, are not coded.
        for part in (parts[rank][:100], parts[rank].float()):
            coded, plain = ops.all_reduce_quantised(part, "int4"), ops.all_reduce(part)
            _synchronize()
            assert torch.equal(coded, plain)
        large = torch.empty(1 << 20, dtype=torch.bfloat16)
        assert ops.choose_quantised(large, "int6").algorithm.name == "INT6"
        for codec in ("int8", "fp8_int8"):
            assert ops.choose_quantised(large, codec).algorithm.name == "TWO_SHOT", "worth it from twice that on"
        with pytest.raises(ValueError, match="int5"):
            ops.all_reduce_quantised(parts[rank], "int5")
        with pytest.raises(verbena.VerbenaError, match="sums float16 or bfloat16"):
            ops.all_reduce(parts[rank].float(), choice=Choice(CODECS["int4"], BLOCKS, 64))
        ops.check_error()


@on_ranks(2)
def test_norms_behind_collectives(rank):
    from verbena.ops import Norm, Quantisation
    with driver.open_context(rank) as context, _make(context) as ops:
        parts = [_draw(other, 7, HIDDEN) for other in range(ops.size)]
        residual, weight = _draw(50, 7, HIDDEN), _draw(51, HIDDEN)
        total = sum(part.float() for part in parts).to(torch.bfloat16)
        want, summed = _norm(total, residual, weight, offset=1.0)
        norm = Norm(weight, weight_offset=1.0)
        fused = ops.all_reduce_rms_norm(parts[rank], norm, residual)
        coded = ops.all_reduce_rms_norm(parts[rank], norm, residual, codec="int8")  # so small: as it is
        apart = ops.rms_norm(total, norm, residual)
        double = torch.cat([total, total], 1)  # a host's allocator knows nothing of streams: what is under way stays
        strided = ops.rms_norm(double[:, :HIDDEN], norm, residual)
        _synchronize()
        assert _is_close(fused.output, want) and torch.equal(fused.residual, summed)
        for other in (coded, apart, strided):
            assert torch.equal(fused.output, other.output) and torch.equal(fused.residual, other.residual)
        # In place, padded, without a residual, rows of three dimensions.
        own = residual.clone()
        padded = ops.all_reduce_rms_norm(parts[rank], Norm(weight, weight_offset=1.0, padding=8), own, residual_out=own)
        alone = ops.all_reduce_rms_norm(parts[rank].view(7, 1, HIDDEN), Norm(weight))
        _synchronize()
        assert torch.equal(padded.output[:, :HIDDEN], fused.output) and not padded.output[:, HIDDEN:].any()
        assert padded.residual is own and torch.equal(own, summed)
        assert alone.output.shape == (7, 1, HIDDEN) and torch.equal(alone.residual.view(7, HIDDEN), total)
        share = -(-7 // ops.size)
        mine = slice(rank * share, min(7, (rank + 1) * share))
        for kind in Quantisation:
            if kind in (Quantisation.NONE, Quantisation.MXFP8_SWIZZLED):
                continue
            for layout in ("rows", "columns", "tma"):
                scale = torch.tensor([0.02]) if kind == Quantisation.FP8_TENSOR else None
                quantising = Norm(weight, weight_offset=1.0, quantisation=kind, scale=scale, scale_layout=layout)
                one = ops.all_reduce_rms_norm(parts[rank], quantising, residual)
                two = ops.rms_norm(total, quantising, residual)
                sharded = ops.reduce_scatter_rms_norm_all_gather(parts[rank], quantising, residual[mine])
                _synchronize()
                for other in (two, sharded):
                    assert torch.equal(one.quantised.view(torch.uint8), other.quantised.view(torch.uint8)), (kind, layout)
                    assert torch.equal(one.scales, other.scales) and torch.equal(one.output, other.output), (kind, layout)
                assert torch.equal(sharded.residual, summed[mine])
        token = ops.rms_norm(total, Norm(weight, quantisation=Quantisation.INT8_TOKEN, has_output=False), residual)
        plain = ops.rms_norm(total, Norm(weight), residual)
        swizzled = ops.rms_norm(total, Norm(weight, quantisation=Quantisation.MXFP8_SWIZZLED), residual)
        _synchronize()
        assert token.output is None
        largest = plain.output.float().abs().amax(1, keepdim=True)
        assert torch.allclose(token.scales, largest / 127)
        assert ((token.quantised.float() * token.scales - plain.output.float()).abs() <= token.scales * 0.501).all()
        assert swizzled.scales.numel() == 3 * 512
        for wrong in (lambda: ops.rms_norm(total, Norm(weight[:5])), lambda: ops.rms_norm(total, Norm(weight), residual[:2]),
                      lambda: ops.rms_norm(total, Norm(weight, quantisation=Quantisation.FP8_BLOCK, scale_layout="odd")),
                      lambda: ops.rms_norm(total, Norm(weight, quantisation=Quantisation.FP8_TENSOR))):
            with pytest.raises(ValueError):
                wrong()
        with pytest.raises(verbena.VerbenaError, match="swizzled scales cannot be gathered"):
            ops.reduce_scatter_rms_norm_all_gather(parts[rank], Norm(weight, quantisation=Quantisation.MXFP8_SWIZZLED))
        ops.check_error()


def _finalize(experts, indices, weights, shared):
    """The row of each token, added in double. The tests' elements make every partial sum exact."""
    rows = torch.zeros(len(indices), HIDDEN, dtype=torch.float64) if shared is None else shared.double()
    for k in range(indices.shape[1]):
        chosen = indices[:, k] >= 0
        weight = torch.ones(len(indices)) if weights is None else weights[:, k]
        rows[chosen] += weight[chosen, None].double() * experts[indices[chosen, k].long()].double()
    return rows.to(experts.dtype)


@on_ranks(3)
def test_outputs_of_experts_are_finalized(rank):
    from verbena.ops import Algorithm, Choice, Norm, register_torch_ops, set_group
    driver.use_gpu(rank)
    register_torch_ops("CPU")
    with verbena.SymmetricContext.from_environment() as context, _make(context) as ops:
        set_group("tp", ops)
        numbers = torch.Generator().manual_seed(7 + rank)
        weight = _draw(51, HIDDEN)
        for tokens, top_k, has_weights, has_shared in ((5, 1, False, False), (7, 8, True, True), (1, 11, True, False), (40, 3, False, True)):
            # Other numbers of experts' rows on each rank.
            experts = torch.randint(-8, 8, (2 * tokens + rank + 1, HIDDEN), generator=numbers).to(torch.bfloat16) / 4
            indices = torch.randint(-1, len(experts), (tokens, top_k), generator=numbers, dtype=torch.int32)
            weights = torch.randint(1, 16, (tokens, top_k), generator=numbers).float() / 16 if has_weights else None
            shared = torch.randint(-8, 8, (tokens, HIDDEN), generator=numbers).to(torch.bfloat16) if has_shared else None
            residual, norm = _draw(50, tokens, HIDDEN), Norm(weight)
            apart = torch.zeros(len(experts), HIDDEN + 8, dtype=torch.bfloat16)  # rows that are not contiguous
            apart[:, :HIDDEN] = experts
            x = _finalize(experts, indices, weights, shared)
            want = ops.all_reduce_rms_norm(x, norm, residual)
            for choice in (None, Choice(Algorithm.ONE_SHOT), Choice(Algorithm.TWO_SHOT), Choice(Algorithm.BULK_TWO_SHOT)):
                for rows in (experts, apart[:, :HIDDEN]):
                    got = ops.moe_finalize_all_reduce_rms_norm(rows, indices, weights, norm, residual, shared=shared, choice=choice)
                    _synchronize()
                    assert torch.equal(got.output, want.output) and torch.equal(got.residual, want.residual), (tokens, choice)
            named = torch.ops.verbena.moe_finalize_all_reduce_rms_norm(experts, indices, weights, shared, residual, weight, 1e-6, "tp")
            _synchronize()
            assert torch.equal(named[0], want.output) and torch.equal(named[1], want.residual)
        # One kernel or several: the same bits for any numbers.
        experts, weights = _draw(rank, 33, HIDDEN), torch.rand(9, 4, generator=numbers)
        indices = torch.randint(0, 33, (9, 4), generator=numbers, dtype=torch.int32)
        one, several = (ops.moe_finalize_all_reduce_rms_norm(experts, indices, weights, Norm(weight, padding=padding), choice=Choice(way))
                        for way, padding in ((Algorithm.ONE_SHOT, 0), (Algorithm.TWO_SHOT, 8)))
        _synchronize()
        assert torch.equal(one.output, several.output[:, :HIDDEN]) and torch.equal(one.residual, several.sum)
        for wrong in (lambda: ops.moe_finalize_all_reduce_rms_norm(experts, indices.long(), weights, Norm(weight)),
                      lambda: ops.moe_finalize_all_reduce_rms_norm(experts, indices, weights[:, :2], Norm(weight)),
                      lambda: ops.moe_finalize_all_reduce_rms_norm(experts, indices, weights, Norm(weight), shared=experts)):
            with pytest.raises(ValueError, match="must"):
                wrong()
        with torch.inference_mode():
            meta = torch.empty(9, 4, dtype=torch.int32, device="meta")
            shapes = torch.ops.verbena.moe_finalize_all_reduce_rms_norm(experts.to("meta"), meta, None, None, None, None, 1e-6, "tp")
            assert [tuple(one.shape) for one in shapes] == [(9, HIDDEN)] * 2
        set_group("tp", None)
        ops.check_error()


@on_ranks(2)
def test_operators_and_graphs(rank):
    from verbena.ops import Norm, Quantisation, register_torch_ops, set_group
    driver.use_gpu(rank)
    register_torch_ops("CPU")
    with verbena.SymmetricContext.from_environment() as context, _make(context) as ops:
        set_group("tp", ops)
        parts = [_draw(other, 5, HIDDEN) for other in range(ops.size)]
        residual, weight = _draw(50, 5, HIDDEN), _draw(51, HIDDEN)
        mine = parts[rank]
        output, summed = torch.ops.verbena.all_reduce_rms_norm(mine, residual, weight, 1e-6, "tp", 1.0, True)
        want = ops.all_reduce_rms_norm(mine, Norm(weight, 1e-6, 1.0, True), residual)
        quantised = torch.ops.verbena.all_reduce_rms_norm_quant(mine, residual, weight, None, "fp8_block", 1e-6, "tp",
                                                                scale_layout="columns")
        wanted = ops.all_reduce_rms_norm(mine, Norm(weight, quantisation=Quantisation.FP8_BLOCK, scale_layout="columns"), residual)
        coded = torch.ops.verbena.all_reduce_quantised(mine, "tp", "int4")
        plain = torch.ops.verbena.all_reduce(mine, "tp")
        local = torch.ops.verbena.rms_norm(plain, residual, weight, 1e-6, "tp")
        _synchronize()
        assert torch.equal(output, want.output) and torch.equal(summed, want.residual)
        assert torch.equal(quantised[2].view(torch.uint8), wanted.quantised.view(torch.uint8))
        assert torch.equal(quantised[3], wanted.scales) and quantised[3].stride() == (1, 5)
        assert torch.equal(coded, plain) and torch.equal(local[1], summed)
        # What only says shapes, without a GPU.
        with torch.inference_mode():
            meta = torch.empty(5, HIDDEN, dtype=torch.bfloat16, device="meta")
            shapes = torch.ops.verbena.all_reduce_rms_norm_quant(meta, meta, meta[0], None, "fp8_block_exponent", 1e-6, "tp")
            assert torch.ops.verbena.all_reduce_quantised(meta, "tp", "fp8").shape == meta.shape
        assert [tuple(one.shape) for one in shapes] == [(5, HIDDEN), (5, HIDDEN), (5, HIDDEN), (5, 1)]
        assert shapes[3].dtype == torch.int32
        _fuse_graphs(ops, mine, residual, weight)
        set_group("tp", None)


def _make_graph(has_residual, has_late_user=False, has_early_user=False, group="tp", reduction="sum"):
    """all_reduce, rms_norm, and who else uses the sum."""
    verbena_ops = torch.ops.verbena
    graph = torch.fx.Graph()
    x, residual, weight = (graph.placeholder(name) for name in ("x", "residual", "weight"))
    total = graph.call_function(verbena_ops.all_reduce.default, (x, group, reduction))
    early = graph.call_function(torch.neg, (total,)) if has_early_user else None
    norm = graph.call_function(verbena_ops.rms_norm.default, (total, residual if has_residual else None, weight, 1e-6, "tp", 0.5))
    results = [graph.call_function(operator.getitem, (norm, place)) for place in (0, 1)]
    late = graph.call_function(torch.neg, (total,)) if has_late_user else None
    graph.output((*results, early, late))
    for node in (x, residual, weight, total):
        node.meta["val"] = torch.empty(0, dtype=torch.bfloat16, device="meta")
    return torch.fx.GraphModule(torch.nn.Module(), graph)


class _InOrder(torch.fx.Interpreter):
    """Runs a graph node by node and waits for the GPU after each node, so that no tensor is freed while a kernel uses it. The allocator for
    host memory knows no streams."""

    def run_node(self, node):
        result = super().run_node(node)
        _synchronize()
        return result


def _fuse_graphs(ops, x, residual, weight):
    from verbena.ops.fusion import FusionPass
    cases = [({"has_residual": True}, 1), ({"has_residual": False}, 1), ({"has_residual": False, "has_late_user": True}, 1),
             ({"has_residual": True, "has_late_user": True}, 0), ({"has_residual": False, "has_early_user": True}, 0),
             ({"has_residual": True, "group": "other"}, 0), ({"has_residual": True, "reduction": "max"}, 0)]
    for options, count in cases:
        module = _make_graph(**options)
        fusing = FusionPass("tp")
        if "group" not in options:
            before = _InOrder(module).run(x, residual, weight)
        fusing(module.graph)
        module.recompile()
        assert fusing.count_fused == count, options
        names = [str(node.target) for node in module.graph.nodes]
        assert any("all_reduce_rms_norm" in name for name in names) == (count == 1)
        if count:
            assert "verbena.all_reduce.default" not in names
            after = _InOrder(module).run(x, residual, weight)
            assert all(one is two or torch.equal(one, two) for one, two in zip(before, after)), options
    assert FusionPass("tp").uuid() != FusionPass("tp", codec="int4").uuid()


@on_ranks(2)
def test_quick_reduce_settings(rank, tmp_path):
    from ops_test import _make_group
    from verbena.integrations.quick_reduce import QuickReduce
    driver.use_gpu(rank)
    group = _make_group(rank, 2, tmp_path)
    os.environ.update(AITER_QUICK_REDUCE_QUANTIZATION="INT4", VERBENA_SYMM_HEAP_BYTES="1g")
    from verbena.integrations import engine as engines
    engines.Communicator = _make  # a host has no room for the threads of as many blocks as a GPU has
    engine = engines.EngineCollectives(group, torch.device("cpu"))
    assert engine.quick_reduce == QuickReduce("INT4")
    x = _draw(rank, 4000)
    exact = engine.custom_all_reduce(x)
    engine.quick_reduce = QuickReduce("INT4", min_sizes="mi300")
    left_exact = engine.custom_all_reduce(x)
    _synchronize()
    assert torch.equal(exact, left_exact), "so small a tensor is summed exactly"
    engine.quick_reduce = types.SimpleNamespace(find_codec=lambda dtype, bytes_, ranks: ("int4", True))
    coded = engine.custom_all_reduce(x)
    _synchronize()
    assert 0 < float((coded - exact).float().norm() / exact.float().norm()) < 0.12
    engine.close()


def test_quick_reduce_environment():
    from verbena.integrations.quick_reduce import MI300_MIN_MB, QuickReduce
    read = QuickReduce.from_environment
    assert read({}) == QuickReduce("NONE", 2 << 30, "measured") and read({}).find_codec("bfloat16", 1 << 30, 8) is None
    ours = {"VERBENA_QUICK_REDUCE_QUANTIZATION": "int6", "AITER_QUICK_REDUCE_QUANTIZATION": "FP8",
            "AITER_QUICK_REDUCE_MAX_SIZE_BYTES_MB": "64"}
    assert read(ours) == QuickReduce("INT6", 64 << 20)
    assert read(ours).find_codec("float16", 64 << 20, 4) == ("int6", False)
    assert read(ours).find_codec("float16", (64 << 20) + 2, 4) is None and read(ours).find_codec("float32", 1 << 20, 4) is None
    table = read({**ours, "VERBENA_QUICK_REDUCE_MIN_SIZES": "mi300"})
    assert table.find_codec("float16", 4 << 20, 4) == ("int6", True) and table.find_codec("float16", (4 << 20) - 2, 4) is None
    assert table.find_codec("float16", 8 << 20, 3) is None, "no row"
    assert len(MI300_MIN_MB) == 6 and MI300_MIN_MB["bfloat16", 8] == (16, 2048, 2048, 2048)
    for wrong in ({"VERBENA_QUICK_REDUCE_QUANTIZATION": "INT3"}, {"VERBENA_QUICK_REDUCE_MIN_SIZES": "best"},
                  {"VERBENA_QUICK_REDUCE_MAX_SIZE_BYTES_MB": "-1"}, {"AITER_QUICK_REDUCE_CAST_BF16_TO_FP16": "1"}):
        with pytest.warns(UserWarning, match="verbena: VERBENA_QUICK_REDUCE"):
            assert read(wrong).regime == "NONE"
