"""Tests verbena.integrations.sglang_experts with SGLang's own files: the hooked functions and their signatures. Tests the dispatchers with
SGLang's own base classes and results, on emulated GPUs of one host and of several hosts, against a dense layer: decode and prefill, BF16
and FP8, and two batches that overlap."""
import contextlib
import importlib
import inspect
import sys
import types
import warnings

import pytest

from engine_files import add_module, find_calls, find_engine, importable_parts, installed_entry_points
from quantised_experts import DenseCase, begin_rank
from ranks import run_ranks

torch = pytest.importorskip("torch")

DISPATCHERS, LAYERS = "sglang.srt.layers.moe.token_dispatcher", "sglang.srt.layers"
BASE, DEEPEP, UTILS, PLUGINS = f"{DISPATCHERS}.base", f"{DISPATCHERS}.deepep", f"{LAYERS}.moe.utils", "sglang.srt.plugins"
LAYER, OVERLAP = f"{LAYERS}.moe.fused_moe_triton.layer", "sglang.srt.batch_overlap.two_batch_overlap"
REAL = (BASE, DEEPEP, PLUGINS, f"{PLUGINS}.hook_registry")
CASE = (24, 256, 128, 8, 3)  # tokens, hidden, intermediate, experts, top-k


@contextlib.contextmanager
def _sglang():
    with importable_parts(find_engine("sglang"), *REAL):
        for name in ("is_npu", "is_hip", "get_bool_env_var", "is_blackwell"):
            setattr(importlib.import_module("sglang.srt.utils"), name, lambda *_: False)
        ours = importlib.import_module("verbena.integrations.sglang_experts")
        ours._make_classes.cache_clear()
        try:
            yield ours
        finally:
            ours._make_classes.cache_clear()


def _load_plugins(tmp_path):
    """Loads the plug-ins with SGLang's own loader. Returns the module whose function is hooked."""
    own = add_module(LAYER, create_moe_dispatcher=lambda moe_runner_config, quant_method: "its own")
    with installed_entry_points(tmp_path):
        importlib.import_module(PLUGINS).load_plugins()
    return own


@pytest.mark.parametrize("word, hooked", [("1", True), ("0", False)])
def test_sglang_calls_ours(tmp_path, monkeypatch, word, hooked):
    monkeypatch.setenv("USE_VERBENA_MOE", word)
    monkeypatch.delenv("USE_VERBENA_COLLECTIVES", raising=False)
    with _sglang() as ours:
        utils = importlib.import_module(UTILS)
        utils.get_moe_a2a_backend = lambda: types.SimpleNamespace(is_deepep=lambda: False)
        own = _load_plugins(tmp_path)
        assert own.create_moe_dispatcher(None, None) == "its own", "of another backend"
        monkeypatch.setattr(sys.modules[ours.__name__], "make_dispatcher", lambda *_: "ours")
        assert own.create_moe_dispatcher(None, None) == ("ours" if hooked else "its own")


def test_a_sglang_without_the_hook_keeps_its_own(tmp_path, monkeypatch):
    monkeypatch.setenv("USE_VERBENA_MOE", "1")
    monkeypatch.delenv("USE_VERBENA_COLLECTIVES", raising=False)
    with _sglang():
        importlib.import_module(f"{PLUGINS}.hook_registry").HookType = None
        with pytest.warns(UserWarning, match="sglang .* no hook for Verbena's dispatch and combine for experts, so the engine uses its own"):
            _load_plugins(tmp_path)


