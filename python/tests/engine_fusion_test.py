"""Tests the fused all-reduce and norm through the engines' own files, on emulated GPUs: vLLM's compiler passes and SGLang's hooks. The
other parts of the engines (configuration, platforms, other fusions) are replaced."""
import contextlib
import importlib
import re
import sys
import types
from unittest import mock

import pytest

import driver
from engine_files import add_definitions, add_module, find_engine, importable
from ops_test import _draw, _make_group, _synchronize
from ranks import run_ranks

torch = pytest.importorskip("torch")
needs_vllms_torch = pytest.mark.skipif(torch.__version__ < "2.6", reason="this PyTorch is older than vLLM's")

PASSES = "vllm.compilation.passes"
BARE = ["vllm", "vllm.distributed", "vllm.compilation", PASSES]
FLAGS = ["fuse_act_padding", "fuse_allreduce_rms", "fuse_norm_quant", "fuse_act_quant", "fuse_qk_norm_rope_kvcache", "fuse_mla_dual_rms_norm",
         "fuse_rope_kvcache", "fuse_rope_kvcache_cat_mla", "fuse_attn_quant", "enable_qk_norm_rope_fusion"]
HIDDEN = 264


class _FlashInferPass:
    def __init__(self, config):
        raise AssertionError("FlashInfer's workspaces would be made")


def _leave_out_the_rest(folder):
    platform = mock.MagicMock(device_type="cpu")
    platform.is_cuda.return_value = platform.is_cuda_alike.return_value = True
    platform.is_rocm.return_value = platform.is_xpu.return_value = False
    aiter = mock.MagicMock()
    aiter.is_enabled.return_value = aiter.is_rdna_aiter_enabled.return_value = False
    add_module("regex", **re.__dict__)  # another package of the same interface, as far as it is used
    add_module("vllm.config", VllmConfig=object, set_current_vllm_config=lambda *_, **__: contextlib.nullcontext())
    add_module("vllm.config.utils", Range=range)
    add_module("vllm.platforms", current_platform=platform)
    add_module("vllm._aiter_ops", rocm_aiter_ops=aiter)
    add_module("vllm.utils", __path__=[])
    add_module("vllm.utils.system_utils", set_env_var=None, unique_filepath=None)
    add_module("vllm.distributed.parallel_state", get_tp_group=lambda: types.SimpleNamespace(unique_name="tp:0"),
               is_local_first_rank=lambda: False)
    add_module(f"{PASSES}.fusion", __path__=[])
    for path in (folder / PASSES.replace(".", "/") / "fusion").glob("*.py"):
        module = add_module(f"{PASSES}.fusion.{path.stem}")
        module.__getattr__ = lambda name: mock.MagicMock()
    sys.modules[f"{PASSES}.fusion.allreduce_rms_fusion"].AllReduceFusionPass = _FlashInferPass


def _make_config(**flags):
    told = types.SimpleNamespace(**dict.fromkeys(FLAGS, False) | {"eliminate_noops": True, "compute_hash": lambda: "hash"} | flags)
    compilation = mock.MagicMock(pass_config=told)
    config = mock.MagicMock(compilation_config=compilation)
    config.model_config.using_transformers_backend.return_value = False
    return config


class _InOrder(torch.fx.Interpreter):
    def run_node(self, node):
        result = super().run_node(node)
        _synchronize()
        return result


def _trace(function, *arguments):
    from torch.fx.experimental.proxy_tensor import make_fx
    return make_fx(function, tracing_mode="fake")(*arguments)


def _compile_for_vllm(rank, folder, engine):
    import os
    driver.use_gpu(rank)
    os.environ["VERBENA_SYMM_HEAP_BYTES"] = "1g"
    group = _make_group(rank, 2, folder)
    from verbena.integrations import engine as engines
    from verbena.ops import Communicator, register_torch_ops
    register_torch_ops("CPU")
    engines.Communicator = lambda context: Communicator(context, blocks=2)
    with importable(engine, *BARE):
        _leave_out_the_rest(engine)
        from verbena.integrations.vllm import VerbenaAllreduce
        manager_file = importlib.import_module(f"{PASSES}.pass_manager")
        inductor_pass = importlib.import_module(f"{PASSES}.inductor_pass")
        ir = importlib.import_module("vllm.ir")
        communicator = VerbenaAllreduce(group=group, device=torch.device("cpu"))
        library = torch.library.Library("vllm", "DEF")
        library.define("all_reduce(Tensor tensor, str group_name) -> Tensor")
        library.impl("all_reduce", lambda tensor, group_name: communicator.custom_all_reduce(tensor), "CPU")
        library.impl("all_reduce", lambda tensor, group_name: torch.empty_like(tensor), "Meta")
        for flag in (False, True):
            manager = manager_file.PostGradPassManager()
            manager.configure(_make_config(fuse_allreduce_rms=flag))
            names = [type(one).__name__ for one in manager.passes]
            assert names == ["NoOpEliminationPass", "VerbenaFusionPass"], names
            ours = manager.passes[1]
            assert isinstance(ours, inductor_pass.InductorPass)
            assert communicator.group_name in ours.uuid()
            manager.add(ours)  # as a user's own pass
            with inductor_pass.pass_context(range(1, 9)):
                assert manager.uuid() == manager.uuid()
            manager.passes.pop()
        _check_graphs(ir, ours, rank)
        communicator.close()
        manager = manager_file.PostGradPassManager()
        manager.configure(_make_config())
        assert [type(one).__name__ for one in manager.passes] == ["NoOpEliminationPass"], "vLLM's own way"


