"""What stages pay to talk where every pair of types has a link of its own.

A value is received over the link between its reader's type and its producer's, once by every stage that reads it, and
sent once, over the slowest of the links to the stages that receive it::

    stage      | producer |  ...  | reader, reader |   | reader |
    leaves       a value at the end of its producer's stage, where it is looked up among those that cross the position
    enters                        once                   once

Only values that leave their stage are looked at, so that few stages cost little however many layers they have.

Left out: types whose links are all alike, where bytes are enough (``segments.py``).
"""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from .problem import Floats, Ints, Problem


@dataclass(frozen=True, slots=True, eq=False)
class LinkTraffic:
    """The values that cross each position of a problem, who reads them behind it, and the links.

    Attributes:
        per_byte, latency_s: [T, T], of the links.
        starts: [L + 2], where the values of a position begin among the entries.
        producer: [C], of an entry's value.
        size_bytes: [C], above 0.
        low, high: [C], the readers at or behind the position, among all readers.
        reader: [R], all readers of all values.
        before: [R], the reader of the same value before, or the value's producer.
    """

    per_byte: Floats
    latency_s: Floats
    starts: Ints
    producer: Ints
    size_bytes: Floats
    low: Ints
    high: Ints
    reader: Ints
    before: Ints

    def seconds(self, placement: Ints, first: Ints, end: Ints, types: Ints) -> Floats:
        """Return [N], what stages pay to receive and to send.

        Args:
            placement: [N], which placement a stage belongs to, ascending; each has all its stages, in order.
            first: [N], first layer.
            end: [N], the layer after the last one.
            types: [N].
        """
        count = len(first)
        sender, entry = _spread(self.starts[end], self.starts[end + 1])
        leaves = self.producer[entry] >= first[sender]
        sender, entry = sender[leaves], entry[leaves]
        if not len(entry):
            return np.zeros(count)
        group, read = _spread(self.low[entry], self.high[entry])
        away, reader = sender[group], self.reader[read]
        key = placement * (len(self.starts) - 2)
        receiver = np.searchsorted(key + first, key[away] + reader, side="right") - 1
        enters = self.before[read] < first[receiver]
        there, back = (types[away], types[receiver]), (types[receiver], types[away])
        begins = np.flatnonzero(np.append(True, group[1:] != group[:-1]))
        size_bytes = self.size_bytes[entry]
        received_s = np.bincount(receiver, np.where(enters, size_bytes[group] * self.per_byte[back], 0.0), count)
        sent_s = np.bincount(sender, size_bytes * np.maximum.reduceat(self.per_byte[there], begins), count)
        once_s = np.zeros((2, count))
        np.maximum.at(once_s[0], receiver, np.where(enters, self.latency_s[back], 0.0))
        np.maximum.at(once_s[1], sender, np.maximum.reduceat(self.latency_s[there], begins))
        return np.asarray(received_s + once_s[0] + (sent_s + once_s[1]), np.float64)


@lru_cache(maxsize=8)
def link_traffic(problem: Problem) -> LinkTraffic | None:
    """List the values that cross each position of a problem; None where no pair of types has a link of its own.

    Kept for the problems used last.
    """
    if problem.link_seconds_per_byte is None or problem.link_latency_s is None:
        return None
    readers, bounds = problem.edge_readers, problem.edge_starts
    positions, producers, sizes, lows, highs = [], [], [], [], []
    before = np.roll(readers, 1)
    for value, producer in enumerate(problem.edge_producer.tolist()):
        low, high = int(bounds[value]), int(bounds[value + 1])
        if low == high:
            continue
        before[low] = producer
        if problem.edge_bytes[value] > 0:
            crossed = np.arange(producer + 1, readers[high - 1] + 1)
            positions.append(crossed)
            lows.append(low + np.searchsorted(readers[low:high], crossed))
            producers.append(np.full(len(crossed), producer))
            sizes.append(np.full(len(crossed), problem.edge_bytes[value]))
            highs.append(np.full(len(crossed), high))
    none = [np.zeros(0, np.int64)]
    position = np.concatenate(positions or none)
    order = np.argsort(position, kind="stable")
    starts = np.searchsorted(position[order], np.arange(problem.layer_count + 2))
    producer, size_bytes, low_, high_ = (
        np.concatenate(part or none)[order] for part in (producers, sizes, lows, highs)
    )
    sizes_bytes = size_bytes.astype(np.float64)
    links = problem.link_seconds_per_byte, problem.link_latency_s
    return LinkTraffic(*links, starts, producer, sizes_bytes, low_, high_, readers, before)


def _spread(low: Ints, high: Ints) -> tuple[Ints, Ints]:
    """Return the numbers of all ranges low .. high - 1, and before them the range that each is of."""
    counts = high - low
    owner = np.repeat(np.arange(len(low)), counts)
    return owner, np.arange(len(owner)) - np.repeat(np.cumsum(counts) - counts - low, counts)
