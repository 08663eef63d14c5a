"""Tests verbena.integrations.vllm_experts with vLLM's own files: the replaced functions, signatures and attributes. Compares vLLM's own
steps around a layer of experts with a dense layer, on emulated GPUs of one host and of several hosts: both formats, two batches in flight,
quantised rows, and batches of several sizes."""
import contextlib
import importlib
import inspect
import math
import sys
import threading
import types
import warnings

import pytest

import driver
from engine_files import find_engine, importable_parts, installed_entry_points
from quantised_experts import DenseCase, begin_rank
from ranks import on_ranks, place_on_host, run_ranks

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.skipif(not hasattr(torch, "Event"), reason="vLLM's files need a newer PyTorch")

LAYERS = "vllm.model_executor.layers.fused_moe"
UTILS, KERNEL, NAIVE = f"{LAYERS}.all2all_utils", f"{LAYERS}.modular_kernel", f"{LAYERS}.prepare_finalize.naive_dp_ep"
REDUCE, BATCHES, FORWARD = f"{LAYERS}.topk_weight_and_reduce", "vllm.v1.worker.ubatching", "vllm.forward_context"
MORI = f"{LAYERS}.prepare_finalize.mori"
REAL = ("vllm.envs", UTILS, KERNEL, NAIVE, REDUCE, BATCHES, FORWARD, MORI)
CASE = (24, 256, 128, 8, 3)  # tokens, hidden, intermediate, experts, top-k
PARALLEL = {"use_passthrough_all2all": False, "use_all2all_kernels": True, "use_batched_activation_format": False, "sp_size": 1}


@contextlib.contextmanager
def _vllm(num_ubatches=2):
    with importable_parts(find_engine("vllm"), *REAL):
        settings = types.SimpleNamespace(parallel_config=types.SimpleNamespace(expert_placement_strategy="linear", num_ubatches=num_ubatches))
        importlib.import_module("vllm.config").get_current_vllm_config = lambda: settings
        ours = importlib.import_module("verbena.integrations.vllm_experts")
        ours._make_class.cache_clear()
        try:
            yield ours
        finally:
            ours._make_class.cache_clear()


def test_vllm_makes_ours(tmp_path, monkeypatch):
    monkeypatch.setenv("USE_VERBENA_MOE", "1")
    monkeypatch.delenv("USE_VERBENA_COLLECTIVES", raising=False)
    with _vllm(), installed_entry_points(tmp_path):
        from importlib.metadata import entry_points
        module = importlib.import_module(UTILS)
        original = module.maybe_make_prepare_finalize
        importer = types.ModuleType("vllm.importer")  # as a quantisation that has imported the function by its name
        importer.maybe_make_prepare_finalize = original
        sys.modules["vllm.importer"] = importer
        register = next(one for one in entry_points(group="vllm.general_plugins") if one.name == "verbena").load()
        for _ in range(2):
            register()
            assert importer.maybe_make_prepare_finalize is module.maybe_make_prepare_finalize
            assert module.maybe_make_prepare_finalize.without_verbena is original
        parallel = types.SimpleNamespace(**PARALLEL | {"use_all2all_kernels": False})
        assert module.maybe_make_prepare_finalize(types.SimpleNamespace(moe_parallel_config=parallel), None) is None, "the original answers"


def test_vllm_is_left_alone_unless_asked(monkeypatch):
    monkeypatch.setenv("USE_VERBENA_MOE", "0")
    with _vllm():
        importlib.import_module("verbena.integrations.vllm").register()
        assert not hasattr(importlib.import_module(UTILS).maybe_make_prepare_finalize, "without_verbena")


def test_a_vllm_without_the_function_keeps_its_own(monkeypatch):
    monkeypatch.setenv("USE_VERBENA_MOE", "1")
    with _vllm():
        del importlib.import_module(UTILS).maybe_make_prepare_finalize
        with pytest.warns(UserWarning, match="vllm .* no hook for Verbena's dispatch and combine for experts, so the engine uses its own"):
            importlib.import_module("verbena.integrations.vllm").register()


