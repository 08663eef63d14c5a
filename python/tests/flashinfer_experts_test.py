"""Tests verbena.integrations.flashinfer with FlashInfer's own registry and base class: registration and signatures. Compares a layer of
experts with a dense layer, on emulated GPUs of one host and of several hosts, with and without scales."""
import contextlib
import importlib
import inspect
import types
import warnings

import pytest

from engine_files import find_engine, importable_parts
from quantised_experts import DenseCase, begin_rank
from ranks import run_ranks

torch = pytest.importorskip("torch")

COMMUNICATION = "flashinfer.moe_ep.core.comm.communication"
CASE = (24, 256, 128, 8, 3)  # tokens, hidden, intermediate, experts, top-k


@contextlib.contextmanager
def _flashinfer():
    folder = find_engine("flashinfer-python")
    if not (folder / f"{COMMUNICATION.replace('.', '/')}.py").is_file():
        pytest.skip(f"{folder} has no flashinfer/moe_ep: remove the folder and run tools/setup engines")
    with importable_parts(folder, COMMUNICATION):
        ours = importlib.import_module("verbena.integrations.flashinfer")
        ours._make_class.cache_clear()
        try:
            yield ours, importlib.import_module(COMMUNICATION)
        finally:
            ours._make_class.cache_clear()


def test_the_backend_is_registered():
    with _flashinfer() as (ours, comm):
        made = ours.register()
        assert ours.register() is made and comm.is_communication_backend("verbena") and made.backend_name == "verbena"
        assert issubclass(made, comm.MoEEpCommunication) and not made.__abstractmethods__ and made.supports_cuda_graph
        for name in ("dispatch", "combine", "destroy", "is_platform_supported", "get_combine_input_buffer"):
            theirs = inspect.signature(getattr(comm.MoEEpCommunication, name)).parameters
            mine = list(inspect.signature(getattr(made, name)).parameters)
            assert [one for one in mine if one in theirs] == list(theirs), name


def test_a_flashinfer_without_the_registry(monkeypatch):
    import sys
    from verbena.integrations import flashinfer
    monkeypatch.setitem(sys.modules, "flashinfer", None)
    flashinfer._make_class.cache_clear()
    with pytest.raises(ImportError):
        flashinfer.register()


def _run(rank, size, hosts, folder):
    _, common = begin_rank(rank, size, hosts, folder, (13,))
    case = DenseCase(*CASE)
    share = case.experts // size
    tokens, ids, weights = case.share(rank, size)
    results = []
    with _flashinfer() as (ours, comm), warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        ours.register()
        bootstrap = types.SimpleNamespace(rank=rank, world_size=size, process_group=None)
        params = comm.MoEEpCommParams(num_experts=case.experts, top_k=case.top_k, max_tokens_per_rank=27, hidden_size=case.hidden,
                                      invalid_expert_id=case.experts + 3)
        layer = comm.create_communication(bootstrap, params, "verbena")
        assert common.find_exchanges(torch.distributed.group.WORLD).num_hosts == hosts
        assert layer.is_workload_feasible(27) and not layer.is_workload_feasible(28)
        names = "max_tokens_per_rank", "runtime_max_tokens_per_rank"  # of FlashInfer 0.7.2 and 0.7.4
        for quant_type, most, place, name in ((None, None, 27, names[0]), ("per_128x128", 12, 13, names[0]), (None, 14, 27, names[1])):
            rows, scales = (tokens, None) if quant_type is None else case.quantise(tokens, quant_type)
            came = layer.dispatch(rows, ids.long() if most == 14 else ids, weights, hidden_states_scale=scales, **{name: most})
            assert came.tokens_per_rank == place and list(came.hidden_states.shape) == [size * place, case.hidden]
            assert came.topk_ids.dtype == torch.int32 and list(came.topk_ids.shape) == [size * place, case.top_k]
            is_ours = (came.topk_ids >= rank * share) & (came.topk_ids < rank * share + share)
            assert (came.topk_ids[~is_ours] == case.experts + 3).all()
            sent = [(one, number) for one in range(size) for number, row in enumerate(case.ids.chunk(size)[one].tolist())
                    if any(expert // share == rank for expert in row)]
            assert int(is_ours.any(1).sum()) == len(sent), "each token at most once"
            with pytest.raises(RuntimeError, match=r"call combine\(\) before"):
                layer.dispatch(rows, ids, weights)
            wide = came.hidden_states.float() if scales is None else case.widen(came.hidden_states, came.hidden_states_scale)
            added = case.add_experts(wide, came.topk_ids, came.topk_weights, range(rank * share, rank * share + share)).to(torch.bfloat16)
            out = torch.empty_like(tokens) if most is None else None
            result = layer.combine(added if most is None else added.view(size, place, case.hidden), output=out)
            assert out is None or result is out
            results.append(result.float().numpy())
        with pytest.raises(RuntimeError, match="without dispatch"):
            layer.combine(added)
        with pytest.raises(ValueError, match="has 28 tokens"):
            layer.dispatch(rows, ids, weights, max_tokens_per_rank=28)
        with pytest.raises(ValueError, match="statistics"):
            layer.dispatch(rows, ids, weights, eplb_local_stats=weights)
        layer.destroy()
        common.close_exchanges()
    return results


@pytest.mark.skipif(not hasattr(torch, "float8_e4m3fn"), reason="this PyTorch has no e4m3")
@pytest.mark.parametrize("size, hosts", [(2, 1), (4, 1), (2, 2), (4, 2)])
def test_a_layer_of_experts(size, hosts, tmp_path):
    with _flashinfer():
        pass
    case = DenseCase(*CASE)
    parts = run_ranks(size, _run, size, hosts, tmp_path)
    for quant_type, outputs in zip((None, "per_128x128", None), zip(*parts)):
        case.check(outputs, quant_type)
