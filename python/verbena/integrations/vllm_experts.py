"""The vLLM plug-in for mixture of experts: dispatch and combine between the ranks of vLLM's EP group (docs/inference.md).

    pip install verbena-*.whl
    export USE_VERBENA_MOE=1
    vllm serve MODEL --data-parallel-size 4 --enable-expert-parallel
"""
import functools
import importlib
import sys
import warnings
from collections.abc import Callable
from typing import Any

from verbena.integrations.experts import WindowExchange, find_exchanges, list_sizes
from verbena.moe import Dispatched, ExpertExchange, Grouping, Order, Phase

_LAYERS = "vllm.model_executor.layers.fused_moe"
_MODULE = f"{_LAYERS}.all2all_utils"
_NAME = "maybe_make_prepare_finalize"
BLOCK = [128, 128]  # for weights quantised in such blocks, a dispatch casts the activations in blocks of 128 elements


def switch_on() -> None:
    """Makes layers that vLLM creates later use Verbena."""
    module = importlib.import_module(_MODULE)
    original = getattr(module, _NAME)
    if hasattr(original, "without_verbena"):
        return

    @functools.wraps(original)
    def make(*arguments: Any, **named: Any) -> Any:
        ours = make_prepare_finalize(*arguments, **named)
        return original(*arguments, **named) if ours is None else ours
    make.without_verbena = original  # type: ignore[attr-defined]
    # vLLM's quantisation modules have imported the function by its name, so the loop replaces the function in these modules too.
    for one in [one for name, one in sys.modules.items() if name.split(".")[0] == "vllm"]:
        if getattr(one, _NAME, None) is original:
            setattr(one, _NAME, make)