def test_signatures_are_those_of_vllm():
    with _vllm() as ours:
        kernel = importlib.import_module(KERNEL)
        theirs, mine = kernel.FusedMoEPrepareAndFinalizeModular, ours._make_class()
        assert issubclass(mine, theirs) and not mine.__abstractmethods__
        for name, one in inspect.getmembers(theirs, inspect.isfunction):
            if not name.startswith("_") and getattr(mine, name) is not one:
                assert list(inspect.signature(getattr(mine, name)).parameters) == list(inspect.signature(one).parameters), name
        made = inspect.signature(importlib.import_module(UTILS).maybe_make_prepare_finalize).parameters
        assert list(inspect.signature(ours.make_prepare_finalize).parameters) == list(made)
        # vLLM's own functions that ours calls.
        naive = importlib.import_module(NAIVE)
        inspect.signature(naive._quantize_and_setup_dispatch).bind(None, None, False)
        inspect.signature(naive._unwrap_scale_and_prepare_for_moe).bind([None], None)
        inspect.signature(importlib.import_module(REDUCE).TopKWeightAndReduceNoOP.apply).bind(None, None, None, None, None, False)
        fields = {name for one in (importlib.import_module(FORWARD).DPMetadata, kernel.ExpertTokensMetadata) for name in one.__dataclass_fields__}
        assert {"num_tokens_across_dp_cpu", "local_sizes", "expert_num_tokens", "expert_num_tokens_cpu"} <= fields


def test_what_vllm_reads_of_its_configuration_exists():
    """The attributes that ours reads are those of vLLM's classes."""
    folder = find_engine("vllm") / "vllm"
    layer = (folder / "model_executor/layers/fused_moe/config.py").read_text()
    for name in (*PARALLEL, "num_experts", "num_local_experts", "hidden_dim", "experts_per_token", "max_num_tokens", "is_lora_enabled", "in_dtype",
                 "moe_parallel_config", "quant_dtype", "block_shape", "per_act_token_quant", "a1_scale"):
        assert f"    {name}:" in layer or f"def {name}(" in layer, name
    assert "def use_moonep_kernels(" in layer
    parallel = (folder / "config/parallel.py").read_text()
    assert "    expert_placement_strategy:" in parallel and "    enable_elastic_ep:" in parallel and "    def num_ubatches(" in parallel
    assert "self.support_fault_tolerance = " in (folder / "distributed/device_communicators/all2all.py").read_text()
    managers = (folder / "distributed/device_communicators/base_device_communicator.py").read_text()
    for name in ("cpu_group", "world_size", "rank"):
        assert f"self.{name} = " in managers, name


def _config(case, size, parallel=(), **options):
    return types.SimpleNamespace(**{
        "moe_parallel_config": types.SimpleNamespace(**PARALLEL | dict(parallel)), "num_experts": case.experts,
        "num_local_experts": case.experts // size, "hidden_dim": case.hidden, "experts_per_token": case.top_k, "max_num_tokens": 16,
        "is_lora_enabled": False, "in_dtype": torch.bfloat16} | options)


@pytest.mark.parametrize("options, cause", [
    ({"is_lora_enabled": True}, "LoRA"), ({"num_experts": 9}, "not divided evenly"), ({"max_num_tokens": 20000}, "at most 16384"),
    ({"quant": types.SimpleNamespace(quant_dtype=torch.int8, block_shape=None, per_act_token_quant=False, a1_scale=None)}, "one scale"),
    ({"monolithic": True}, "does its own routing"), ({"parallel_config": {"expert_placement_strategy": "round_robin"}}, "must be linear"),
    ({"parallel_config": {"enable_elastic_ep": True}}, "elastic EP"), ({"manager": {"support_fault_tolerance": True}}, "which ranks have failed"),
    ({"in_dtype": torch.float32}, "must be bfloat16 or float16"), ({"parallel": {"use_moonep_kernels": True}}, "moonep's own dispatch")])
def test_layers_that_are_left_to_vllm(options, cause):
    case = DenseCase(*CASE)
    quant, monolithic = options.pop("quant", None), options.pop("monolithic", False)
    with _vllm() as ours:
        vars(importlib.import_module("vllm.config").get_current_vllm_config().parallel_config).update(options.pop("parallel_config", {}))
        manager = types.SimpleNamespace(world_size=2, cpu_group=None, **options.pop("manager", {}))
        with pytest.warns(UserWarning, match=f"vLLM keeps its own dispatch and combine for experts: .*{cause}"):
            assert ours.make_prepare_finalize(_config(case, 2, **options), quant, use_monolithic=monolithic, all2all_manager=manager) is None


