"""Read pools: the built-in ones by name, a user's own from a TOML file.

A pool's file names every unit ("25 Gbit/s", "16 GiB", "2.42 USD/h"); a price that is missing or zero is an
error unless it is written as "free". See ``pools/heterps-paper.toml`` for every key with a comment.

Left out: cloud catalogues and spot prices; what the tables of a file may say (``pool_file.py``).
"""

import math
import tomllib
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from types import MappingProxyType
from typing import Any

from heterps_compile.conflict_markers import unmerged
from heterps_compile.errors import InputError, UnknownNameError
from heterps_compile.plain_file import read_plain

from .devices import Cluster, DeviceType, KindRate, Link, ParameterServer
from .local import SOURCE, local_toml
from .pool_file import Device, Rate, parse_pool

LOCAL = "local"


def builtin_names() -> tuple[str, ...]:
    """Return the names of the built-in pools, ascending; ``local`` is among them."""
    files = resources.files("heterps_compile.cluster").joinpath("pools").iterdir()
    names = [item.name.removesuffix(".toml") for item in files if item.name.endswith(".toml")]
    return tuple(sorted([*names, LOCAL]))


def load_cluster(name_or_path: str | Path) -> Cluster:
    """Load a built-in pool by name, or a pool from a TOML file.

    Whatever has a ``/`` in it or ends in ``.toml`` is a path.

    Raises:
        UnknownNameError: no built-in pool of that name.
        InputError: the file is missing, is not TOML, or says something wrong;
            names file, key and what was expected.
    """
    return _parse(*_read(name_or_path))


def as_pool(cluster: str | Path | Cluster) -> Cluster:
    """Return a pool, read where only its name or path is given."""
    return cluster if isinstance(cluster, Cluster) else load_cluster(cluster)


def pool_text(name_or_path: str | Path) -> str:
    """Return what stands in a pool's file, to be copied and corrected; of ``local`` what it would say.

    Raises:
        UnknownNameError, InputError: as :func:`load_cluster`, but for what the
            file says.
    """
    return _read(name_or_path)[0]


def _read(name_or_path: str | Path) -> tuple[str, str, str]:
    """Return a pool's text, its name, and where it is from."""
    name = str(name_or_path)
    if isinstance(name_or_path, Path) or name.endswith(".toml") or "/" in name:
        path = Path(name)
        try:
            return read_plain(path).decode("utf-8-sig"), path.stem, str(path)
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is no UTF-8 text"
            raise InputError(f"cannot read the cluster file {str(path)!r}: {reason}") from error
    if name == LOCAL:
        return local_toml(), LOCAL, SOURCE
    if name not in builtin_names():
        raise UnknownNameError("cluster", name, builtin_names())
    file = resources.files("heterps_compile.cluster").joinpath("pools", f"{name}.toml")
    return file.read_text("utf-8"), name, f"built-in pool {name!r}"


def _parse(text: str, name: str, source: str) -> Cluster:
    try:
        document = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise InputError(f"{source} {unmerged(text) or f'is not TOML: {error}'}") from error
    return make_cluster(document, name, source)


def make_cluster(document: Mapping[str, Any], name: str, source: str) -> Cluster:
    """Return the pool that the tables of a file describe.

    Args:
        document: The tables, as TOML or JSON holds them.
        name: Of the pool.
        source: Where it is from, for messages.

    Raises:
        InputError: where a table says something wrong; names the key and what was expected.
    """
    try:
        pool = parse_pool(document)
    except InputError as error:
        raise InputError(f"{source}: {error}") from error
    server = pool.parameter_server
    return Cluster(
        name=name,
        description=pool.description,
        currency=pool.currency,
        device_types=tuple(_device_type(device) for device in pool.device),
        source=source,
        links=tuple(Link((link.between[0], link.between[1]), link.bandwidth, link.latency) for link in pool.link),
        parameter_server=None
        if server is None
        else ParameterServer(
            server.price[0],
            server.price_source,
            server.price_date or "",
            server.bandwidth,
            server.memory,
            server.per_table,
        ),
    )


def _device_type(device: Device) -> DeviceType:
    return DeviceType(
        name=device.name,
        kind=device.kind,
        price_per_hour=device.price[0],
        price_source=device.price_source,
        max_units=device.max_units,
        memory_bytes=device.memory,
        peak_flops=MappingProxyType(dict(device.peak)),
        memory_bytes_per_s=device.memory_bandwidth,
        network_bytes_per_s=device.network_bandwidth * device.network_efficiency,
        network_latency_s=device.network_latency,
        input_bytes_per_s=device.input_bandwidth,
        launch_s=device.launch,
        efficiency=device.efficiency,
        compute_parallel=device.compute_parallel,
        data_parallel=device.data_parallel,
        price_date=device.price_date or "",
        shared_input_bytes_per_s=device.shared_input_bandwidth or math.inf,
        supports=None if device.supports is None else tuple(device.supports),
        units_per_machine=device.units_per_machine,
        inner_bytes_per_s=(device.inner_bandwidth or math.inf) * device.inner_efficiency,
        inner_latency_s=device.inner_latency or 0.0,
        whole_machines=device.whole_machines,
        rates=MappingProxyType({kind: _kind_rate(rate) for kind, rate in sorted(device.rates.items())}),
    )


def _kind_rate(rate: Rate) -> KindRate:
    return KindRate(
        start_s=rate.start or 0.0,
        flops_per_s=rate.flops or math.inf,
        bytes_per_s=rate.memory or math.inf,
        backward=rate.backward,
        error=rate.error,
        dtype=rate.dtype,
        gradient_bytes_per_s=rate.gradient or math.inf,
        inference=rate.inference,
    )