def _check_graphs(ir, fuse, rank):
    x, residual, weight = _draw(rank, (7, HIDDEN), torch.bfloat16), _draw(20, (7, HIDDEN), torch.bfloat16), _draw(21, (HIDDEN,), torch.bfloat16)
    x = x / 16
    all_reduce = torch.ops.vllm.all_reduce
    ir.enable_torch_wrap(True).__enter__()
    fused_norm, norm = torch.ops.vllm_ir.fused_add_rms_norm, torch.ops.vllm_ir.rms_norm
    wide = weight.float()
    other = torch.cat([residual, residual], 1)[:, :HIDDEN]

    def both(x, residual, weight):
        first = norm(all_reduce(x, "tp:0"), weight, 1e-5)
        return fused_norm(all_reduce(first, "tp:0"), residual, weight, 1e-6)
    cases = [
        ("both", both, (x, residual, weight), 2),
        ("no weight", lambda x, residual: norm(all_reduce(x, "tp:0"), None, 1e-6), (x, residual), 1),
        ("keywords", lambda x, residual, weight: norm(x=all_reduce(x, "tp:0"), weight=weight, epsilon=1e-6), (x, residual, weight), 1),
        ("part of the row", lambda x, residual, weight: fused_norm(all_reduce(x, "tp:0"), residual, weight, 1e-6, 16), (x, residual, weight), 0),
        ("part of the row by name", lambda x, residual, weight: norm(all_reduce(x, "tp:0"), weight, 1e-6, variance_size=16),
         (x, residual, weight), 0),
        ("the whole row by name", lambda x, residual, weight: norm(all_reduce(x, "tp:0"), weight, 1e-6, variance_size=None),
         (x, residual, weight), 1),
        ("a wide weight", lambda x, residual, weight: fused_norm(all_reduce(x, "tp:0"), residual, weight, 1e-6), (x, residual, wide), 0),
        ("a wide residual", lambda x, residual, weight: fused_norm(all_reduce(x, "tp:0"), residual, weight, 1e-6),
         (x, residual.float(), weight), 0),
        ("wide rows", lambda x, residual, weight: norm(all_reduce(x, "tp:0"), weight, 1e-6), (x.float(), residual, wide), 0),
        ("another group", lambda x, residual, weight: norm(all_reduce(x, "dp:0"), weight, 1e-6), (x, residual, weight), 0),
        ("a stride", lambda x, residual, weight: fused_norm(all_reduce(x, "tp:0"), residual, weight, 1e-6), (x, other, weight), 1),
    ]
    for name, function, arguments, count in cases:
        module = _trace(function, *arguments)
        before = _InOrder(module).run(*arguments)
        fuse(module.graph)
        module.recompile()
        targets = [str(node.target) for node in module.graph.nodes]
        assert sum("verbena.all_reduce_rms_norm" in target for target in targets) == count, (name, targets)
        assert all("val" in node.meta for node in module.graph.nodes if node.op == "call_function"), name
        after = _InOrder(module).run(*arguments)
        for one, two in zip(*(([both] if torch.is_tensor(both) else both) for both in (before, after))):
            assert one.dtype == two.dtype
            # The mean of squares is summed in another order.
            assert torch.allclose(one.float(), two.float(), rtol=2 ** -6, atol=1e-2), name


@needs_vllms_torch
def test_vllms_pass_manager_fuses(tmp_path):
    run_ranks(2, _compile_for_vllm, tmp_path, find_engine("vllm"))


class _Recorder:
    """A communicator of one rank that records calls, for tests of compiled code in which the kernels do not matter."""

    def all_reduce_rms_norm(self, x, norm, residual, codec=None):
        from verbena.ops import Normed
        h = x + residual
        return Normed(h * norm.weight, h)


