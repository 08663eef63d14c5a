"""Quantised all-reduces, RMSNorm, and all-reduces fused with RMSNorm."""
import ctypes
import dataclasses
import enum
from typing import Any

from verbena.native import OpsMoeFinalize, OpsNorm
from verbena.ops.calls import Algorithm, Choice, OpsPart, expect_like, need_type, pack_choice
from verbena.streams import stream_of

CODECS = {"fp8": Algorithm.FP8, "int8": Algorithm.INT8, "int6": Algorithm.INT6, "int4": Algorithm.INT4,
          "mxfp8": Algorithm.MXFP8, "fp8_int8": Algorithm.FP8_INT8, "int4_int8": Algorithm.INT4_INT8}


class Quantisation(enum.IntEnum):
    """The format of quantised rows. Each element is one byte. FP8_TENSOR has one scale for the whole tensor, TOKEN formats have one scale
    per row, and BLOCK and MXFP8 formats have one scale per block of a row. A block has 128 elements, or 32 elements in MXFP8 formats."""
    NONE = 0
    FP8_TENSOR = 1
    FP8_TOKEN = 2
    FP8_BLOCK = 3
    FP8_BLOCK_POWER = 4
    FP8_BLOCK_EXPONENT = 5
    MXFP8 = 6
    MXFP8_SWIZZLED = 7
    INT8_TOKEN = 8


@dataclasses.dataclass(frozen=True)
class Normed:
    """The result of a norm.

    Attributes:
        output: the normalised rows, in the input's shape and type; None if Norm.has_output is False.
        residual: the sum of input and residual, in the input's shape and type.
        quantised: the quantised rows, one byte per element; None without quantisation.
        scales: the scales of `quantised`; None without quantisation.
        sum: the sum of all ranks' tensors (after a reduce-scatter, only this rank's share of the rows); None without an all-reduce, or if
            `output` has overwritten the sum.
    """
    output: Any = None
    residual: Any = None
    quantised: Any = None
    scales: Any = None
    sum: Any = None


@dataclasses.dataclass(frozen=True)
class Norm:
    """The parameters of an RMSNorm: h = x + residual; output = h / sqrt(mean(h^2) + epsilon) * (weight + weight_offset).

    Attributes:
        weight: [hidden], contiguous, of the rows' type; None if all weights are 1.
        epsilon: added to the mean of the squares.
        weight_offset: added to each element of the weight, such as 1 for Gemma.
        rounds_sum: True to round h to the tensor's type before squaring it, as vLLM's and FlashInfer's kernels do.
        rounds_normed: True to round h / sqrt(...) before multiplying it by the weight, as vLLM's kernels do.
        quantisation: the format of quantised rows; NONE for no quantised rows.
        scale: for FP8_TENSOR: the scale, which is one float32 in GPU memory.
        scale_layout: for FP8_BLOCK and FP8_BLOCK_POWER: "rows", "columns", or "tma" (columns padded to a multiple of 4).
        min_scale: lower bound of the scales that the kernel computes.
        padding: number of columns of zeros after each row of the output and of the quantised rows.
        has_output: False to compute the quantised rows only.
    """
    weight: Any
    epsilon: float = 1e-6
    weight_offset: float = 0.0
    rounds_sum: bool = False
    rounds_normed: bool = False
    quantisation: Quantisation = Quantisation.NONE
    scale: Any = None
    scale_layout: str = "rows"
    min_scale: float = 1e-10
    padding: int = 0
    has_output: bool = True


