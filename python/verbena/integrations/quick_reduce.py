"""Decides which all-reduces of an engine are quantised. The settings are the settings of Quick Reduce in AITER and vLLM, under Verbena's
names. Quantising makes sums faster and less accurate (docs/inference.md). As in Quick Reduce, the first choice is the quantised all-reduce
if it is allowed and faster, then the exact all-reduce, then the engine's own collective, such as NCCL."""
import dataclasses
import os
import warnings
from collections.abc import Mapping

from verbena import settings

_MAX_MB = "VERBENA_QUICK_REDUCE_MAX_SIZE_BYTES_MB"
_CAST = "VERBENA_QUICK_REDUCE_CAST_BF16_TO_FP16"
_MI = 1 << 20
_DEFAULT_MAX_BYTES = 2 << 30
_EXACT = "FP"

# AITER's table, measured on MI300: minimum size of a tensor in MiB for FP, FP8, INT6 and INT4, by type and number of ranks.
MI300_MIN_MB = {
    ("float16", 2): (1, 2, 2, 1),
    ("float16", 4): (1, 16, 4, 2),
    ("float16", 8): (16, 4, 4, 8),
    ("bfloat16", 2): (2, 8, 8, 8),
    ("bfloat16", 4): (8, 64, 64, 16),
    ("bfloat16", 8): (16, 2048, 2048, 2048),
}
_MI300_REGIMES = (_EXACT, "FP8", "INT6", "INT4")


@dataclasses.dataclass(frozen=True)
class QuickReduce:
    """Settings of quantised all-reduces.

    Attributes:
        regime: AITER's FP (exact), FP8, INT6 or INT4; Verbena's INT8, MXFP8, FP8_INT8 or INT4_INT8; NONE to quantise nothing.
        min_sizes: the source of the minimum size of quantised tensors: "measured" (the tuning file or, without a tuning file, the library's
            rules) or "mi300" (AITER's table).
    """
    regime: str = "NONE"
    max_bytes: int = _DEFAULT_MAX_BYTES
    min_sizes: str = "measured"

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> "QuickReduce":
        """Reads the settings. If a value is invalid, warns and uses the default. Also warns if the cast to float16 is set, because this
        setting has no effect."""
        if settings.read_flag(_CAST, environment):
            warnings.warn(f"verbena: {_CAST} has no effect, because bfloat16 is quantised directly. Quantised bfloat16 is as fast as "
                          "quantised float16, and does not overflow", stacklevel=2)
        most = settings.read(_MAX_MB, environment)
        if not most.isdigit():
            warnings.warn(f"verbena: {_MAX_MB}={most} is not a size in MiB. The default, 2048 MiB, is used instead", stacklevel=2)
            most = "0"
        return cls(settings.read_choice("VERBENA_QUICK_REDUCE_QUANTIZATION", environment), int(most) * _MI or _DEFAULT_MAX_BYTES,
                   settings.read_choice("VERBENA_QUICK_REDUCE_MIN_SIZES", environment))

    def find_codec(self, dtype: str, bytes_: int, ranks: int) -> tuple[str, bool] | None:
        """Returns (codec, whether to use this codec regardless of measurements), or None for the exact all-reduce. `dtype` is the type's
        name without "torch."."""
        if self.regime in ("NONE", _EXACT) or dtype not in ("float16", "bfloat16") or bytes_ > self.max_bytes:
            return None
        if self.min_sizes == "measured":
            return self.regime.lower(), False
        row = MI300_MIN_MB.get((dtype, ranks))
        if row is None or self.regime not in _MI300_REGIMES:
            return None
        return (self.regime.lower(), True) if bytes_ >= row[_MI300_REGIMES.index(self.regime)] * _MI else None