def _compile_once(folder):
    """Returns the counters of PyTorch's cache of graphs, after a compilation in a fresh process."""
    import os
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(folder)
    from torch._dynamo.utils import counters
    from verbena.ops import register_torch_ops, set_group
    from verbena.ops.fusion import FusionPass
    register_torch_ops("CPU")
    set_group("tp", _Recorder())
    fuse = FusionPass("tp")

    def layer(x, residual, weight):
        return torch.ops.verbena.rms_norm(torch.ops.verbena.all_reduce(x, "tp"), residual, weight, 1e-6, "tp")
    x = torch.ones(4, 8, dtype=torch.bfloat16)
    with torch.inference_mode():
        output, summed = torch.compile(layer, options={"post_grad_custom_post_pass": fuse})(x, x, x[0])
    assert torch.equal(summed, x + x) and torch.equal(output, x + x)
    return {name: counters["inductor"][f"fxgraph_cache_{name}"] for name in ("bypass", "miss", "hit")}, fuse.count_fused


def _compile_in_rank(rank, folder):
    return _compile_once(folder)


@needs_vllms_torch
def test_graphs_are_cached(tmp_path):
    (first, fused), = run_ranks(1, _compile_in_rank, tmp_path)
    (second, _), = run_ranks(1, _compile_in_rank, tmp_path)
    assert fused == 1
    assert first == {"bypass": 0, "miss": 1, "hit": 0} and second == {"bypass": 0, "miss": 0, "hit": 1}


SGLANG_FUSION = "sglang.srt.layers.flashinfer_comm_fusion"


def _fuse_in_sglang(rank, folder, engine):
    import os
    driver.use_gpu(rank)
    os.environ["VERBENA_SYMM_HEAP_BYTES"] = "1g"
    group = _make_group(rank, 2, folder)
    from verbena.integrations import engine as engines
    from verbena.ops import Communicator, Norm, register_torch_ops
    register_torch_ops("CPU")
    engines.Communicator = lambda context: Communicator(context, blocks=2)
    with importable(engine, "sglang", "sglang.srt", "sglang.srt.layers"):
        from verbena.integrations.sglang import VerbenaAllreduce
        made = VerbenaAllreduce.__new__(VerbenaAllreduce)
        parallel = types.SimpleNamespace(attn_tp_size=2, attn_tp_rank=rank, attn_tp_group=types.SimpleNamespace(ca_comm=made))
        moe = types.SimpleNamespace(world_size=1, rank_in_group=0)
        add_module("sglang.srt.layers.moe", __path__=[])
        add_module("sglang.srt.layers.moe.utils", post_experts_reduction_group=lambda: moe)
        module = add_definitions(
            SGLANG_FUSION, engine / f"{SGLANG_FUSION.replace('.', '/')}.py",
            ["resolve_fusion_group", "flashinfer_allreduce_residual_rmsnorm", "fake_flashinfer_allreduce_residual_rmsnorm",
             "pre_initialize_workspaces"],
            register_custom_op=lambda **_: lambda function: function, get_parallel=lambda: parallel, torch=torch,
            is_flashinfer_available=lambda: False, _flashinfer_comm=None, _flashinfer_allreduce_unavailable=False, logger=mock.MagicMock(),
            ensure_workspace_initialized=mock.MagicMock(side_effect=AssertionError("FlashInfer's workspaces would be made")))
        made.__init__(group=group, device=torch.device("cpu"))
        x, residual, weight = (_draw(seed, shape, torch.bfloat16) for seed, shape in ((rank, (7, HIDDEN)), (20, (7, HIDDEN)), (21, (HIDDEN,))))
        options = {"residual": residual, "eps": 1e-6, "max_token_num": 2048}
        output, summed = module.flashinfer_allreduce_residual_rmsnorm(input_tensor=x, weight=weight, use_attn_tp_group=True, **options)
        want = made.communicator.all_reduce_rms_norm(x, Norm(weight, 1e-6, rounds_sum=True), residual)
        _synchronize()
        assert torch.equal(output, want.output) and torch.equal(summed, want.residual)
        # SGLang's own function answers where the kernel is not for the types, or the group is another one.
        for weight, use_attn_tp_group in ((weight.float(), True), (weight, False)):
            assert module.flashinfer_allreduce_residual_rmsnorm(
                input_tensor=x, weight=weight, use_attn_tp_group=use_attn_tp_group, **options) == (None, None)
        module._flashinfer_comm = object()
        module.pre_initialize_workspaces(max_token_num=2048, hidden_dim=HIDDEN, dtype=torch.bfloat16)
        made.close()
        with pytest.raises(AssertionError, match="workspaces would be made"):
            module.pre_initialize_workspaces(max_token_num=2048, hidden_dim=HIDDEN, dtype=torch.bfloat16)


def test_sglangs_fused_norm_is_ours(tmp_path):
    run_ranks(2, _fuse_in_sglang, tmp_path, find_engine("sglang"))
