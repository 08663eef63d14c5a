"""Decides which all-reduces of an engine are quantised, by the settings of Quick Reduce (AITER's and vLLM's) under Verbena's
names. Quantising trades accuracy for time (docs/inference.md). The order of decision is theirs: quantised if that is
allowed and faster, then the exact collectives, then the engine's own collective, such as NCCL."""
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

# AITER's own, by type and number of ranks: the least MiB for FP, FP8, INT6 and INT4, as measured on MI300.
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

    `regime`: FP (exact), FP8, INT6, INT4, or Verbena's INT8, MXFP8, FP8_INT8, INT4_INT8; NONE: nothing is quantised.
    `min_sizes`: the size from which tensors are quantised: "measured", by the tuning file or else the library's rules;
    "mi300", by AITER's table."""
    regime: str = "NONE"
    max_bytes: int = _DEFAULT_MAX_BYTES
    min_sizes: str = "measured"

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> "QuickReduce":
        """Reads the settings. Warns of invalid values, for which it takes the defaults, and of a cast, which has no effect
        here."""
        if settings.read_flag(_CAST, environment):
            warnings.warn(f"verbena: {_CAST}: no effect: bfloat16 is quantised directly, which is as fast as float16 and does not "
                          "overflow", stacklevel=2)
        most = settings.read(_MAX_MB, environment)
        if not most.isdigit():
            warnings.warn(f"verbena: {_MAX_MB}={most}: a number of MiB is needed, or 0 for 2048", stacklevel=2)
            most = "0"
        return cls(settings.read_choice("VERBENA_QUICK_REDUCE_QUANTIZATION", environment), int(most) * _MI or _DEFAULT_MAX_BYTES,
                   settings.read_choice("VERBENA_QUICK_REDUCE_MIN_SIZES", environment))

    def find_codec(self, dtype: str, bytes_: int, ranks: int) -> tuple[str, bool] | None:
        """Returns the codec for a tensor, and whether to use it regardless of measurements; None: the exact all-reduce.
        `dtype` without "torch."."""
        if self.regime in ("NONE", _EXACT) or dtype not in ("float16", "bfloat16") or bytes_ > self.max_bytes:
            return None
        if self.min_sizes == "measured":
            return self.regime.lower(), False
        row = MI300_MIN_MB.get((dtype, ranks))
        if row is None or self.regime not in _MI300_REGIMES:
            return None
        return (self.regime.lower(), True) if bytes_ >= row[_MI300_REGIMES.index(self.regime)] * _MI else None