def test_signatures_are_those_of_sglang():
    folder = find_engine("sglang")
    layer = folder / f"{LAYER.replace('.', '/')}.py"
    assert "def create_moe_dispatcher(\n    moe_runner_config: MoeRunnerConfig,\n    quant_method: FusedMoEMethodBase,\n)" in layer.read_text()
    for count, keywords in find_calls(layer, "create_moe_dispatcher"):
        assert count + len(keywords) <= 2
    assert "    get_server_args,\n" in layer.read_text()
    assert "    chunked_prefill_size: " in (folder / "sglang/srt/arg_groups/fields/schedule.py").read_text()
    with _sglang() as ours:
        one, several = ours._make_classes()
        deepep = importlib.import_module(DEEPEP)
        assert issubclass(one, importlib.import_module(BASE).BaseDispatcher) and not one.__abstractmethods__
        for name in ("dispatch", "dispatch_a", "dispatch_b", "combine", "combine_a", "combine_b", "register_deepep_dispatch_hook"):
            theirs = inspect.signature(getattr(deepep.DeepEPDispatcher, name)).parameters
            assert list(inspect.signature(getattr(one, name)).parameters) == list(theirs), name
            assert hasattr(several, name)
        fields = deepep.DeepEPLLDispatchOutput._fields, deepep.DeepEPNormalDispatchOutput._fields
        assert fields == (("hidden_states", "hidden_states_scale", "topk_ids", "topk_weights", "masked_m", "expected_m"),
                          ("hidden_states", "hidden_states_scale", "topk_ids", "topk_weights", "num_recv_tokens_per_expert"))
    text = (folder / f"{OVERLAP.replace('.', '/')}.py").read_text()
    assert "getattr(self._inners[tbo_subbatch_index or 0], name)(**kwargs)" in text, "two batches are named as they are here"
    utils = (folder / f"{UTILS.replace('.', '/')}.py").read_text()
    for name in ("get_moe_a2a_backend", "get_deepep_mode", "is_tbo_enabled", "is_sbo_enabled", "get_deepep_output_dtype"):
        assert f"def {name}(" in utils, name
    for file, name in (("environ.py", "SGLANG_DEEPEP_NUM_MAX_DISPATCH_TOKENS_PER_RANK"), ("environ.py", "SGLANG_MOE_NVFP4_DISPATCH"),
                       ("arg_groups/fields/exec_.py", "deepep_dispatcher_output_dtype"), ("layers/dp_attention.py", "def get_is_extend_in_batch"),
                       ("layers/deep_gemm_wrapper/configurer.py", "ENABLE_JIT_DEEPGEMM = "),
                       ("layers/deep_gemm_wrapper/configurer.py", "DEEPGEMM_BLACKWELL = ")):
        assert name in (folder / "sglang/srt" / file).read_text(), name


@pytest.mark.parametrize("chunk, sharing, ranks, tokens", [
    (8192, 1, 4, 8192), (8192, 4, 4, 4096), (16384, 2, 4, 8192), (4096, 1, 16, 4096), (2048, 1, 32, 2048), (8192, 1, 16, "8192 tokens"),
    (16384, 1, 8, "16384 tokens"), (-1, 4, 4, "any number"), (None, 1, 8, "any number")])
def test_prefill_batches_fit(chunk, sharing, ranks, tokens):
    with _sglang() as ours:
        layer = types.SimpleNamespace(get_server_args=lambda: types.SimpleNamespace(chunked_prefill_size=chunk),
                                      get_parallel=lambda: types.SimpleNamespace(attn_tp_size=sharing))
        if isinstance(tokens, int):
            assert ours._find_prefill_tokens(layer, ranks) == tokens
        else:
            with pytest.raises(NotImplementedError, match=f"{tokens}.*Lower --chunked-prefill-size"):
                ours._find_prefill_tokens(layer, ranks)


def test_decode_follows_prefill_without_a_buffer_of_deepep(tmp_path, monkeypatch):
    """Graphs of a draft model switch DeepEPBuffer from prefill to decode, although no layer has created the buffer."""
    monkeypatch.setenv("USE_VERBENA_MOE", "1")
    monkeypatch.delenv("USE_VERBENA_COLLECTIVES", raising=False)
    with _sglang():
        _load_plugins(tmp_path)
        module, resources = importlib.import_module(DEEPEP), types.SimpleNamespace(buffers={})
        module.get_resources = lambda: resources
        buffers = module.DeepEPBuffer
        for _ in range(2):
            buffers.set_dispatch_mode_as_normal()
            buffers.set_dispatch_mode_as_low_latency()