class _Experts:
    """Experts with vLLM's interface, which PyTorch computes on the host."""

    expects_unquantized_inputs = False

    def __init__(self, case, rank, size, quant_config, impl):
        self.case, self.rank, self.size, self.quant_config, self._impl = case, rank, size, quant_config, impl
        self.moe_config = types.SimpleNamespace(moe_parallel_config=None)

    def supports_packed_ue8m0_act_scales(self):
        return False

    def finalize_weight_and_reduce_impl(self):
        return self._impl

    def run_rows(self, rows, scales, ids, weights):
        """Returns the experts' rows as [rows, top_k, hidden] or, if the weights have been applied, as [rows, hidden]."""
        share = self.case.experts // self.size
        is_reduced = type(self._impl).__name__ == "TopKWeightAndReduceNoOP"
        out = torch.full([len(rows), self.case.top_k, self.case.hidden], float("nan"))
        wide = rows.float() if scales is None else self.case.widen(rows, scales)
        for expert in range(self.rank * share, (self.rank + 1) * share):
            row, slot = (ids == expert).nonzero(as_tuple=True)
            out[row, slot] = self.case.apply_expert(expert, wide[row])
        if not is_reduced:
            return out.to(torch.bfloat16)
        return (out * weights.unsqueeze(2)).nan_to_num(0).sum(1).to(torch.bfloat16)

    def run_batches(self, rows, scales, counts):
        out = torch.full(rows.shape, float("nan"))
        for local, count in enumerate(counts.tolist()):
            part = rows[local, :count]
            wide = part.float() if scales is None else self.case.widen(part, scales[local, :count].contiguous())
            out[local, :count] = self.case.apply_expert(self.rank * len(counts) + local, wide)
        return out.to(torch.bfloat16)


def _run_layer(kernel, experts, tokens, weights, ids, is_batched, is_in_windows=False):
    """Does the same as FusedMoEKernelModularImpl.apply(), and calls three of its methods."""
    layer = kernel.FusedMoEKernelModularImpl.__new__(kernel.FusedMoEKernelModularImpl)
    layer.prepare_finalize, layer.fused_experts = experts.prepare_finalize, experts
    rows, scales, meta, row_ids, row_weights = layer._prepare(tokens, weights, ids, experts.case.experts, None, False)
    assert (row_ids is ids) == is_batched
    if is_batched:
        out = experts.run_batches(rows, scales, meta.expert_num_tokens)
    else:
        first = -1 if type(experts.prepare_finalize).__name__ == "MoriPrepareAndFinalize" else 0  # after the count; its experts are told it
        assert row_ids.is_contiguous() and row_ids.dtype == torch.int32 and ((row_ids >= first) & (row_ids < experts.case.experts)).all()
        out = experts.run_rows(rows, scales, row_ids, row_weights)
    # vLLM's own code chooses the memory for the experts' rows.
    workspace = types.SimpleNamespace(get_simultaneous=lambda *wanted: [torch.empty(shape, dtype=dtype) for shape, dtype in wanted])
    kernel.current_workspace_manager = lambda: workspace
    kernel._resize_cache = lambda one, shape: one[:math.prod(shape)].view(shape)
    experts.workspace_dtype, experts.workspace_shapes = (lambda dtype: dtype), (lambda *_: ((1,), (1,), tuple(out.shape)))
    *_, memory, is_ours = layer._allocate_buffers(out.dtype, out.device, len(rows), len(rows), *[1] * 5, meta, None)
    assert is_ours == is_in_windows
    return layer._finalize(torch.empty_like(tokens), memory.copy_(out), tokens, row_weights, row_ids, False, None, None)


class _Batch:
    """One of two batches that overlap. Stands for vLLM's thread of the batch; only registers and runs hooks."""

    def __init__(self, batches, number):
        self.recv_hook, self._batches, self._number = None, batches, number

    def __enter__(self):
        self._batches._THREAD_ID_TO_CONTEXT[threading.get_ident()] = self._number

    def __exit__(self, *_):
        self._batches._THREAD_ID_TO_CONTEXT.pop(threading.get_ident())

    def yield_(self):
        pass

    def maybe_run_recv_hook(self):
        self._batches.UBatchContext.maybe_run_recv_hook(self)


