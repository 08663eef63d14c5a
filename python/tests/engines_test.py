"""Tests Verbena's integrations with the engines' own files: loaders, signatures and attributes. Only parts of an engine that the loaded
files do not use are replaced. docs/inference.md names the versions."""
import ast
import importlib
import inspect
import logging
import pathlib

import pytest

from attribute_reads import find_reads
from engine_files import add_definitions, add_module, find_calls, find_engine, importable, installed_entry_points, make_alone

VLLM_MODULE = "vllm.distributed.device_communicators.custom_all_reduce"
VLLM_FILE = "vllm/distributed/device_communicators/custom_all_reduce.py"
SGLANG_MODULE = "sglang.srt.distributed.device_communicators.custom_all_reduce"
SGLANG_FILE = "sglang/srt/distributed/device_communicators/custom_all_reduce.py"
SGLANG_FUSION = "sglang.srt.layers.flashinfer_comm_fusion"


@pytest.fixture(autouse=True)
def switched_on(monkeypatch):
    monkeypatch.setenv("USE_VERBENA_COLLECTIVES", "1")
    monkeypatch.delenv("VLLM_ALLREDUCE_USE_FLASHINFER", raising=False)


def _list_packages(name):
    parts = name.split(".")
    return [".".join(parts[:count]) for count in range(1, len(parts))]


# Loaders.


def _load_sglang_plugins(folder, tmp_path, caplog):
    """Loads the plug-ins with SGLang's own loader. Returns the module whose function is hooked."""
    module = add_definitions(SGLANG_MODULE, folder / SGLANG_FILE, ["dispatch_custom_allreduce"], _is_cuda=False, _is_musa=True,
                             CustomAllreduce=object)
    # A module that has imported the function by name, as SGLang's parallel_state has.
    importer = add_module("sglang.srt.distributed.importer", dispatch_custom_allreduce=module.dispatch_custom_allreduce)
    with installed_entry_points(tmp_path), caplog.at_level(logging.INFO):
        importlib.import_module("sglang.srt.plugins").load_plugins()
    return module, importer


def test_sglang_loads_and_calls_us(tmp_path, caplog):
    folder = find_engine("sglang")
    with importable(folder, *_list_packages(SGLANG_MODULE)):
        module, importer = _load_sglang_plugins(folder, tmp_path, caplog)
        ours = importlib.import_module("verbena.integrations.sglang").VerbenaAllreduce
        for place in (module, importer):
            assert place.dispatch_custom_allreduce(group=None, device="cpu") is ours
        assert not [record for record in caplog.records if record.levelno >= logging.WARNING], caplog.text
        assert "Executed general plugin: verbena" in caplog.text


def test_sglang_is_left_alone_unless_asked(tmp_path, caplog, monkeypatch):
    folder = find_engine("sglang")
    monkeypatch.setenv("USE_VERBENA_COLLECTIVES", "0")
    with importable(folder, *_list_packages(SGLANG_MODULE)):
        module, _ = _load_sglang_plugins(folder, tmp_path, caplog)
        assert module.dispatch_custom_allreduce(group=None, device="cpu") is object


def test_a_sglang_without_the_hook_keeps_its_own(tmp_path, caplog):
    folder = find_engine("sglang")
    with importable(folder, *_list_packages(SGLANG_MODULE)):
        registry = importlib.import_module("sglang.srt.plugins.hook_registry")
        kept, registry.HookType = registry.HookType, None
        try:
            with pytest.warns(UserWarning, match="sglang .* uses its own"):
                _load_sglang_plugins(folder, tmp_path, caplog)
        finally:
            registry.HookType = kept
        assert "Failed to execute" not in caplog.text


def _load_vllm_plugins(tmp_path):
    with installed_entry_points(tmp_path):
        importlib.import_module("vllm.plugins").load_general_plugins()


def test_vllm_loads_us(tmp_path):
    import os
    folder = find_engine("vllm")
    with importable(folder, *_list_packages(VLLM_MODULE)):
        module = add_definitions(VLLM_MODULE, folder / VLLM_FILE, ["CustomAllreduce"], contextmanager=lambda function: function)
        _load_vllm_plugins(tmp_path)
        ours = importlib.import_module("verbena.integrations.vllm")
        assert module.CustomAllreduce is ours.VerbenaAllreduce
        assert os.environ["VLLM_ALLREDUCE_USE_FLASHINFER"] == "0"
        # Every process calls it, some several times.
        ours.register()
        assert module.CustomAllreduce is ours.VerbenaAllreduce