@pytest.mark.parametrize("kind, has_nvfp4", [("nvfp4", False), ("auto", True)])
def test_rows_that_are_left_to_sglang(kind, has_nvfp4):
    with _sglang() as ours:
        _configure(None, 2, "fp8", False)
        importlib.import_module("sglang.srt.environ").envs.SGLANG_MOE_NVFP4_DISPATCH.get = lambda: has_nvfp4
        importlib.import_module(LAYER).get_server_args = lambda: types.SimpleNamespace(deepep_dispatcher_output_dtype=kind)
        config = types.SimpleNamespace(num_experts=8, num_local_experts=4)
        with pytest.warns(UserWarning, match="SGLang keeps its own dispatch and combine for experts: .*cannot be dispatched as nvfp4"):
            assert ours.make_dispatcher(config) is None


class _Mode:
    """SGLang's DeepEPMode.AUTO, in a batch of decode or prefill."""

    value = "auto"

    def __init__(self, is_low):
        self.is_low_latency = lambda: is_low

    def resolve(self, is_extend):
        return _Mode(not is_extend)

    enable_low_latency = enable_normal = lambda self: True


def _configure(group, size, kind, is_extend, has_gemm=True, has_two=True):
    """SGLang's functions that ours asks."""
    utils = importlib.import_module(UTILS)
    utils.get_moe_a2a_backend = lambda: types.SimpleNamespace(is_deepep=lambda: True)
    utils.get_deepep_mode = lambda: _Mode(True)
    utils.is_tbo_enabled, utils.is_sbo_enabled = lambda: has_two, lambda: False
    utils.get_deepep_output_dtype = lambda dispatcher: types.SimpleNamespace(value=kind)
    importlib.import_module(f"{LAYERS}.dp_attention").get_is_extend_in_batch = lambda: is_extend
    gemm = importlib.import_module(f"{LAYERS}.deep_gemm_wrapper")
    gemm.ENABLE_JIT_DEEPGEMM, gemm.DEEPGEMM_BLACKWELL = has_gemm, False
    add_module(LAYER, get_parallel=lambda: types.SimpleNamespace(tp_group=types.SimpleNamespace(world_size=size, cpu_group=group), attn_tp_size=1),
               get_server_args=lambda: types.SimpleNamespace(chunked_prefill_size=24))
    tokens = types.SimpleNamespace(get=lambda: 16)
    importlib.import_module("sglang.srt.environ").envs = types.SimpleNamespace(
        SGLANG_DEEPEP_NUM_MAX_DISPATCH_TOKENS_PER_RANK=tokens, SGLANG_MOE_NVFP4_DISPATCH=types.SimpleNamespace(get=lambda: False))
    told = []
    recorder = types.SimpleNamespace(on_deepep_dispatch_low_latency=lambda counts: told.append(counts.tolist()),
                                     on_deepep_dispatch_normal=lambda counts, **_: told.append(counts))
    importlib.import_module("sglang.srt.eplb.expert_distribution").get_global_expert_distribution_recorder = lambda: recorder
    return told