def _overlap(pf, experts, batches, parts, kernel):
    """Runs two batches: sends both dispatches before receiving either, and then does the same with the combines."""
    quant, results, sent = experts.quant_config, [], []
    batches._CURRENT_CONTEXTS[:] = [_Batch(batches, number) for number in range(2)]
    for number, (tokens, weights, ids) in enumerate(parts):
        with batches._CURRENT_CONTEXTS[number]:
            hook, receive = pf.prepare_async(tokens, weights, ids, experts.case.experts, None, False, quant)
            sent.append((hook, receive))
    for hook, _ in sent:
        hook()
    for number, (tokens, weights, ids) in enumerate(parts):
        with batches._CURRENT_CONTEXTS[number]:
            rows, scales, meta, row_ids, row_weights = sent[number][1]()
            out = experts.run_rows(rows, scales, row_ids, row_weights)
            output = torch.empty_like(tokens)
            results.append((output, *pf.finalize_async(output, out, row_weights, row_ids, False, experts._impl)))
    for _, hook, receive in results:
        hook()
        receive()
    return torch.cat([output for output, _, _ in results])


def _quantise(rows, scale, quant_dtype, per_act_token_quant, block_shape=None, **_):
    """vLLM's kernel of this name, on the host."""
    if quant_dtype is None:
        return rows, None
    return DenseCase.quantise(rows, "per_Token" if block_shape is None else "per_128x128")


def _is_close(one, other):
    """Compares results approximately, because PyTorch rounds matrix products with different numbers of rows differently."""
    return torch.allclose(one.float(), other.float(), rtol=2 ** -6, atol=2 ** -6)


def _make_quant(form):
    quantisation = {"plain": (None, None, False), "token": (torch.float8_e4m3fn, None, True), "block": (torch.float8_e4m3fn, [128, 128], False)}
    dtype, block, per_token = quantisation[form.split("_")[1]]
    return types.SimpleNamespace(quant_dtype=dtype, block_shape=block, per_act_token_quant=per_token, a1_scale=None, use_nvfp4_w4a4=False,
                                 mx_alignment=0, is_scale_swizzled=False)


def _run(rank, size, hosts, form, folder):
    group, common = begin_rank(rank, size, hosts, folder, (7,))
    case = DenseCase(*CASE)
    tokens, ids, weights = case.share(rank, size)
    quant = _make_quant(form)
    is_batched = form.startswith("batched")
    with _vllm() as ours, warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        kernel, reduce, batches, forward = (importlib.import_module(name) for name in (KERNEL, REDUCE, BATCHES, FORWARD))
        importlib.import_module(NAIVE).moe_kernel_quantize_input = _quantise
        manager = types.SimpleNamespace(world_size=size, cpu_group=group)
        pf = ours.make_prepare_finalize(_config(case, size, {"use_batched_activation_format": is_batched}), quant, all2all_manager=manager)
        assert isinstance(pf, kernel.FusedMoEPrepareAndFinalizeModular) and common.find_exchanges(group).num_hosts == hosts
        assert pf.activation_format.name == ("BatchedExperts" if is_batched else "Standard") and pf.num_dispatchers() == size
        assert pf.max_num_tokens_per_rank() == 16 and pf.topk_indices_dtype() == torch.int32
        assert pf.output_is_reduced() and pf.supports_async() and pf.supports_dbo()
        results = []
        impls = [reduce.TopKWeightAndReduceDelegate()] + ([] if is_batched else [reduce.TopKWeightAndReduceNoOP()])
        for impl in impls:
            experts = _Experts(case, rank, size, quant, impl)
            experts.prepare_finalize = pf
            pf.post_init_setup(experts)
            results.append(_run_layer(kernel, experts, tokens, weights, ids, is_batched))
        # A batch whose largest part all ranks know goes through the small exchange; another rank may have no token.
        few = 2 * (rank % 2)
        metadata = forward.DPMetadata(torch.tensor([2 * (other % 2) for other in range(size)]))
        forward._forward_context = types.SimpleNamespace(dp_metadata=metadata)
        assert is_batched or pf._choose(few)[0].max_tokens == 7
        part = _run_layer(kernel, experts, tokens[:few], weights[:few], ids[:few], is_batched)
        assert _is_close(part, results[-1][:few])
        assert pf._sent == [None] * len(pf._sent)  # a layer keeps no rows
        forward._forward_context = None
        if not is_batched:
            halves = [[one[half] for one in (tokens, weights, ids)] for half in (slice(0, 3), slice(3, None))]
            results.append(_overlap(pf, experts, batches, halves, kernel))
            assert _is_close(results[-1], results[-2])
        for made in pf._exchanges:
            for exchange in made:
                exchange.check_error()
        # Another layer of the model shares the exchanges.
        other = ours.make_prepare_finalize(_config(case, size, {"use_batched_activation_format": is_batched}), quant, all2all_manager=manager)
        assert other is not pf and all(one is another for one, another in zip(pf._exchanges[0], other._exchanges[0]))
        common.close_exchanges()
    return [one.float().numpy() for one in results]


