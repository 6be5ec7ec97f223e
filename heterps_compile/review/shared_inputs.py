"""What reviews read, each thing once: models, pools, profiles.

One value of it goes through the reviews of many plans. A model is read once for every batch and set of dimensions that
it is planned at; a caller that is done with one says so, so that twenty models need not be in memory at once.

Left out: models that are no files, which are read as they are given.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from heterps_compile.api import read_model
from heterps_compile.cluster.devices import Cluster
from heterps_compile.cluster.load import as_pool
from heterps_compile.cost.measured import Measurements, ProfileSpec, read_measurements
from heterps_compile.ir.graph import Graph
from heterps_compile.ir.laws import verify_graph
from heterps_compile.plan.provenance import hash_cluster
from heterps_compile.verification.divided import check_batch

_MOST_ELEMENTS = 64  # of values of inputs; a model with larger ones is read for each plan


class SharedInputs:
    """Models, pools and profiles by where they are read from."""

    def __init__(self) -> None:
        self._pools: dict[str, Cluster] = {}
        self._measured: dict[tuple[str, str], Measurements] = {}
        self._graphs: dict[str, dict[object, Graph]] = {}

    def pool(self, cluster: str | Path | Cluster) -> Cluster:
        """Return a pool.

        Raises:
            HeterpsError: as :func:`heterps_compile.cluster.load.load_cluster`.
        """
        if isinstance(cluster, Cluster):
            return cluster
        if str(cluster) not in self._pools:
            self._pools[str(cluster)] = as_pool(cluster)
        return self._pools[str(cluster)]

    def measurements(self, pool: Cluster, profile: ProfileSpec | None) -> Measurements | None:
        """Return measured times for a pool.

        Raises:
            HeterpsError: as :func:`heterps_compile.cost.measured.read_measurements`.
        """
        if profile is None:
            return None
        key = hash_cluster(pool), repr(profile)
        if key not in self._measured:
            self._measured[key] = read_measurements(pool, profile)
        return self._measured[key]

    def graph(self, model: Any, example_inputs: tuple[Any, ...] | Mapping[str, Any] = (), **reading: Any) -> Graph:
        """Return the graph of a model, whose laws it keeps; arguments are those of ``read_model``.

        Raises:
            HeterpsError: as :func:`heterps_compile.compile`.
        """
        if not isinstance(model, str | Path):
            return _read(model, example_inputs, **reading)
        graphs = self._graphs.setdefault(str(model), {})
        if any(getattr(value, "size", 1) > _MOST_ELEMENTS for value in dict(example_inputs).values()):
            return _read(model, example_inputs, **reading)
        named = {**reading, "example_inputs": dict(example_inputs)}
        key = tuple(sorted((name, _hashable(value)) for name, value in named.items() if value))
        if key not in graphs:
            graphs[key] = _read(model, example_inputs, **reading)
        return graphs[key]

    def forget(self, model: str) -> None:
        """Let go of a model that no further review needs."""
        self._graphs.pop(model, None)


def _read(model: Any, example_inputs: tuple[Any, ...] | Mapping[str, Any], **reading: Any) -> Graph:
    graph = read_model(model, example_inputs, **reading)
    verify_graph(graph)
    return check_batch(graph)


def _hashable(value: Any) -> str:
    return repr(sorted(value.items()) if isinstance(value, Mapping) else value)
