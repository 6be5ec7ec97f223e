"""Parameter servers in this very process, for tests: a client's link that calls them straight away."""

from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from heterps_compile.runtime.servers.optimizers import Sgd, SparseOptimizer
from heterps_compile.runtime.servers.protocol import unpack_request
from heterps_compile.runtime.servers.server import Server
from heterps_compile.runtime.servers.spec import ServerSpec, TableSpec


class DirectServers:
    """All servers of a spec, and the links of all its workers."""

    def __init__(self, spec: ServerSpec) -> None:
        self.spec = spec
        self.servers = [Server(spec, index) for index in range(spec.count)]
        self.requests = 0

    def send(self, server: int, request: Tensor) -> None:
        assert self._handle(server, request) == []

    def ask(self, calls: Sequence[tuple[int, Tensor, Tensor]]) -> Callable[[], None]:
        for server, request, out in calls:
            (answer,) = self._handle(server, request)
            assert answer.dtype == out.dtype
            out.copy_(answer)
        return lambda: None

    def flush(self) -> None:
        pass

    def _handle(self, server: int, request: Tensor) -> list[Tensor]:
        self.requests += 1
        answers = self.servers[server].handle(unpack_request(request, self.spec.wire))
        return [answer for _, answer in answers]

    def weights(self, table: int = 0) -> Tensor:
        """Return a whole table, put together from its shards."""
        whole = torch.empty(self.spec.tables[table].rows, self.spec.tables[table].width)
        for index, server in enumerate(self.servers):
            for first, records in server.shards[table].records():
                rows = torch.arange(first, first + len(records)) * self.spec.count + index
                whole[rows] = torch.from_numpy(records[:, : whole.shape[1]].copy())
        return whole


def write_tables(folder: Path, tables: dict[str, Tensor]) -> tuple[TableSpec, ...]:
    """Write the first weights of tables, as a compiled stage has them."""
    path = folder / "stage_0.safetensors"
    save_file(tables, path)
    return tuple(TableSpec(name, len(rows), rows.shape[1], path) for name, rows in tables.items())


def make_spec(
    folder: Path,
    tables: dict[str, Tensor],
    *,
    servers: int = 2,
    workers: int = 1,
    optimizer: SparseOptimizer | None = None,
    **more: object,
) -> ServerSpec:
    """Return the spec of servers 10, 11, ... for workers 0, 1, ..."""
    return ServerSpec(
        tuple(range(workers)),
        tuple(range(10, 10 + servers)),
        write_tables(folder, tables),
        optimizer or Sgd(lr=0.5),
        **more,  # type: ignore[arg-type]  # fields of the spec
    )