@pytest.mark.skipif(not hasattr(torch, "float8_e4m3fn"), reason="this PyTorch has no e4m3")
@pytest.mark.parametrize("size, hosts", [(2, 1), (4, 1), (2, 2), (4, 2)])
@pytest.mark.parametrize("form", ["standard_plain", "standard_token", "standard_block", "batched_plain", "batched_block"])
def test_a_layer_of_experts(form, size, hosts, tmp_path):
    find_engine("vllm")
    case = DenseCase(*CASE)
    for parts in zip(*run_ranks(size, _run, size, hosts, form, tmp_path)):
        case.check(parts, {"plain": None, "token": "per_Token", "block": "per_128x128"}[form.split("_")[1]])


def _run_in_windows(rank, size, form, folder):
    group, common = begin_rank(rank, size, 1, folder, (3, 7), 7)
    case = DenseCase(*CASE)
    tokens, ids, weights = case.share(rank, size)
    quant = _make_quant(form)
    manager = types.SimpleNamespace(world_size=size, cpu_group=group)
    with _vllm(num_ubatches=0) as ours, warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        kernel, reduce, forward = (importlib.import_module(name) for name in (KERNEL, REDUCE, FORWARD))
        importlib.import_module(NAIVE).moe_kernel_quantize_input = _quantise

        def make_layer(impl, **parallel):
            experts = _Experts(case, rank, size, quant, impl)
            pf = experts.prepare_finalize = ours.make_prepare_finalize(_config(case, size, parallel), quant, all2all_manager=manager)
            pf.post_init_setup(experts)
            return experts, [isinstance(one[0], common.WindowExchange) for one in pf._exchanges]

        (experts, kinds), (other, _) = make_layer(reduce.TopKWeightAndReduceNoOP()), make_layer(reduce.TopKWeightAndReduceNoOP())
        assert kinds == [False, True, True]
        assert not experts.prepare_finalize.supports_async(), "vLLM runs shared experts on another stream"
        pf, (_, middle, large) = experts.prepare_finalize, [one[0] for one in experts.prepare_finalize._exchanges]
        assert other.prepare_finalize._exchanges[2][0] is large and middle.memory.data_ptr() == large.memory.data_ptr()
        # No windows without NVLink, with overlapping batches, and with experts that leave the sum to the combine.
        linked, common.are_all_linked = common._exchanges.pop(group), lambda ranks: False
        plain, kinds = make_layer(reduce.TopKWeightAndReduceNoOP())
        unlinked, common._exchanges[group] = common._exchanges[group], linked
        assert kinds == [False] * 3
        settings = importlib.import_module("vllm.config").get_current_vllm_config().parallel_config
        settings.num_ubatches = 2
        assert make_layer(reduce.TopKWeightAndReduceNoOP())[1] == [False] * 3
        settings.num_ubatches = 0
        assert make_layer(reduce.TopKWeightAndReduceDelegate())[1] == [False] * 3
        if not quant.per_act_token_quant:
            assert make_layer(reduce.TopKWeightAndReduceDelegate(), use_batched_activation_format=True)[1] == [False]

        def run(experts, count, is_in_windows):
            return _run_layer(kernel, experts, tokens[:count], weights[:count], ids[:count], False, is_in_windows)

        # The batches need exchanges of 16, 7 and 3 tokens. Two layers follow each other in the same window.
        for most, count, is_in_windows in ((None, len(tokens), True), (5, 5 * (rank % 2), True), (2, 2, False), (None, len(tokens), True)):
            forward._forward_context = None if most is None else types.SimpleNamespace(
                dp_metadata=forward.DPMetadata(torch.full((size,), most)))
            large.memory.fill_(0xff)
            torch.distributed.barrier()  # another rank may already store rows in the memory
            wanted = run(plain, count, False)
            for layer in (experts, other):
                got = run(layer, count, is_in_windows)
                assert torch.equal(got, wanted) and not got.isnan().any()
                assert layer.prepare_finalize._sent == [None]
        # Experts that have not used our memory: finalize() copies their rows.
        forward._forward_context = None
        rows, scales, _, row_ids, row_weights = pf.prepare(tokens, weights, ids, case.experts, None, False, quant)
        assert rows.data_ptr() == large.memory.data_ptr(), "the dispatch stores rows in the window"
        unreduced = [len(rows), case.top_k, case.hidden], tokens.dtype, tokens.device, reduce.TopKWeightAndReduceContiguous()
        assert pf.allocate_fused_expert_output(*unreduced) is None, "these rows are not what the combine adds"
        elsewhere, output = experts.run_rows(rows, scales, row_ids, row_weights), torch.empty_like(tokens)
        pf.finalize(output, elsewhere, row_weights, row_ids, False, experts._impl)
        assert torch.equal(output, got)
        for exchange in (middle, large):
            exchange.check_error()
        unlinked.close()
        common.close_exchanges()
    return got.float().numpy()


