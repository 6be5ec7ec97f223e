"""What reaches a process from others: PyTorch's own all-reduce between hosts, with nothing else on their links.

Each host runs this file as one rank: ``python link_rounds.py RANK RANKS INTERFACE FIRST_ADDRESS``. The first prints
bytes per second, what is left when the time of a short message is taken from that of a long one.
"""

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from statistics import median
from typing import Protocol

_SHORT, _LONG = 1 << 14, 1 << 20
_PORT = 29_777
_ROUNDS = 5
_PATIENCE_S = 60


class Host(Protocol):
    """Where a rank runs."""

    @property
    def address(self) -> str:
        """As the others reach it."""
        ...

    def words(self, *command: str) -> list[str]:
        """Return what runs a command there."""
        ...


def reached_bytes_per_s(hosts: Sequence[Host], environment: dict[str, str], interface: str = "eth0") -> float:
    """Return what every host's messages to the others reach over an interface of theirs while all send.

    Raises:
        SystemExit: where a rank fails.
    """
    started = [
        subprocess.Popen(
            host.words(sys.executable, __file__, str(rank), str(len(hosts)), interface, hosts[0].address),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**environment, "PYTHONPATH": str(Path(__file__).parent)},
        )
        for rank, host in enumerate(hosts)
    ]
    said = [process.communicate(timeout=2 * _PATIENCE_S) for process in started]
    if any(process.returncode for process in started):
        raise SystemExit("\n".join(error for _, error in said))
    return float(said[0][0])


def main() -> None:
    """Be a rank."""
    import torch  # noqa: PLC0415 - in the ranks alone
    import torch.distributed as dist  # noqa: PLC0415

    rank, ranks, interface, first = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4]
    os.environ["GLOO_SOCKET_IFNAME"] = interface
    torch.set_num_threads(1)
    address = f"tcp://{first}:{_PORT}"
    patience = timedelta(seconds=_PATIENCE_S)
    dist.init_process_group("gloo", init_method=address, rank=rank, world_size=ranks, timeout=patience)

    def round_s(elements: int) -> float:
        tensor, times_s = torch.zeros(elements), []
        for _ in range(_ROUNDS):
            dist.barrier()
            began_s = time.perf_counter()
            dist.all_reduce(tensor)
            times_s.append(time.perf_counter() - began_s)
        return median(times_s)

    round_s(_SHORT)
    spent_s = round_s(_LONG) - round_s(_SHORT)
    if rank == 0:
        print(2 * (ranks - 1) / ranks * (_LONG - _SHORT) * 4 / spent_s)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
