"""Calls of a communicator that do more than move and sum: quantised all-reduces, RMSNorm, and both in one."""
import ctypes
import dataclasses
import enum
from typing import Any

from verbena.native import OpsNorm
from verbena.ops.calls import Algorithm, Choice, OpsPart, expect_like, need_type, pack_choice
from verbena.streams import stream_of

CODECS = {"fp8": Algorithm.FP8, "int8": Algorithm.INT8, "int6": Algorithm.INT6, "int4": Algorithm.INT4,
          "mxfp8": Algorithm.MXFP8, "fp8_int8": Algorithm.FP8_INT8, "int4_int8": Algorithm.INT4_INT8}


class Quantisation(enum.IntEnum):
    """How rows are quantised, to one byte an element. Kinds from FP8_BLOCK on have scales for blocks of a row."""
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
    """The result of a norm: `output` and `residual` in the input's shape; quantised rows and their scales if asked for;
    `sum`, the sum of all ranks' tensors, if it is separate from the output."""
    output: Any = None
    residual: Any = None
    quantised: Any = None
    scales: Any = None
    sum: Any = None


@dataclasses.dataclass(frozen=True)
class Norm:
    """RMSNorm: h = x + residual; output = h / sqrt(mean(h^2) + epsilon) * (weight + weight_offset).

    rounds_sum: h is rounded to the type before it is squared (as vLLM's and FlashInfer's kernels do). rounds_normed: h /
    sqrt(...) is rounded before it is multiplied by the weight (as vLLM's do). scale: for FP8_TENSOR, a float on the GPU.
    scale_layout: for FP8_BLOCK and FP8_BLOCK_POWER "rows", "columns", or "tma", columns of a multiple of 4. padding:
    columns of zeros after output and quantised rows."""
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
    has_output: bool = True  # beside quantised rows


class FusedCalls(OpsPart):
    """Quantised and fused calls of verbena.ops.Communicator."""

    def all_reduce_quantised(self, tensor: Any, codec: str, *, seed: int = 0, out: Any = None, choice: Choice | None = None) -> Any:
        """Sums the ranks' tensors with quantised messages. Uses the exact all_reduce() where that is faster. All ranks get
        the same bits.

        Args:
            codec: "fp8", "int8", "int6", "int4", "mxfp8", "fp8_int8" or "int4_int8".
            seed: 0: rounds to nearest; otherwise rounds stochastically.
        """
        tensor = tensor.contiguous()
        out = tensor.new_empty(tensor.shape) if out is None else expect_like(out, tensor.shape)
        self._call("ops_all_reduce_quantised", tensor, out, tensor.numel(), need_type(tensor), find_codec(codec), seed,
                   choice=choice)
        return out

    def choose_quantised(self, tensor: Any, codec: str) -> Choice:
        """Returns the algorithm that all_reduce_quantised() would use."""
        return self._choose("ops_choose_quantised", find_codec(codec), tensor.numel() * tensor.element_size())

    def rms_norm(self, x: Any, norm: Norm, residual: Any = None, *, residual_out: Any = None) -> Normed:
        """Normalises rows along the last dimension, on this rank alone. `residual_out` may be the residual."""
        rows, result, packed = _prepare(x, norm, residual, residual_out)
        if rows.numel():
            self._launch("ops_norm_rows", (rows, result, norm, residual), rows.data_ptr(), rows.stride(0), need_type(rows),
                         ctypes.byref(packed), stream_of(rows))
        return result

    def all_reduce_rms_norm(self, tensor: Any, norm: Norm, residual: Any = None, *, residual_out: Any = None,
                            codec: str | None = None, choice: Choice | None = None) -> Normed:
        """Sums the ranks' tensors and normalises the rows of the sum, with the same bits as all_reduce() and rms_norm(): in
        one kernel up to 1 MiB, or 8 MiB between two ranks. Without a residual the sum is the result's residual."""
        rows, result, packed = _prepare(tensor.contiguous(), norm, residual, residual_out)
        if rows.numel():
            in_output = result.output is not None and norm.padding == 0
            total = result.output if in_output else rows.new_empty(rows.shape)
            self._launch("ops_all_reduce_norm", (rows, total, result, norm, residual), rows.data_ptr(), total.data_ptr(), need_type(rows),
                         ctypes.byref(packed), Algorithm.AUTO if codec is None else find_codec(codec), pack_choice(choice), stream_of(rows))
            if not in_output:
                return dataclasses.replace(result, sum=total)
        return result

    def fused_allreduce_rmsnorm(self, input_: Any, residual: Any, weight: Any, eps: float) -> tuple[Any, Any]:
        """all_reduce_rms_norm() under the name and arguments of AITER, SGLang and verbena.distributed; returns (norm,
        residual). The residual's sum is rounded before it is squared."""
        normed = self.all_reduce_rms_norm(input_, Norm(weight, eps, rounds_sum=True), residual)
        return normed.output, normed.residual

    def reduce_scatter_rms_norm_all_gather(self, tensor: Any, norm: Norm, residual: Any = None, *, residual_out: Any = None,
                                           choice: Choice | None = None) -> Normed:
        """The same, but each rank normalises only its share of the rows: rows [rank * s, (rank + 1) * s), s = rows / ranks
        rounded up. All ranks get output, quantised rows and scales of all rows; the residual, and the result's, has only
        the rows of this rank's share."""
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
    """Returns PyTorch's type of e4m3, or bytes if PyTorch is too old to have it."""
    import torch
    return getattr(torch, "float8_e4m3fn", torch.uint8)


