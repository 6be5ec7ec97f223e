"""The parameter servers of a plan, and its tables on them.

Left out: how a run starts them (``table_words.py``).
"""

from dataclasses import dataclass

from heterps_compile.cluster.devices import ParameterServer


@dataclass(frozen=True, slots=True)
class ServedTables:
    """The tables of a plan on parameter servers.

    Attributes:
        names: Of the parameters, in the order of their layers.
        layers: Names of the layers that look them up, each once.
        servers: That hold them.
        size_bytes: Of all rows, with the states of their optimiser.
        moved_bytes: That servers give and take for a batch.
        batch_s: What they take for that.
        price_per_hour: Of all of them.
    """

    names: tuple[str, ...]
    layers: tuple[str, ...]
    servers: int
    size_bytes: int
    moved_bytes: int
    batch_s: float
    price_per_hour: float


@dataclass(frozen=True, slots=True)
class ParameterServers:
    """Servers that synchronise replicas, and servers that store tables.

    Attributes:
        count: Cores; 0 where nothing is synchronised through servers and no table lies on any.
        price_per_hour: Of all of them.
    """

    count: int = 0
    price_per_hour: float = 0.0

    def priced(self, server: ParameterServer | None) -> "ParameterServers":
        """Price the servers as a pool does; 0 if the pool has none."""
        return ParameterServers(self.count, self.count * server.price_per_hour if server is not None else 0.0)

    def beside(self, tables: ServedTables | None) -> "ParameterServers":
        """Leave out the servers that store tables."""
        if tables is None:
            return self
        return ParameterServers(self.count - tables.servers, max(0.0, self.price_per_hour - tables.price_per_hour))