@pytest.mark.skipif(not hasattr(torch, "float8_e4m3fn"), reason="this PyTorch has no e4m3")
@pytest.mark.parametrize("form, size", [("standard_plain", 4), ("standard_token", 2), ("standard_block", 2)])
def test_long_batches_in_windows(form, size, tmp_path):
    find_engine("vllm")
    DenseCase(*CASE).check(run_ranks(size, _run_in_windows, size, form, tmp_path),
                           {"plain": None, "token": "per_Token", "block": "per_128x128"}[form.split("_")[1]])


@on_ranks(3)
def test_hosts_with_other_numbers_of_ranks(rank, tmp_path):
    group, common = begin_rank(rank, 3, 2, tmp_path, ())
    with pytest.warns(UserWarning, match="the engine keeps its own dispatch and combine for experts: .*with the same number of ranks on each host"):
        assert common.find_exchanges(group) is None


def _run_mori(rank, size, hosts):
    """vLLM's own steps for MORI, with our op."""
    place_on_host(rank, size, hosts)
    driver.use_gpu(rank)
    driver.wait_for_launches()
    import verbena
    from verbena.integrations import mori
    case = DenseCase(*CASE)
    tokens, ids, weights = case.share(rank, size)
    quant = types.SimpleNamespace(is_block_quantized=False, is_per_act_token=False, is_per_tensor=False)
    sys.modules["mori"] = mori
    with _vllm(), verbena.SymmetricContext.from_environment() as context:
        theirs, kernel, reduce = (importlib.import_module(name) for name in (MORI, KERNEL, REDUCE))
        assert context.lsa.size == size // hosts
        kind = "IntraNode" if hosts == 1 else "InterNodeV1"  # as vLLM's manager chooses them
        op = mori.ops.EpDispatchCombineOp(mori.ops.EpDispatchCombineConfig(
            rank=rank, world_size=size, data_type=torch.bfloat16, hidden_dim=case.hidden, scale_dim=0, scale_type_size=0, max_token_type_size=2,
            max_num_inp_token_per_rank=16, num_experts_per_rank=case.experts // size, num_experts_per_token=case.top_k, warp_num_per_block=16,
            block_num=2, kernel_type=mori.ops.EpDispatchCombineKernelType[kind]), context)
        experts = _Experts(case, rank, size, quant, reduce.TopKWeightAndReduceNoOP())
        experts.prepare_finalize = theirs.MoriPrepareAndFinalize(op, max_tokens_per_rank=16, num_dispatchers=size)
        result = _run_layer(kernel, experts, tokens, weights, ids, False)
        op.check_error()
        return result.float().numpy()


@pytest.mark.parametrize("size, hosts", [(2, 1), (4, 2)])
def test_vllms_steps_for_mori(size, hosts):
    find_engine("vllm")
    DenseCase(*CASE).check(run_ranks(size, _run_mori, size, hosts), None)
