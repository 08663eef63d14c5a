"""Finds out which ranks are on the same host."""
from verbena.context import SymmetricContext
from verbena.moe import ExpertExchange


def find_hosts(context: SymmetricContext) -> list[int]:
    """Returns the index of each rank's host. Hosts are numbered in the order of their first ranks. Collective.

    Creates an exchange as a test, and frees it. If no exchange can connect these ranks, raises VerbenaError, whose text has the remedy."""
    with ExpertExchange(context, experts=context.size, max_tokens=1, top_k=1, hidden=8, blocks=1):
        pass
    size, of_host = context.size, context.lsa.size
    team = context.split(context.world, 0, context.lsa.world_rank(0) * size + context.rank)
    assert team is not None
    with team:
        ranks = [team.world_rank(place) for place in range(size)]
    hosts = [0] * size
    for place, rank in enumerate(ranks):
        hosts[rank] = place // of_host
    return hosts
