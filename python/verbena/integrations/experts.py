"""Exchanges (verbena.moe.ExpertExchange) for inference engines. All layers of a model share the exchanges."""
import warnings
from collections.abc import Callable
from typing import Any

from verbena.communicators import ProcessGroupCommunicator
from verbena.context import SymmetricContext
from verbena.integrations.engine import set_time_limit, switch_on_if_asked
from verbena.integrations.hosts import find_hosts
from verbena.moe import ExpertExchange

SWITCH = "USE_VERBENA_MOE"
# The result of a dispatch has as many rows as all ranks may send. To keep results small, a call uses the smallest exchange that is large
# enough for the batches of all ranks. These sizes are used besides the largest size, if the largest size is more than twice as large.
SMALL_TOKENS = (128, 512, 2048)
BLOCKS = 0  # maximum number of blocks of a kernel; 0 for as many as fit on the GPU


def switch_on_experts_if_asked(engine: str, switch_on: Callable[[], None]) -> None:
    """Calls switch_on() if USE_VERBENA_MOE is 1. Entry points call this function."""
    switch_on_if_asked(engine, switch_on, SWITCH, "dispatch and combine for experts")


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
        except BaseException:
            self._context.close()
            raise
        self._made: dict[Any, list[ExpertExchange]] = {}

    def get(self, count: int = 1, **options: Any) -> list[ExpertExchange]:
        """Returns `count` exchanges with these options. Batches that overlap in time use different exchanges."""
        key = tuple(sorted(options.items()))
        made = self._made.setdefault(key, [])
        while len(made) < count:
            made.append(ExpertExchange(self._context, blocks=BLOCKS, **options))
        return made[:count]

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
    """Returns the sizes of the exchanges that serve batches of up to `max_tokens` tokens of each of `ranks` ranks."""
    limit = ExpertExchange.find_max_tokens(ranks)
    if not 1 <= max_tokens <= limit:
        raise ValueError(f"a batch may have up to {max_tokens} tokens per rank, but an exchange takes at most {limit}")
    return [*(size for size in SMALL_TOKENS if 2 * size < max_tokens), max_tokens]