@pytest.mark.parametrize("contents", [None, {}])
def test_a_vllm_without_the_class_keeps_its_own(tmp_path, contents):
    """An exception in a plug-in would end the server, because vLLM's loader catches nothing."""
    import os
    folder = find_engine("vllm")
    with importable(folder, *_list_packages(VLLM_MODULE)):
        importlib.import_module("sys").modules[VLLM_MODULE] = None
        if contents is not None:
            add_module(VLLM_MODULE, **contents)
        with pytest.warns(UserWarning, match="vllm .* uses its own"):
            _load_vllm_plugins(tmp_path)
        assert "VLLM_ALLREDUCE_USE_FLASHINFER" not in os.environ, "FlashInfer's kernels are left to it as well"


# Signatures.


def _bind(function, count, keywords):
    inspect.signature(function).bind(*[None] * count, **dict.fromkeys(keywords))


def test_vllm_makes_and_calls_us_as_its_own():
    from verbena.integrations.vllm import VerbenaAllreduce
    folder = find_engine("vllm")
    with importable(folder, *_list_packages(VLLM_MODULE)):
        theirs = add_definitions(VLLM_MODULE, folder / VLLM_FILE, ["CustomAllreduce"], contextmanager=lambda one: one).CustomAllreduce
    accepted = inspect.signature(VerbenaAllreduce).parameters
    unknown = set(inspect.signature(theirs).parameters) - set(accepted)
    assert not unknown, f"vLLM's class takes {unknown} too"
    communicator_file = folder / "vllm/distributed/device_communicators/cuda_communicator.py"
    made = list(find_calls(communicator_file, "CustomAllreduce"))
    assert made
    for count, keywords in made:
        _bind(VerbenaAllreduce, count, keywords)
        assert set(keywords) <= set(accepted), "without our warning of unknown arguments"
    public = [name for name, _ in inspect.getmembers(theirs, inspect.isfunction) if not name.startswith("_")]
    not_ours = {"create_shared_buffer", "free_shared_buffer"}  # of its own buffers; another class of models, for AMD, uses the first
    for name in set(public) - not_ours:
        ours = inspect.signature(getattr(VerbenaAllreduce, name)).parameters
        assert set(inspect.signature(getattr(theirs, name)).parameters) <= set(ours), name


def test_sglang_makes_and_calls_us_as_its_own():
    from verbena.integrations.sglang import VerbenaAllreduce, dispatch
    folder = find_engine("sglang")
    state = folder / "sglang/srt/distributed/parallel_state.py"
    dispatched, made = list(find_calls(state, "dispatch_custom_allreduce")), list(find_calls(state, "CAClass"))
    assert dispatched and made
    for count, keywords in dispatched:
        _bind(dispatch, count + 1, keywords)
    for count, keywords in made:
        _bind(VerbenaAllreduce, count, keywords)


# (engine, integration, folder of its package, attributes that are read of other objects of the same name or by code that is not NVIDIA's).
READERS = [
    ("vllm", "vllm", "vllm", {"compilation/passes/fusion/allreduce_rms_fusion.py": "AITER's communicator, on AMD"}),
    ("sglang", "sglang", "sglang/srt", {
        "distributed/device_communicators/vocab_gather.py": "behind getattr(ca_comm, 'has_multicast', False), in another function"}),
]


@pytest.mark.parametrize("engine, integration, package, others", READERS)
def test_attributes_that_are_read_exist(engine, integration, package, others):
    folder = find_engine(engine)
    ours = make_alone(importlib.import_module(f"verbena.integrations.{integration}"))
    reads = find_reads(folder / package, "ca_comm")
    assert len(reads) >= 10, "the walk through the files finds them"
    missing = [read for read in reads if not read.is_guarded and read.file not in others and not _has(ours, read.attribute)]
    assert not missing
    # The excuses are still needed, and still hold.
    for file in others:
        assert any(read.file == file and not _has(ours, read.attribute) for read in reads), file
    assert not getattr(ours, "has_multicast", False)


def _has(instance, name):
    """Returns True if the object has the attribute. Does not use __getattr__, which answers for every name."""
    return name in vars(instance) or hasattr(type(instance), name)


@pytest.mark.parametrize("engine, integration, file, class_name, internal", [
    ("vllm", "vllm", VLLM_FILE, "CustomAllreduce", {"meta_ptrs", "buffer_ptrs", "rank_data"}),
    ("sglang", "sglang", SGLANG_FILE, "CustomAllreduce", {
        "meta_ptrs", "buffer_ptrs", "rank_data", "meta", "buffer", "tms_cudagraph", "use_amd_deterministic_impl", "full_nvlink"}),
])
def test_public_attributes_of_their_class_exist(engine, integration, file, class_name, internal):
    """`internal` has what is only of use with their kernels."""
    tree = ast.parse((find_engine(engine) / file).read_text())
    theirs, = (node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == class_name)
    stored = {node.attr for node in ast.walk(theirs) if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)
              and isinstance(node.value, ast.Name) and node.value.id == "self"}
    ours = make_alone(importlib.import_module(f"verbena.integrations.{integration}"))
    missing = {name for name in stored if not name.startswith("_") or name == "_IS_CAPTURING"} - internal
    assert not {name for name in missing if not _has(ours, name)}