def _run_experts(case, came, rank, size):
    """What SGLang's runners give for each of the two formats."""
    if came.format.value == "deepep_ll":
        out = torch.full(came.hidden_states.shape, float("nan"))
        for local, count in enumerate(came.masked_m.tolist()):
            rows = came.hidden_states[local, :count]
            wide = rows.float() if came.hidden_states_scale is None else case.widen(rows, came.hidden_states_scale[local, :count].contiguous())
            out[local, :count] = case.apply_expert(rank * len(came.masked_m) + local, wide)
        return out.to(torch.bfloat16)
    rows, share = came.hidden_states, case.experts // size
    wide = rows.float() if came.hidden_states_scale is None else case.widen(rows, came.hidden_states_scale)
    assert came.topk_ids.dtype == torch.int64
    assert came.num_recv_tokens_per_expert == [-(-int((came.topk_ids == local).sum()) // 128) * 128 for local in range(share)]
    ids = torch.where(came.topk_ids >= 0, came.topk_ids + rank * share, -1)
    return case.add_experts(wide, ids, came.topk_weights, range(rank * share, rank * share + share)).to(torch.bfloat16)


def _run(rank, size, hosts, folder):
    group, common = begin_rank(rank, size, hosts, folder, (128, 512), 24)
    case = DenseCase(*CASE)
    tokens, ids, weights = case.share(rank, size)
    results = {}
    with _sglang() as ours, warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        ours.find_max_tokens = lambda ranks: 24
        deepep = importlib.import_module(DEEPEP)
        inputs = {"deepep_ll": deepep.DeepEPLLCombineInput, "deepep_normal": deepep.DeepEPNormalCombineInput}
        config = types.SimpleNamespace(num_experts=case.experts, num_local_experts=case.experts // size, top_k=case.top_k, hidden_size=case.hidden,
                                       runner_backend=None)

        def part(rows):
            return {"hidden_states": tokens[rows], "topk_output": types.SimpleNamespace(topk_ids=ids[rows], topk_weights=weights[rows])}

        def give_back(came):
            return inputs[came.format.value](_run_experts(case, came, rank, size), came.topk_ids, came.topk_weights)
        for kind in ("bf16", "fp8"):
            for is_extend in (False, True):
                told = _configure(group, size, kind, is_extend)
                dispatcher = ours.make_dispatcher(config)
                assert common.find_exchanges(group).num_hosts == hosts
                hooked = []
                dispatcher.register_deepep_dispatch_hook(hooked.append)
                came = dispatcher.dispatch(**part(slice(None)))
                assert came.format.value == ("deepep_normal" if is_extend else "deepep_ll") and len(hooked) == len(told) == 1
                one = dispatcher.combine(combine_input=give_back(came))
                # Two batches: the second is sent before the first is received.
                halves = [slice(0, 3), slice(3, None)]
                for number, rows in enumerate(halves):
                    dispatcher.dispatch_a(tbo_subbatch_index=number, **part(rows))
                with pytest.raises(RuntimeError, match=r"combine_a\(\) was called, but the next call must be dispatch_b\(\)"):
                    dispatcher.combine_a(tbo_subbatch_index=0, combine_input=(None,))
                both = [dispatcher.dispatch_b(tbo_subbatch_index=number) for number in range(2)]
                for number, came in enumerate(both):
                    dispatcher.combine_a(tbo_subbatch_index=number, combine_input=give_back(came))
                two = torch.cat([dispatcher.combine_b(tbo_subbatch_index=number) for number in range(2)])
                assert torch.allclose(one.float(), two.float(), rtol=2 ** -6, atol=2 ** -6)
                results[kind, is_extend] = one.float().numpy()
                # Without two batches that overlap, the exchange for prefill is in windows on one host. The results are the same.
                _configure(group, size, kind, is_extend, has_two=False)
                alone = ours.make_dispatcher(config)
                inner, exchange = alone._inners[0], alone._inners[0]._large
                assert isinstance(exchange, common.WindowExchange) == (hosts == 1) and not isinstance(inner._small, common.WindowExchange)
                for _ in range(2):
                    if hosts == 1:
                        exchange.memory.fill_(0xff)
                        torch.distributed.barrier()  # another rank may already store rows in the memory
                    came = alone.dispatch(**part(slice(None)))
                    if hosts == 1 and is_extend:
                        assert inner._sent.rows.data_ptr() == exchange.memory.data_ptr(), "the dispatch stores rows in the window"
                    assert torch.equal(alone.combine(combine_input=give_back(came)), one)
                exchange.check_error()
        utils = importlib.import_module(UTILS)
        utils.is_sbo_enabled = lambda: True
        with pytest.warns(UserWarning, match="SGLang keeps its own dispatch and combine for experts: .*single-batch-overlap"):
            assert ours.make_dispatcher(config) is None
        common.close_exchanges()
    return results


@pytest.mark.skipif(not hasattr(torch, "float8_e4m3fn"), reason="this PyTorch has no e4m3")
@pytest.mark.parametrize("size, hosts", [(2, 1), (4, 1), (2, 2), (4, 2)])
def test_a_layer_of_experts(size, hosts, tmp_path):
    find_engine("sglang")
    case = DenseCase(*CASE)
    parts = run_ranks(size, _run, size, hosts, tmp_path)
    for kind, is_extend in parts[0]:
        case.check([part[kind, is_extend] for part in parts], {"bf16": None, "fp8": "per_128x128"}[kind])
