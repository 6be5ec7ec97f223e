"""Processes that others have started."""

from pathlib import Path


def children(process: int) -> list[int]:
    """Return the processes that one has started, the oldest first."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(stat.read_text().rpartition(")")[2].split()[1])
        except OSError:  # it has left
            continue
        if parent == process:
            found.append(int(stat.parent.name))
    return sorted(found)


def ranks_of(launcher: int) -> list[int]:
    """Return the ranks of a run: what the server has forked that its launcher has started."""
    (server,) = children(launcher)
    return children(server)