def test_attributes_that_nobody_knows():
    from verbena.integrations import vllm
    ours = make_alone(vllm)
    with pytest.warns(UserWarning, match="mnnvl_new_ptr.*Verbena does not know"):
        assert ours.mnnvl_new_ptr == 0
    assert ours.mnnvl_new_ptr == 0, "without another warning"
    with pytest.raises(AttributeError, match="vLLM reads the attribute 'quick_ptr'.*USE_VERBENA_COLLECTIVES"):
        ours.quick_ptr  # noqa: B018
    assert getattr(ours, "obj", None) is None and not hasattr(ours, "has_multicast")
    with pytest.warns(UserWarning, match="with arguments that Verbena does not know. Verbena ignores these arguments: color, size"):
        vllm.VerbenaAllreduce(ours.group, "cpu", color=1, size=2)


# FlashInfer's and AITER's files.


def test_sglang_calls_the_fused_norm_as_our_hook_takes_it():
    from verbena.integrations.sglang import fused_norm
    folder = find_engine("sglang")
    path = folder / "sglang/srt/layers/flashinfer_comm_fusion.py"
    defined = {node.name: node for node in ast.parse(path.read_text()).body if isinstance(node, ast.FunctionDef)}
    theirs = defined["flashinfer_allreduce_residual_rmsnorm"]
    assert [one.arg for one in theirs.args.args][:4] == ["input_tensor", "residual", "weight", "eps"]
    assert [one.arg for one in defined["resolve_fusion_group"].args.kwonlyargs] == ["use_attn_tp_group"]
    calls = list(find_calls(folder / "sglang/srt/layers/layernorm.py", theirs.name))
    assert calls
    for count, keywords in calls:
        _bind(fused_norm, count + 1, keywords)
        assert "use_attn_tp_group" in keywords, "the hook finds the group by it"


def test_flashinfer_takes_what_we_compare_it_with():
    """verbena-bench-torch measures these beside ours."""
    path, = find_engine("flashinfer-python").glob("flashinfer/comm/allreduce.py")
    defined = {node.name: node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.FunctionDef)}
    taken = {one.arg for one in [*defined["allreduce_fusion"].args.args, *defined["allreduce_fusion"].args.kwonlyargs]}
    made = {one.arg for one in [*defined["create_allreduce_fusion_workspace"].args.args,
                                *defined["create_allreduce_fusion_workspace"].args.kwonlyargs]}
    tool = pathlib.Path(__file__).parents[2] / "tools/verbena-bench/coll/verbena-bench-torch.py"
    for function, accepted in (("allreduce_fusion", taken), ("create_allreduce_fusion_workspace", made)):
        for _, keywords in find_calls(tool, function):
            assert set(keywords) <= accepted, function


def test_aiter_has_the_settings_that_we_read():
    from verbena.setting_table import SETTINGS
    folder = find_engine("amd-aiter")
    text = "".join(path.read_text(encoding="utf-8") for path in folder.glob("aiter/dist/device_communicators/*.py"))
    aliases = [alias for names, _, _ in SETTINGS.values() for alias in names]
    assert len(aliases) == 3
    for alias in aliases:
        assert alias in text, alias


def test_sums_of_a_group_take_aiters_arguments():
    """All other calls of a group have vLLM's arguments; AITER's arguments raise a TypeError there (docs/distributed.md)."""
    import verbena.distributed as ours
    folder = find_engine("amd-aiter") / "aiter/dist"
    for file, name, function in (("communication_op.py", "tensor_model_parallel_all_reduce", ours.tensor_model_parallel_all_reduce),
                                 ("parallel_state.py", "all_reduce", ours.GroupCoordinator.all_reduce)):
        module = ast.parse((folder / file).read_text())
        places = [module, *(node for node in module.body if isinstance(node, ast.ClassDef) and node.name == "GroupCoordinator")]
        theirs = next(node for node in places[-1].body if isinstance(node, ast.FunctionDef) and node.name == name)
        assert [one.arg for one in theirs.args.args] == list(inspect.signature(function).parameters), name
        assert [ast.literal_eval(value) for value in theirs.args.defaults] == [False]
