"""The SGLang plug-in for mixture of experts: dispatch and combine between the ranks of the experts (docs/inference.md).

    pip install verbena-*.whl
    export USE_VERBENA_MOE=1
    python -m sglang.launch_server --model MODEL --tp 4 --moe-a2a-backend deepep
"""
import enum
import functools
import importlib
import warnings
from collections.abc import Callable
from typing import Any

from verbena.integrations.experts import WindowExchange, find_exchanges
from verbena.moe import Dispatched, ExpertExchange, Grouping, Order, Phase

_LAYER = "sglang.srt.layers.moe.fused_moe_triton.layer"
_DISPATCHERS = "sglang.srt.layers.moe.token_dispatcher"
_UTILS = "sglang.srt.layers.moe.utils"
find_max_tokens = ExpertExchange.find_max_tokens
_MIN_PREFILL_TOKENS = 4096
_CASTS = {"bf16": False, "fp8": True, "int8": True}  # like SGLang on GPUs, which replaces int8 by fp8
_ALIGNMENT = 128  # SGLang's DeepGEMM requires that the number of each expert's rows is a multiple of this number


def create_dispatcher(original: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
    """Wraps SGLang's create_moe_dispatcher()."""
    ours = make_dispatcher(*arguments, **named)
    return original(*arguments, **named) if ours is None else ours


def clean_buffer(original: Callable[..., Any], buffers: Any) -> None:
    """Wraps the method of SGLang's DeepEPBuffer, which SGLang calls before a decode that follows a prefill in graphs of a draft model.
    SGLang creates the buffer only if some layer uses SGLang's own dispatcher."""
    if buffers._state().buffer is not None:
        original(buffers)


HOOKS = {f"{_LAYER}.create_moe_dispatcher": create_dispatcher, f"{_DISPATCHERS}.deepep.DeepEPBuffer.clean_buffer": clean_buffer}


def make_dispatcher(moe_runner_config: Any, quant_method: Any = None) -> Any:
    """Returns a dispatcher over Verbena's exchanges. Returns None, with a warning, if SGLang must use its own dispatcher. Collective over
    the ranks of the experts; all ranks make the same choice."""
    utils: Any = importlib.import_module(_UTILS)
    if not utils.get_moe_a2a_backend().is_deepep():
        return None  # SGLang uses no all-to-all, or an all-to-all with other formats
    try:
        layer: Any = importlib.import_module(_LAYER)
        group = layer.get_parallel().tp_group
        config = moe_runner_config
        if config.num_experts % group.world_size != 0 or config.num_local_experts * group.world_size != config.num_experts:
            raise NotImplementedError(f"{config.num_experts} experts are not divided evenly between {group.world_size} ranks")
        environment = importlib.import_module("sglang.srt.environ").envs
        kind = getattr(layer.get_server_args(), "deepep_dispatcher_output_dtype", "auto")
        if environment.SGLANG_MOE_NVFP4_DISPATCH.get():
            kind = "nvfp4"
        if kind != "auto":
            _is_cast(kind)
        exchanges = find_exchanges(group.cpu_group)
        if exchanges is None:
            return None
        tokens = int(environment.SGLANG_DEEPEP_NUM_MAX_DISPATCH_TOKENS_PER_RANK.get())
        options = {"experts": config.num_experts, "top_k": config.top_k, "hidden": config.hidden_size,
                   "max_scale_bytes": 4 * -(-config.hidden_size // 128)}
        if utils.is_sbo_enabled():
            raise NotImplementedError("--enable-single-batch-overlap is not supported, because this mode combines rows while the rows are still being computed")
        mode = utils.get_deepep_mode()
        batches = 2 if utils.is_tbo_enabled() else 1
        small = exchanges.get(batches, max_tokens=tokens, **options) if mode.enable_low_latency() else []
        large = exchanges.get_sizes([_find_prefill_tokens(layer, exchanges.size)], batches, **options)[0] if mode.enable_normal() else []
    except Exception as error:
        warnings.warn(f"verbena: SGLang keeps its own dispatch and combine for experts: {type(error).__name__}: {error}", stacklevel=2)
        return None
    make, make_all = _make_classes()
    return make_all([make(mode, *[one[number] if one else None for one in (small, large)], config.runner_backend) for number in range(batches)])


def _find_prefill_tokens(layer: Any, ranks: int) -> int:
    """Returns the size of the exchange for prefill batches. --chunked-prefill-size limits a batch; SGLang has already divided this number by
    the data-parallel size. -1 means no limit. The ranks that share a batch's attention divide the tokens between them."""
    limit, chunk = find_max_tokens(ranks), int(layer.get_server_args().chunked_prefill_size or -1)
    tokens = -(-chunk // int(layer.get_parallel().attn_tp_size))
    if chunk <= 0 or tokens > limit:
        size = f"{tokens} tokens" if chunk > 0 else "any number of tokens"
        raise NotImplementedError(f"a prefill batch may have {size} per rank, but an exchange takes at most {limit}. Lower --chunked-prefill-size")
    return min(limit, max(_MIN_PREFILL_TOKENS, tokens))


def _is_cast(kind: str) -> bool:
    """Returns whether rows are cast to e4m3 if SGLang asks for this type. Raises NotImplementedError if they cannot have the type."""
    if kind not in _CASTS:
        raise NotImplementedError(f"rows cannot be dispatched as {kind}. Set --deepep-dispatcher-output-dtype to bf16 or fp8, and unset "
                                  "SGLANG_MOE_NVFP4_DISPATCH")
    return _CASTS[kind]


class _Stage(enum.Enum):
    IDLE = "dispatch_a"
    SENT = "dispatch_b"
    RECEIVED = "combine_a"
    SENT_BACK = "combine_b"


@functools.cache
def _make_classes() -> tuple[Any, Any]:
    base: Any = importlib.import_module(f"{_DISPATCHERS}.base")
    deepep: Any = importlib.import_module(f"{_DISPATCHERS}.deepep")
    utils: Any = importlib.import_module(_UTILS)
    attention: Any = importlib.import_module("sglang.srt.layers.dp_attention")
    gemm: Any = importlib.import_module("sglang.srt.layers.deep_gemm_wrapper")
    recorder: Any = importlib.import_module("sglang.srt.eplb.expert_distribution")

    class VerbenaDispatcher(base.BaseDispatcher):  # type: ignore[misc]
        """A dispatcher for SGLang. Two batches that overlap in time use separate dispatchers. In decode, a dispatcher uses the format
        DEEPEP_LL, with rows grouped by expert. In prefill, a dispatcher uses DEEPEP_NORMAL, which returns only the received rows; for this
        purpose the call waits until the number of rows is known on the host. If SGLang asks for FP8, the dispatch casts rows to e4m3."""

        dispatch_mode: Any = None

        def __init__(self, mode: Any, small: ExpertExchange | None, large: ExpertExchange | None, runner_backend: Any) -> None:
            super().__init__()
            self.deepep_mode, self.runner_backend = mode, runner_backend
            self._small, self._large = small, large
            self._stage = _Stage.IDLE
            self._receive: Callable[[], Any] = _do_nothing
            self._sent: Dispatched | None = None
            self._exchange: ExpertExchange | None = None
            self.expert_mask_gpu = None
            self._dispatch_hooks = deepep.DeepEPPDispatchHooks()

        def register_deepep_dispatch_hook(self, hook: Any) -> Any:
            return self._dispatch_hooks.register_hook(hook)

        def dispatch(self, hidden_states: Any, topk_output: Any) -> Any:
            self.dispatch_a(hidden_states, topk_output)
            self._dispatch_hooks(self)
            return self.dispatch_b()

        def combine(self, combine_input: Any) -> Any:
            self.combine_a(combine_input)
            return self.combine_b()

        def _step(self, stage: _Stage, following: _Stage) -> None:
            if self._stage != stage:
                raise RuntimeError(f"{stage.value}() was called, but the next call must be {self._stage.value}()")
            self._stage = following

        def dispatch_a(self, hidden_states: Any, topk_output: Any) -> None:
            self._step(_Stage.IDLE, _Stage.SENT)
            mode = self.deepep_mode.resolve(attention.get_is_extend_in_batch())
            self.dispatch_mode = mode
            self._receive = (self._send_small if mode.is_low_latency() else self._send_large)(hidden_states, topk_output)

        def dispatch_b(self) -> Any:
            self._step(_Stage.SENT, _Stage.RECEIVED)
            receive, self._receive = self._receive, _do_nothing
            return receive()

        def _find_cast(self) -> str | None:
            """Returns the cast for the rows of this batch. Without DeepGEMM, SGLang's experts take BF16 in a prefill."""
            if not _is_cast(utils.get_deepep_output_dtype(self).value) or (self._exchange is self._large and not gemm.ENABLE_JIT_DEEPGEMM):
                return None
            return "fp8_block_exponent" if gemm.ENABLE_JIT_DEEPGEMM and gemm.DEEPGEMM_BLACKWELL else "fp8_block"

        def _send_small(self, x: Any, topk_output: Any) -> Callable[[], Any]:
            exchange = self._exchange = self._get(self._small)
            ids, weights = topk_output.topk_ids, topk_output.topk_weights.float()
            cast = self._find_cast()
            call = functools.partial(exchange.dispatch, x, ids, weights, cast=cast, grouping=Grouping.EXPERT, column_scales=cast is not None)
            sent = self._sent = call(phase=Phase.SEND)
            expected = (x.shape[0] * exchange.ranks * exchange.top_k + exchange.experts) // exchange.experts

            def receive() -> Any:
                call(phase=Phase.RECEIVE, out=sent)
                recorder.get_global_expert_distribution_recorder().on_deepep_dispatch_low_latency(sent.expert_counts)
                return deepep.DeepEPLLDispatchOutput(sent.rows, sent.scales, ids, weights, sent.expert_counts, expected)
            return receive

        def _send_large(self, x: Any, topk_output: Any) -> Callable[[], Any]:
            exchange = self._exchange = self._get(self._large)
            if x.shape[0] > exchange.max_tokens:
                raise ValueError(f"the batch has {x.shape[0]} tokens, but an exchange takes at most {exchange.max_tokens}. Lower "
                                 "--chunked-prefill-size")
            cast = self._find_cast()
            call = functools.partial(exchange.dispatch, x, topk_output.topk_ids, topk_output.topk_weights.float(), cast=cast)
            is_split = not isinstance(exchange, WindowExchange)
            sent = self._sent = call(phase=Phase.SEND if is_split else Phase.BOTH)

            def receive() -> Any:
                if is_split:
                    call(phase=Phase.RECEIVE, out=sent)
                return self._pack(exchange, sent)
            return receive

        def _pack(self, exchange: ExpertExchange, sent: Dispatched) -> Any:
            """Returns the received rows as one contiguous tensor. Waits until the number of rows is known, because SGLang needs this number
            on the host."""
            import torch
            self._places = places = (sent.sources.flatten() >= 0).nonzero().flatten()
            exchange.check_error()
            ids = sent.ids.flatten(0, 1)[places]
            local = exchange.experts // exchange.ranks
            counts = torch.bincount(ids.flatten() + 1, minlength=local + 1)[1:].tolist()
            alignment = _ALIGNMENT if gemm.ENABLE_JIT_DEEPGEMM else 1
            recorder.get_global_expert_distribution_recorder().on_deepep_dispatch_normal(
                counts, num_tokens_per_rank=None, num_tokens_per_rdma_rank=None, num_tokens_per_expert=None)
            return deepep.DeepEPNormalDispatchOutput(
                sent.rows.flatten(0, 1)[places], None if sent.scales is None else sent.scales.flatten(0, 1)[places], ids.long(),
                sent.weights.flatten(0, 1)[places], [-(-count // alignment) * alignment for count in counts])

        def combine_a(self, combine_input: Any) -> None:
            self._step(_Stage.RECEIVED, _Stage.SENT_BACK)
            exchange, sent = self._get(self._exchange), self._sent
            rows, order, is_split = combine_input[0], Order.ROWS, not isinstance(exchange, WindowExchange)
            if exchange is self._small:
                order = Order.REDUCED
            else:
                packed = rows
                rows = (exchange.make_rows(packed.dtype) if isinstance(exchange, WindowExchange)
                        else packed.new_zeros([exchange.ranks * exchange.max_tokens, exchange.hidden]))
                rows[self._places] = packed
                rows = rows.view(exchange.ranks, exchange.max_tokens, exchange.hidden)
            assert sent is not None
            call = functools.partial(exchange.combine, rows, sent, order)
            out = call(phase=Phase.SEND if is_split else Phase.BOTH)

            def receive() -> Any:
                return call(phase=Phase.RECEIVE, out=out) if is_split else out
            self._receive, self._sent = receive, None

        def combine_b(self) -> Any:
            self._step(_Stage.SENT_BACK, _Stage.IDLE)
            receive, self._receive = self._receive, _do_nothing
            return receive()

        def _get(self, exchange: ExpertExchange | None) -> ExpertExchange:
            if exchange is None:
                raise RuntimeError(f"--deepep-mode {self.deepep_mode.value} does not support this kind of batch. Set --deepep-mode auto")
            return exchange

    class VerbenaDispatchers(base.BaseDispatcher):  # type: ignore[misc]
        """The dispatchers of batches that overlap, with the interface of SGLang's MaybeTboDeepEPDispatcher."""

        def __init__(self, inners: list[VerbenaDispatcher]) -> None:
            super().__init__()
            self._inners, self.expert_mask_gpu = inners, None
            self.runner_backend = inners[0].runner_backend

        def _execute(self, name: str, tbo_subbatch_index: int | None = None, **named: Any) -> Any:
            return getattr(self._inners[tbo_subbatch_index or 0], name)(**named)

        def register_deepep_dispatch_hook(self, hook: Any) -> list[Any]:
            return [inner.register_deepep_dispatch_hook(hook) for inner in self._inners]

        def set_quant_config(self, quant_config: Any) -> None:
            super().set_quant_config(quant_config)
            for inner in self._inners:
                inner.set_quant_config(quant_config)

        dispatch = functools.partialmethod(_execute, "dispatch")
        dispatch_a = functools.partialmethod(_execute, "dispatch_a")
        dispatch_b = functools.partialmethod(_execute, "dispatch_b")
        combine = functools.partialmethod(_execute, "combine")
        combine_a = functools.partialmethod(_execute, "combine_a")
        combine_b = functools.partialmethod(_execute, "combine_b")

    return VerbenaDispatcher, VerbenaDispatchers


def _do_nothing() -> None:
    raise RuntimeError("nothing is in flight")

