"""The GPU of every rank of a run, and which ranks NCCL connects.

Every rank reports once, before the world is joined, where it computes, and the id of its GPU if its PyTorch has NCCL.
All ranks read the same table, so that both ends of a message and all members of a sum choose alike.

Left out: NCCL (``over_nccl.py``).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class GpuTable:
    """Where the ranks of a run compute; empty where none computes on a GPU.

    Attributes:
        kinds: Of device, by rank: ``"cpu"`` or ``"cuda"``.
        ids: Of the GPU, by rank; "" for a rank without one or without NCCL.
    """

    kinds: tuple[str, ...] = ()
    ids: tuple[str, ...] = ()

    def connects(self, ranks: Sequence[int]) -> bool:
        """Return whether NCCL connects some ranks: each has a GPU that none of the others has."""
        ids = {self.ids[rank] for rank in ranks} if self.ids else {""}
        return "" not in ids and len(ids) == len(ranks)

    def host_copies(self, ranks: Sequence[int]) -> str:
        """Return why some of the tensors between ranks pass through the CPU's memory; "" where no GPU's do."""
        by_id: dict[str, list[int]] = {}
        without: dict[str, list[int]] = {}
        for rank in ranks if "cuda" in self.kinds else ():
            of_kind = by_id if self.ids[rank] else without
            of_kind.setdefault(self.ids[rank] or self.kinds[rank], []).append(rank)
        reasons = [
            f"between {_ranks(found)}, which share a GPU (NCCL refuses that)" for found in by_id.values() if found[1:]
        ]
        reasons += [
            f"from and to {_ranks(found)} {'on the CPU' if kind == 'cpu' else 'without NCCL in PyTorch'}"
            for kind, found in sorted(without.items())
        ]
        return "; ".join(reasons)


NO_GPUS = GpuTable()


def gpu_table(said: Sequence[Mapping[str, Any]]) -> GpuTable:
    """Return the table of what each rank says of itself, rank by rank: its ``device``, and the id of its ``gpu``."""
    kinds = tuple(str(said_by.get("device")).partition(":")[0] for said_by in said)
    return GpuTable(kinds, tuple(str(said_by.get("gpu", "")) for said_by in said)) if "cuda" in kinds else NO_GPUS


def _ranks(ranks: Sequence[int]) -> str:
    *others, last = map(str, ranks)
    return f"ranks {', '.join(others)} and {last}" if others else f"rank {last}"