def make_prepare_finalize(moe: Any, quant_config: Any, routing_tables: Any = None, allow_new_interface: bool = False,
                          use_monolithic: bool = False, all2all_manager: Any = None, input_dtype: Any = None) -> Any:
    """Takes the arguments of vLLM's maybe_make_prepare_finalize(). Returns a VerbenaPrepareAndFinalize. Returns None, with a warning, if
    vLLM must use its own implementation. Collective over the EP group; all ranks make the same choice."""
    parallel = moe.moe_parallel_config
    if parallel.use_passthrough_all2all or not parallel.use_all2all_kernels:
        return None  # nothing to move
    try:
        manager = importlib.import_module(_MODULE).get_ep_all2all_manager() if all2all_manager is None else all2all_manager
        is_batched = bool(parallel.use_batched_activation_format)
        config = importlib.import_module("vllm.config").get_current_vllm_config().parallel_config
        _expect_supported(moe, quant_config, routing_tables, use_monolithic, manager, is_batched, config)
        shapes = list_sizes(-(-moe.max_num_tokens // max(1, parallel.sp_size)), manager.world_size)
        exchanges = find_exchanges(manager.cpu_group)
        if exchanges is None:
            return None
        # Results that are grouped by expert have the same shape in each call, so only the largest exchange is used. Batches that overlap in
        # time (DBO) need separate exchanges.
        find = functools.partial(exchanges.get_sizes, shapes[-1:] if is_batched else shapes, max(1, config.num_ubatches),
                                 experts=moe.num_experts, top_k=moe.experts_per_token, hidden=moe.hidden_dim,
                                 max_scale_bytes=4 * -(-moe.hidden_dim // 64))
        found = find(in_windows=not is_batched)
    except Exception as error:
        warnings.warn(f"verbena: vLLM keeps its own dispatch and combine for experts: {type(error).__name__}: {error}", stacklevel=2)
        return None
    return _make_class()(find, found, exchanges.rank, is_batched, quant_config, routing_tables)


def _expect_supported(moe: Any, quant_config: Any, routing_tables: Any, use_monolithic: bool, manager: Any, is_batched: bool,
                      config: Any) -> None:
    size = manager.world_size
    if use_monolithic:
        raise NotImplementedError("the experts' kernel does its own routing")
    if getattr(moe.moe_parallel_config, "use_moonep_kernels", False):
        raise NotImplementedError("the experts of the all-to-all backend moonep need the results of moonep's own dispatch")
    if moe.in_dtype.itemsize != 2:
        raise NotImplementedError(f"activations must be bfloat16 or float16, not {moe.in_dtype}")
    if getattr(manager, "support_fault_tolerance", False):
        raise NotImplementedError("vLLM asks the all-to-all backend after each step which ranks have failed (nixl_ep, or --enable-fault-tolerance)")
    if getattr(config, "enable_elastic_ep", False):
        raise NotImplementedError("elastic EP would need new exchanges while the engine is serving")
    if moe.is_lora_enabled:
        raise NotImplementedError("LoRA is not supported, because it sends additional tensors with the tokens")
    if moe.num_experts % size != 0 or moe.num_local_experts * size != moe.num_experts:
        raise NotImplementedError(f"{moe.num_experts} experts are not divided evenly between {size} ranks")
    if config.expert_placement_strategy != "linear" and routing_tables is None:
        raise NotImplementedError(f"the expert placement strategy is {config.expert_placement_strategy}; it must be linear")
    if quant_config is None or quant_config.quant_dtype is None:
        return
    if moe.hidden_dim % 32 != 0:
        raise NotImplementedError(f"the hidden size, {moe.hidden_dim}, must be a multiple of 32 for quantised rows")
    is_cast = _is_cast(quant_config)
    if is_batched and not is_cast:
        raise NotImplementedError(f"rows grouped by expert must be {moe.in_dtype}, or quantised in blocks of 128 elements, not "
                                  f"{quant_config.quant_dtype}")
    if not is_batched and not is_cast and not quant_config.per_act_token_quant and quant_config.block_shape is None \
            and not isinstance(quant_config.quant_dtype, str) and quant_config.a1_scale is None:
        raise NotImplementedError("activations with one scale for all tokens of a rank are not supported")


def _is_cast(quant_config: Any) -> bool:
    return bool(str(quant_config.quant_dtype) == "torch.float8_e4m3fn" and quant_config.block_shape == BLOCK)


@functools.cache
def _make_class() -> Any:
    kernel: Any = importlib.import_module(f"{_LAYERS}.modular_kernel")
    reduce: Any = importlib.import_module(f"{_LAYERS}.topk_weight_and_reduce")
    naive: Any = importlib.import_module(f"{_LAYERS}.prepare_finalize.naive_dp_ep")
    batches: Any = importlib.import_module("vllm.v1.worker.ubatching")
    forward: Any = importlib.import_module("vllm.forward_context")

    class VerbenaPrepareAndFinalize(kernel.FusedMoEPrepareAndFinalizeModular):  # type: ignore[misc]
        """vLLM's steps before and after the experts. Calls allocate only their results and do not synchronise with the GPU.

        In the Standard format, rows are quantised as in vLLM's own all-gather, and received rows are sorted by source rank and have the
        shape [ranks * max tokens, hidden]. Rows without a token get the id of another rank's expert, so the expert kernels skip them. In
        the BatchedExperts format, received rows are grouped by expert, and the dispatch casts them to e4m3 if the weights are quantised in
        blocks."""

        def __init__(self, find: Callable[..., list[list[ExpertExchange]]], exchanges: list[list[ExpertExchange]], rank: int,
                     is_batched: bool, quant_config: Any, routing_tables: Any) -> None:
            super().__init__()
            self._find, self._exchanges, self._rank, self._is_batched = find, exchanges, rank, is_batched
            largest = exchanges[-1][0]
            self._max_tokens, self._ranks = largest.max_tokens, largest.ranks
            self._first_expert = rank * (largest.experts // largest.ranks)
            self._foreign_expert = largest.experts - 1 if rank == 0 else 0
            self._cast = "fp8_block" if is_batched and quant_config is not None and _is_cast(quant_config) else None
            self._physical_ids = None if routing_tables is None else routing_tables[0]
            # The exchange and the dispatch of each batch in flight.
            self._sent: list[tuple[ExpertExchange, Dispatched] | None] = [None] * len(exchanges[0])

        def post_init_setup(self, fused_experts: Any) -> None:
            if self._cast is not None and fused_experts.supports_packed_ue8m0_act_scales():
                self._cast = "fp8_block_exponent"
            if isinstance(fused_experts.finalize_weight_and_reduce_impl(), reduce.TopKWeightAndReduceDelegate):
                self._exchanges = self._find(in_windows=False)  # exchanges in windows do not add the rows of a rank's experts

        @property
        def activation_format(self) -> Any:
            formats = kernel.FusedMoEActivationFormat
            return formats.BatchedExperts if self._is_batched else formats.Standard

        def topk_indices_dtype(self) -> Any:
            import torch
            return torch.int32

        def max_num_tokens_per_rank(self) -> int | None:
            return self._max_tokens

        def num_dispatchers(self) -> int:
            return self._ranks

        def output_is_reduced(self) -> bool:
            return True

        def supports_async(self) -> bool:
            return len(self._sent) > 1  # without batches that overlap, vLLM itself runs shared experts on another stream

        def supports_dbo(self) -> bool:
            return True

        def allocate_fused_expert_output(self, shape: Any, dtype: Any, device: Any, weight_and_reduce_impl: Any) -> Any:
            """If the exchange is in windows, returns the memory from which the combine loads the experts' rows. Otherwise returns None, and
            vLLM allocates this memory."""
            exchange = (self._sent[batches.dbo_current_ubatch_id()] or (None,))[0]
            is_reduced = isinstance(weight_and_reduce_impl, reduce.TopKWeightAndReduceNoOP)
            return exchange.make_rows(dtype) if isinstance(exchange, WindowExchange) and is_reduced else None

        def prepare_async(self, a1: Any, topk_weights: Any, topk_ids: Any, num_experts: int, expert_map: Any,
                          apply_router_weight_on_input: bool, quant_config: Any, defer_input_quant: bool = False) -> Any:
            """Returns a hook that receives the rows, and a function that returns the results. If batches do not overlap, returns only the
            function, because one kernel sends and receives."""
            phase = Phase.SEND if batches.dbo_enabled() else Phase.BOTH
            receive, finish = self._prepare(a1, topk_weights, topk_ids, apply_router_weight_on_input, quant_config, defer_input_quant, phase)
            return finish if phase == Phase.BOTH else (receive, finish)

        def prepare(self, a1: Any, topk_weights: Any, topk_ids: Any, num_experts: int, expert_map: Any, apply_router_weight_on_input: bool,
                    quant_config: Any, defer_input_quant: bool = False) -> Any:
            return self._prepare(a1, topk_weights, topk_ids, apply_router_weight_on_input, quant_config, defer_input_quant, Phase.BOTH)[1]()

        def _prepare(self, a1: Any, topk_weights: Any, topk_ids: Any, apply_router_weight_on_input: bool, quant_config: Any,
                     defer_input_quant: bool, phase: Phase) -> tuple[Callable[[], None], Callable[[], Any]]:
            if apply_router_weight_on_input:
                if topk_ids.shape[1] != 1:
                    raise ValueError("router weights can be applied to the input only with top-1")
                a1, topk_weights = a1 * topk_weights.to(a1.dtype), None
            if topk_weights is not None:
                topk_weights = topk_weights.float()  # most routers give float32
            if self._physical_ids is not None:
                topk_ids = self._physical_ids[topk_ids.long()]
            number = batches.dbo_current_ubatch_id()
            exchange = self._choose(a1.shape[0])[number]
            rows, given, scale = a1, None, None
            if not self._is_batched:
                rows, given, scale = naive._quantize_and_setup_dispatch(a1, quant_config, defer_input_quant)
            elif defer_input_quant and self._cast is not None:
                raise NotImplementedError("experts that quantise their own input are not supported with rows grouped by expert")
            if not rows.is_contiguous():
                rows = rows.contiguous()
            call = functools.partial(
                exchange.dispatch, rows, topk_ids, topk_weights, scales=None if given is None else given[0].contiguous(), cast=self._cast,
                grouping=Grouping.EXPERT if self._is_batched else Grouping.RANK, column_scales=self._cast is not None)
            sent = call(phase=phase)
            self._sent[number] = exchange, sent
            finish = self._list_batches if self._is_batched else self._list_rows

            def receive() -> None:
                call(phase=Phase.RECEIVE, out=sent)
            return receive, lambda: finish(sent, scale if given is None else None, quant_config)

        def _choose(self, tokens: int) -> list[ExpertExchange]:
            """Returns the exchanges for the batches of this step. Chooses by the largest batch, whose size all ranks know."""
            if len(self._exchanges) == 1:
                return self._exchanges[0]
            metadata = forward.get_forward_context().dp_metadata if forward.is_forward_context_available() else None
            if metadata is not None:
                sizes = metadata.local_sizes
                tokens = int(metadata.num_tokens_across_dp_cpu.max()) if sizes is None else max(sizes)
            else:
                tokens = self._max_tokens
            return next((one for one in self._exchanges if one[0].max_tokens >= tokens), self._exchanges[-1])

        def _list_batches(self, sent: Dispatched, scale: Any, quant_config: Any) -> Any:
            return sent.rows, sent.scales, kernel.ExpertTokensMetadata(sent.expert_counts, None), None, None

        def _list_rows(self, sent: Dispatched, scale: Any, quant_config: Any) -> Any:
            import torch
            if sent.scales is not None:
                scale = naive._unwrap_scale_and_prepare_for_moe([sent.scales.flatten(0, 1)], quant_config)
            ids = torch.where(sent.ids < 0, self._foreign_expert, sent.ids + self._first_expert)
            return sent.rows.flatten(0, 1), scale, None, ids.flatten(0, 1), sent.weights.flatten(0, 1)

        def finalize_async(self, output: Any, fused_expert_output: Any, topk_weights: Any, topk_ids: Any, apply_router_weight_on_input: bool,
                           weight_and_reduce_impl: Any) -> Any:
            receive = self._finalize(output, fused_expert_output, topk_weights, topk_ids, apply_router_weight_on_input,
                                     weight_and_reduce_impl, Phase.SEND)
            return receive, lambda: None

        def finalize(self, output: Any, fused_expert_output: Any, topk_weights: Any, topk_ids: Any, apply_router_weight_on_input: bool,
                     weight_and_reduce_impl: Any) -> None:
            self._finalize(output, fused_expert_output, topk_weights, topk_ids, apply_router_weight_on_input, weight_and_reduce_impl, Phase.BOTH)

        def _finalize(self, output: Any, rows: Any, topk_weights: Any, topk_ids: Any, apply_router_weight_on_input: bool, impl: Any,
                      phase: Phase) -> Callable[[], None]:
            number = batches.dbo_current_ubatch_id()
            found = self._sent[number]
            if found is None:
                raise RuntimeError("finalize() was called without prepare()")
            exchange, sent = found
            self._sent[number] = None  # frees the rows; otherwise each layer's object would keep its rows until the next batch
            place = [exchange.ranks, exchange.max_tokens]
            if self._is_batched or isinstance(impl, reduce.TopKWeightAndReduceDelegate):
                # The kernel applies the weights of the dispatch.
                order = Order.REDUCED
                rows = rows if self._is_batched else rows.view(*place, exchange.top_k, exchange.hidden)
            else:
                order, out = Order.ROWS, None
                if isinstance(exchange, WindowExchange):
                    # A copy is needed only if the experts have not used the result of allocate_fused_expert_output().
                    phase, out = Phase.BOTH, exchange.make_rows(rows.dtype)
                    out = rows if rows.data_ptr() == out.data_ptr() else out
                rows = impl.apply(out, rows, topk_weights, topk_ids, apply_router_weight_on_input).view(*place, exchange.hidden)
            batches.dbo_maybe_run_recv_hook()
            call = functools.partial(exchange.combine, rows, sent, order, out=output)
            call(phase=phase)

            def receive() -> None:
                if phase == Phase.SEND:
                    call(phase=Phase.RECEIVE)
            return receive

    return VerbenaPrepareAndFinalize