class FusedCalls(OpsPart):
    """Quantised and fused calls of verbena.ops.Communicator."""

    def all_reduce_quantised(self, tensor: Any, codec: str, *, seed: int = 0, out: Any = None, choice: Choice | None = None) -> Any:
        """Sums the ranks' tensors with quantised messages, and returns the sum. For tensors that all_reduce() sums faster, uses
        all_reduce(), which is exact. All ranks get the same bits.

        Args:
            tensor: a tensor of any shape; shape and type are the same on all ranks.
            codec: "fp8", "int8", "int6", "int4", "mxfp8", "fp8_int8" or "int4_int8".
            seed: 0 to round to nearest; any other value seeds stochastic rounding.
            out: the tensor that receives the sum; may be `tensor` itself. None for a new tensor.
            choice: the algorithm; None to let the library choose.
        """
        tensor = tensor.contiguous()
        out = tensor.new_empty(tensor.shape) if out is None else expect_like(out, tensor.shape, tensor.dtype)
        self._call("ops_all_reduce_quantised", tensor, out, tensor.numel(), need_type(tensor), find_codec(codec), seed,
                   choice=choice)
        return out

    def choose_quantised(self, tensor: Any, codec: str) -> Choice:
        """Returns the algorithm that all_reduce_quantised() would use for the tensor."""
        return self._choose("ops_choose_quantised", find_codec(codec), tensor.numel() * tensor.element_size())

    def rms_norm(self, x: Any, norm: Norm, residual: Any = None, *, residual_out: Any = None) -> Normed:
        """Normalises rows along the last dimension, on this rank alone, without communication.

        Args:
            x: rows [..., hidden]; each row is contiguous.
            norm: the parameters of the norm.
            residual: a tensor of x's size and type that is added to x first; None to add nothing.
            residual_out: the tensor that receives x + residual; may be `residual` itself. None for a new tensor.
        """
        rows, result, packed = _prepare(x, norm, residual, residual_out)
        if rows.numel():
            self._launch("ops_norm_rows", (rows, result, norm, residual), rows.data_ptr(), rows.stride(0), need_type(rows),
                         ctypes.byref(packed), stream_of(rows))
        return result

    def all_reduce_rms_norm(self, tensor: Any, norm: Norm, residual: Any = None, *, residual_out: Any = None,
                            codec: str | None = None, choice: Choice | None = None) -> Normed:
        """Sums the ranks' tensors, then normalises the rows of the sum. The result has the same bits as all_reduce() followed by
        rms_norm(). For tensors up to 1 MiB, or up to 8 MiB between two ranks, one kernel computes the sum and the norm.

        Args:
            tensor: rows [..., hidden]; same shape and type on all ranks.
            norm: the parameters of the norm.
            residual: a tensor of the same size and type that is added to the sum; None to add nothing.
            residual_out: the tensor that receives sum + residual; may be `residual` itself. None for a new tensor.
            codec: quantises the messages, as in all_reduce_quantised(); None for the exact sum.
            choice: the algorithm; None to let the library choose.
        """
        rows, result, packed = _prepare(tensor.contiguous(), norm, residual, residual_out)
        return self._reduce_and_norm("ops_all_reduce_norm", rows.data_ptr(), rows, norm, result, packed, (residual,), codec, choice)

    def moe_finalize_all_reduce_rms_norm(self, expert_rows: Any, indices: Any, weights: Any, norm: Norm, residual: Any = None, *,
                                         shared: Any = None, residual_out: Any = None, codec: str | None = None,
                                         choice: Choice | None = None) -> Normed:
        """Adds the rows that this rank's experts have computed for each token, sums the result across all ranks, and normalises the rows
        of the sum, as all_reduce_rms_norm() does. One kernel does all of this where one kernel does all_reduce_rms_norm().

        Token t's row is `shared[t]` plus the sum over k of `weights[t][k] * expert_rows[indices[t][k]]`. The terms are added as float32 in
        the order of k, after the shared row; the row is rounded once.

        Args:
            expert_rows: [any number of rows, hidden]; each row is contiguous.
            indices: [tokens, top_k] int32, contiguous; a negative index adds nothing. The indices are not compared with the number of rows.
            weights: [tokens, top_k] float32, contiguous; None if all weights are 1.
            norm: the parameters of the norm.
            residual: [tokens, hidden], a tensor that is added to the sum; None to add nothing.
            shared: [tokens, hidden], such as the outputs of a shared expert; None to add nothing.
            residual_out: the tensor that receives sum + residual; may be `residual` itself. None for a new tensor.
            codec: quantises the messages, as in all_reduce_quantised(); None for the exact sum.
            choice: the algorithm; None to let the library choose.
        """
        hidden = expert_rows.shape[-1]
        tokens, top_k = indices.shape
        _expect_table("indices", indices, "int32", [tokens, top_k])
        if weights is not None:
            _expect_table("weights", weights, "float32", [tokens, top_k])
        if shared is not None and (list(shared.shape) != [tokens, hidden] or shared.dtype != expert_rows.dtype):
            raise ValueError(f"`shared` must have the shape {[tokens, hidden]} and the rows' type, {expert_rows.dtype}, but has "
                             f"{list(shared.shape)} and {shared.dtype}")
        experts = _as_rows(expert_rows, hidden)
        others = None if shared is None else _as_rows(shared, hidden)
        finalize = OpsMoeFinalize(experts.data_ptr(), experts.stride(0), indices.data_ptr(), _address(weights), top_k, _address(others),
                                  0 if others is None else others.stride(0))
        rows, result, packed = _prepare(expert_rows.new_empty([tokens, hidden]), norm, residual, residual_out)
        return self._reduce_and_norm("ops_moe_finalize_all_reduce_norm", ctypes.byref(finalize), rows, norm, result, packed,
                                     (residual, experts, indices, weights, others), codec, choice)

    def _reduce_and_norm(self, call: str, source: Any, rows: Any, norm: Norm, result: Normed, packed: OpsNorm, used: tuple[Any, ...],
                         codec: str | None, choice: Choice | None) -> Normed:
        if rows.numel():
            in_output = result.output is not None and norm.padding == 0
            total = result.output if in_output else rows.new_empty(rows.shape)
            self._launch(call, (rows, total, result, norm, *used), source, total.data_ptr(), need_type(rows), ctypes.byref(packed),
                         Algorithm.AUTO if codec is None else find_codec(codec), pack_choice(choice), stream_of(rows))
            if not in_output:
                return dataclasses.replace(result, sum=total)
        return result

    def fused_allreduce_rmsnorm(self, input_: Any, residual: Any, weight: Any, eps: float) -> tuple[Any, Any]:
        """Calls all_reduce_rms_norm() with the arguments that AITER, SGLang and verbena.distributed use, and returns (normalised rows, sum
        + residual). sum + residual is rounded before it is squared."""
        normed = self.all_reduce_rms_norm(input_, Norm(weight, eps, rounds_sum=True), residual)
        return normed.output, normed.residual

    def reduce_scatter_rms_norm_all_gather(self, tensor: Any, norm: Norm, residual: Any = None, *, residual_out: Any = None,
                                           choice: Choice | None = None) -> Normed:
        """Computes the same results as all_reduce_rms_norm(), but each rank normalises only its share of the rows. Rank r's share consists
        of the rows [r * s, (r + 1) * s), where s is rows / ranks, rounded up. All ranks get the output, the quantised rows and the scales
        of all rows. `residual` and the result's residual have only the rows of this rank's share."""
        rows = tensor.contiguous().view(-1, tensor.shape[-1])
        share = -(-rows.shape[0] // self.size)
        first = min(self.rank * share, rows.shape[0])
        count = min(share, rows.shape[0] - first)
        rows, result, packed = _prepare(rows, norm, residual, residual_out, shape=tensor.shape, residual_rows=count)
        if rows.numel():
            total = rows.new_empty((max(count, 1), rows.shape[1]))
            self._launch("ops_reduce_scatter_norm_all_gather", (rows, total, result, norm, residual), rows.data_ptr(), total.data_ptr(),
                         need_type(rows), ctypes.byref(packed), pack_choice(choice), stream_of(rows))
            return dataclasses.replace(result, sum=total)
        return result


def make_normed(x: Any, norm: Norm) -> Normed:
    """Returns empty tensors for the result of a norm of x."""
    return _prepare(x, norm, None, None)[1]


def find_fp8() -> Any:
    """Returns torch.float8_e4m3fn, or torch.uint8 if PyTorch is too old to have this type."""
    import torch
    return getattr(torch, "float8_e4m3fn", torch.uint8)


def find_codec(name: str) -> Algorithm:
    if name not in CODECS:
        raise ValueError(f"unknown codec {name!r}; the codecs are {', '.join(CODECS)}")
    return CODECS[name]


def _as_rows(tensor: Any, hidden: int) -> Any:
    if tensor.shape[-1] != hidden or (tensor.dim() > 1 and tensor.stride(-1) != 1):
        raise ValueError(f"the tensor must have contiguous rows of {hidden} elements; its shape is {list(tensor.shape)}")
    return tensor.view(-1, hidden) if tensor.dim() != 2 else tensor


def _expect_table(name: str, table: Any, dtype: str, shape: list[int]) -> None:
    if str(table.dtype) != f"torch.{dtype}" or list(table.shape) != shape or not table.is_contiguous():
        raise ValueError(f"`{name}` must be a contiguous {dtype} tensor of the shape {shape}, but is {table.dtype} with the shape "
                         f"{list(table.shape)}")


def _prepare(x: Any, norm: Norm, residual: Any, residual_out: Any, *, shape: Any = None,
             residual_rows: int | None = None) -> tuple[Any, Normed, OpsNorm]:
    """Checks the arguments. Returns the rows, empty tensors for the result, and the argument of the C function."""
    hidden = x.shape[-1]
    rows = _as_rows(x, hidden)
    count = rows.shape[0]
    kind = Quantisation(norm.quantisation)
    weight = norm.weight
    if weight is not None and (list(weight.shape) != [hidden] or weight.dtype != x.dtype or not weight.is_contiguous()):
        raise ValueError(f"the weight must be a contiguous tensor of {hidden} elements of the rows' type, {x.dtype}")
    wanted = count if residual_rows is None else residual_rows
    full = list(x.shape if shape is None else shape)
    residual_shape = full if residual_rows is None else [wanted, hidden]
    if residual is not None and (residual.numel() != wanted * hidden or residual.dtype != x.dtype):
        raise ValueError(f"the residual must have the shape {residual_shape} and the rows' type, {x.dtype}, but has "
                         f"{list(residual.shape)} and {residual.dtype}")
    if residual_out is None:
        residual_out = x.new_empty(residual_shape)
    elif residual_out.numel() != wanted * hidden or residual_out.dtype != x.dtype:
        raise ValueError(f"residual_out must have the shape {residual_shape} and the rows' type, {x.dtype}, but has "
                         f"{list(residual_out.shape)} and {residual_out.dtype}")
    width = hidden + norm.padding
    has_output = norm.has_output or kind == Quantisation.NONE
    output = x.new_zeros([*full[:-1], width]) if has_output and norm.padding else x.new_empty(full) if has_output else None
    quantised, scales, row_stride, block_stride = _make_quantised(x, kind, norm, count, hidden, [*full[:-1], width])
    packed = OpsNorm()
    packed.rows, packed.hidden = count, hidden
    packed.weight = _address(weight)
    packed.epsilon, packed.weight_offset = norm.epsilon, norm.weight_offset
    packed.rounds_sum, packed.rounds_normed = norm.rounds_sum, norm.rounds_normed
    packed.residual_in, packed.residual_out, packed.output = _address(residual), _address(residual_out), _address(output)
    packed.residual_in_stride = hidden if residual is None else _as_rows(residual, hidden).stride(0)
    packed.residual_out_stride = _as_rows(residual_out, hidden).stride(0)
    packed.output_stride = packed.quantised_stride = width
    packed.padding = norm.padding
    packed.quantisation = kind
    packed.quantised, packed.scales = _address(quantised), _address(scales)
    packed.scale_row_stride, packed.scale_block_stride = row_stride, block_stride
    packed.min_scale = norm.min_scale
    return rows, Normed(output, residual_out, quantised, scales), packed


def _make_quantised(x: Any, kind: Quantisation, norm: Norm, rows: int, hidden: int, shape: list[int]) -> tuple[Any, Any, int, int]:
    """Returns empty quantised rows and scales, and the strides between the scales of successive rows and of successive blocks."""
    if kind == Quantisation.NONE:
        return None, None, 0, 0
    import torch
    numbers = x.new_empty(shape, dtype=torch.int8 if kind == Quantisation.INT8_TOKEN else find_fp8())
    if kind == Quantisation.FP8_TENSOR:
        if norm.scale is None or norm.scale.dtype != torch.float32:
            raise ValueError("Quantisation.FP8_TENSOR needs Norm.scale, a float32 tensor in GPU memory")
        return numbers, norm.scale, 0, 0
    if kind in (Quantisation.FP8_TOKEN, Quantisation.INT8_TOKEN):
        return numbers, x.new_empty((rows, 1), dtype=torch.float32), 1, 1
    if kind == Quantisation.MXFP8_SWIZZLED:
        tiles = -(-rows // 128) * -(-hidden // 128)
        return numbers, x.new_empty(tiles * 512, dtype=torch.uint8), 0, 0
    if kind == Quantisation.MXFP8:
        blocks = -(-hidden // 32)
        return numbers, x.new_empty((rows, blocks), dtype=torch.uint8), blocks, 1
    blocks, dtype, layout = -(-hidden // 128), torch.float32, norm.scale_layout
    if kind == Quantisation.FP8_BLOCK_EXPONENT:
        blocks, dtype, layout = -(-blocks // 4), torch.int32, "tma"
    if layout == "rows":
        return numbers, x.new_empty((rows, blocks), dtype=dtype), blocks, 1
    if layout not in ("columns", "tma"):
        raise ValueError(f"unknown layout of scales {layout!r}; the layouts are rows, columns, tma")
    step = rows if layout == "columns" else -(-rows // 4) * 4
    # The last column has no padding.
    memory = x.new_empty(max((blocks - 1) * step + rows, 0), dtype=dtype)
    return numbers, torch.as_strided(memory, (rows, blocks), (1, step)), 1, step


def _address(tensor: Any) -> int | None:
    return None if tensor is None else tensor.data_ptr()