def find_codec(name: str) -> Algorithm:
    if name not in CODECS:
        raise ValueError(f"unknown codec {name!r}; the codecs are {', '.join(CODECS)}")
    return CODECS[name]


def _as_rows(tensor: Any, hidden: int) -> Any:
    if tensor.shape[-1] != hidden or (tensor.dim() > 1 and tensor.stride(-1) != 1):
        raise ValueError(f"contiguous rows of {hidden} elements are needed, not {list(tensor.shape)}")
    return tensor.view(-1, hidden) if tensor.dim() != 2 else tensor


def _prepare(x: Any, norm: Norm, residual: Any, residual_out: Any, *, shape: Any = None,
             residual_rows: int | None = None) -> tuple[Any, Normed, OpsNorm]:
    """The rows, what the call will fill, and its arguments."""
    hidden = x.shape[-1]
    rows = _as_rows(x, hidden)
    count = rows.shape[0]
    kind = Quantisation(norm.quantisation)
    weight = norm.weight
    if weight is not None and (list(weight.shape) != [hidden] or weight.dtype != x.dtype or not weight.is_contiguous()):
        raise ValueError(f"a weight of [{hidden}], of the rows' type, is needed")
    wanted = count if residual_rows is None else residual_rows
    full = list(x.shape if shape is None else shape)
    residual_shape = full if residual_rows is None else [wanted, hidden]
    if residual is not None and (residual.numel() != wanted * hidden or residual.dtype != x.dtype):
        raise ValueError(f"a residual of {residual_shape}, of the rows' type, is needed, not {list(residual.shape)}")
    if residual_out is None:
        residual_out = x.new_empty(residual_shape)
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
    """Returns empty quantised rows and scales, and the strides of scales from row to row and from block to block."""
    if kind == Quantisation.NONE:
        return None, None, 0, 0
    import torch
    numbers = x.new_empty(shape, dtype=torch.int8 if kind == Quantisation.INT8_TOKEN else find_fp8())
    if kind == Quantisation.FP8_TENSOR:
        if norm.scale is None or norm.scale.dtype != torch.float32:
            raise ValueError("FP8_TENSOR needs a scale: a float on the GPU")
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
    # No padding after the last column.
    memory = x.new_empty(max((blocks - 1) * step + rows, 0), dtype=dtype)
    return numbers, torch.as_strided(memory, (rows, blocks), (1, step)), 1, step


def _address(tensor: Any) -> int | None:
    return None if tensor is None else tensor.data_ptr()
