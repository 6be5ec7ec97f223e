"""Which servers hold which shard, where every shard has copies.

Every shard has a first holder, the server of its number, and copies on other servers. What is dealt for two copies and
four servers on two machines::

    machine   a   a   b   b
    server    0   1   2   3
    first     0   1   2   3        shards
    copy      2   3   0   1        of the other machine

Pushes go to every holder, rows come from the first one that lives. Holders say nothing to each other, and none leads:
in the synchronous mode a shard is a function of its first rows and of what workers push, which every holder sums in the
order of their ranks, so copies have the same bits at every step. Whoever is asked for rows, for a norm or for a
checkpoint waits until it has all pushes up to the step that was named; so an answer is right whoever gives it, and a
server that is cut off from some workers gives none. With a staleness every holder applies pushes in the order in which
they reach it: each push once, in copies that may differ as two such runs do.

Left out: how workers find out that a server is gone (``holders_link.py``), and a new copy for one that died: the run
goes on without until it is started anew.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Copies:
    """Who holds what.

    Attributes:
        holders: By shard the ranks that hold it; the first that lives answers.
    """

    holders: tuple[tuple[int, ...], ...]

    @property
    def count(self) -> int:
        """Return how many holders a shard has."""
        return len(self.holders[0])

    def shards_of(self, rank: int) -> list[int]:
        """Return the shards that a rank holds."""
        return [shard for shard, ranks in enumerate(self.holders) if rank in ranks]

    def heirs(self, rank: int, lost: Collection[int]) -> tuple[int, ...]:
        """Return who answers where a rank is gone beside others that were lost; none where a shard has nobody left."""
        found = list[int]()
        for shard in self.shards_of(rank):
            living = [one for one in self.holders[shard] if one != rank and one not in lost]
            if not living:
                return ()
            found.append(living[0])
        return tuple(dict.fromkeys(found))


def deal_copies(ranks: Sequence[int], count: int, machines: Sequence[object]) -> Copies:
    """Return who holds what: copies on other machines as far as there are any, and evenly.

    Args:
        ranks: Of the servers.
        count: Holders of every shard, as many as servers at most.
        machines: Of every server.
    """
    held = dict.fromkeys(ranks, 1)
    holders = [[rank] for rank in ranks]
    machine_of = dict(zip(ranks, machines, strict=True))
    for _ in range(count - 1):
        for place, mine in enumerate(holders):
            there = {machine_of[rank] for rank in mine}
            following = [*ranks[place + 1 :], *ranks[:place]]
            others = [rank for rank in following if rank not in mine]
            chosen = min(others, key=lambda rank: (machine_of[rank] in there, held[rank]))
            held[chosen] += 1
            mine.append(chosen)
    return Copies(tuple(map(tuple, holders)))
