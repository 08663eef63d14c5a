"""Exchanges (verbena.moe.ExpertExchange) for inference engines. All layers of a model share the exchanges."""
import math
import warnings
from collections.abc import Callable, Sequence
from typing import Any

from verbena.communicators import ProcessGroupCommunicator
from verbena.context import SymmetricContext
from verbena.integrations.engine import are_all_linked, set_time_limit, switch_on_if_asked
from verbena.integrations.hosts import find_hosts
from verbena.moe import Dispatched, ExpertExchange
from verbena.window import SymmetricWindow

SWITCH = "USE_VERBENA_MOE"
# The result of a dispatch has as many rows as all ranks may send. To keep results small, a call uses the smallest exchange that is large
# enough for the batches of all ranks. These sizes (max_tokens) are used besides the largest size, if the largest size is at least twice as
# large. Only the second list is used for exchanges that are not in windows, because each of these exchanges has a separate workspace.
SIZES = (128, 512, 1024, 2048, 4096, 8192)
WORKSPACE_SIZES = (128, 512, 2048)
# Exchanges for this number of tokens and more are in windows where possible: they share their memory, and long batches are faster.
WINDOW_TOKENS = 1024
BLOCKS = 0  # maximum number of blocks of a kernel; 0 for as many as fit on the GPU
_ALIGNMENT = 256  # of tensors in a window, in bytes


def switch_on_experts_if_asked(engine: str, switch_on: Callable[[], None]) -> None:
    """Calls switch_on() if USE_VERBENA_MOE is 1. Entry points call this function."""
    switch_on_if_asked(engine, switch_on, SWITCH, "dispatch and combine for experts")


class WindowExchange(ExpertExchange):
    """An exchange in windows. Its dispatches store their results in `memory`, which is in a window, and make_rows() returns memory of the
    same window for the experts' rows. The next dispatch of any exchange with the same `memory` overwrites both. Calls have one phase."""

    memory: Any = None  # uint8 [window_bytes or more]

    def __init__(self, context: SymmetricContext, *, max_scale_bytes: int = 0, **options: Any) -> None:
        super().__init__(context, max_scale_bytes=max_scale_bytes, in_windows=True, **options)
        slots = self.ranks * self.max_tokens
        sizes = slots * 2 * self.hidden, slots * max_scale_bytes, self._layout.bytes, slots * 2 * self.hidden
        self.window_bytes = sum(_align(size) for size in sizes)
        self._used = 0

    def make_dispatched(self, *arguments: Any, **named: Any) -> Dispatched:
        self._used = 0
        return super().make_dispatched(*arguments, **named)

    def _allocate(self, x: Any, shape: list[int], dtype: Any) -> Any:
        begin, length = self._used, math.prod(shape) * dtype.itemsize
        self._used += _align(length)
        return self.memory[begin:begin + length].view(dtype).view(shape)

    def make_rows(self, dtype: Any) -> Any:
        """Returns memory for the experts' rows, [ranks * max_tokens, hidden]. Always returns the same memory. `dtype` has 16 bits."""
        rows = self.ranks * self.max_tokens
        length = rows * 2 * self.hidden
        return self.memory[-_align(length):][:length].view(dtype).view(rows, self.hidden)


def _align(length_bytes: int) -> int:
    return -(-length_bytes // _ALIGNMENT) * _ALIGNMENT


def view_window(window: SymmetricWindow) -> Any:
    """Returns the window as a tensor of bytes on the current GPU."""
    import torch
    return torch.as_tensor(window, device="cuda")


class Exchanges:
    """The exchanges of a process group. Creates one set of exchanges for each shape. Creating a set is collective over the group."""

    def __init__(self, group: Any) -> None:
        """Creates an empty cache. `group` is a process group over gloo, whose all-gather goes through the host. Raises VerbenaError on all
        ranks if no exchange can connect the ranks."""
        set_time_limit()
        ranks = ProcessGroupCommunicator(group)
        self.rank, self.size = ranks.rank, ranks.size
        if self.size < 2:
            raise RuntimeError("all experts are on one rank, so no exchange is needed")
        self._context = SymmetricContext.from_all_gather(ranks.all_gather, ranks.rank, ranks.size)
        try:
            self.num_hosts = len(set(find_hosts(self._context)))
            # Ranks load from windows of other ranks, and loads over PCIe are slow.
            self.has_windows = self.num_hosts == 1 and are_all_linked(ranks)
        except BaseException:
            self._context.close()
            raise
        self._made: dict[Any, list[ExpertExchange]] = {}

    def get(self, count: int = 1, in_windows: bool = False, **options: Any) -> list[ExpertExchange]:
        """Returns `count` exchanges with these options. Batches that overlap in time use different exchanges."""
        kind = WindowExchange if in_windows else ExpertExchange
        made = self._made.setdefault((kind, *sorted(options.items())), [])
        while len(made) < count:
            made.append(kind(self._context, blocks=BLOCKS, **options))
        return made[:count]

    def get_sizes(self, sizes: Sequence[int], count: int = 1, in_windows: bool = True, **options: Any) -> list[list[ExpertExchange]]:
        """Returns `count` exchanges for each of the sizes (list_sizes()), or for fewer sizes to save memory, but always for the last size. If
        `in_windows` is True, exchanges for WINDOW_TOKENS and more are WindowExchanges where possible, and share a window. Then callers use
        only rows grouped by rank, and Order.ROWS."""
        can_share = in_windows and self.has_windows and count == 1  # batches that overlap need calls with two phases
        found = []
        for size in sizes:
            is_in_window = can_share and size >= WINDOW_TOKENS
            if is_in_window or size == sizes[-1] or (size in WORKSPACE_SIZES and 2 * size < sizes[-1]):
                found.append(self.get(count, is_in_window, max_tokens=size, **options))
        new = [one for made in found for one in made if isinstance(one, WindowExchange) and one.memory is None]
        if new:
            memory = view_window(self._context.allocate(max(one.window_bytes for one in new)))
            for one in new:
                one.memory = memory
        return found

    def close(self) -> None:
        """Frees the exchanges. No kernel of any rank may still be using the exchanges. Collective."""
        for made in self._made.values():
            for exchange in made:
                exchange.free()
        self._made.clear()
        self._context.close()


_exchanges: dict[Any, Exchanges | None] = {}


def find_exchanges(group: Any) -> Exchanges | None:
    """Returns the exchanges of a group. Returns None, with a warning, if exchanges cannot be created. The first call for a group is
    collective, and its result is the same on all ranks."""
    if group not in _exchanges:
        try:
            _exchanges[group] = Exchanges(group)
        except Exception as error:  # the engine can use its own implementation
            warnings.warn(f"verbena: the engine keeps its own dispatch and combine for experts: {error}", stacklevel=2)
            _exchanges[group] = None
    return _exchanges[group]


def close_exchanges() -> None:
    """Frees all exchanges. Collective. A process may also end without this call."""
    while _exchanges:
        found = _exchanges.popitem()[1]
        if found is not None:
            found.close()


def list_sizes(max_tokens: int, ranks: int) -> list[int]:
    """Returns the sizes of exchanges that serve batches of up to `max_tokens` tokens of each of `ranks` ranks, for get_sizes()."""
    limit = ExpertExchange.find_max_tokens(ranks)
    if not 1 <= max_tokens <= limit:
        raise ValueError(f"a batch may have up to {max_tokens} tokens per rank, but an exchange takes at most {limit}")
    return [*(size for size in SIZES if 2 * size <= max_tokens), max_tokens]

