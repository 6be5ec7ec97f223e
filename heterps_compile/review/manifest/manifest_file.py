"""heterps.toml: which plans a repository has, of which models, and what is asked of them.

::

    [defaults]                            # of every plan that says nothing else
    cluster = "pools/ours.toml"
    tolerance = "2%"
    fail_on = "placement,price>5%"

    [requests.serving]                    # a request with a name, for several plans
    min_throughput = 300

    [[plan]]
    plan = "plans/ranker.json"            # or a compiled folder
    model = "models/ranker.onnx"
    request = "serving"                   # or a table, or none: what the plan itself asks for

Keys are the names of the options of ``check``, ``diff`` and of a request, and values are read as those options are.
Paths are relative to the file and stay in its folder; ``outside = ["/data/models"]`` at the top names further folders
that models, pools and profiles may lie in, and no plan.

Left out: what is done with it (``check_all.py``, ``diff_all.py``).
"""

import json
import os
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from heterps_compile.conflict_markers import unmerged
from heterps_compile.cost.measured import profile_files
from heterps_compile.errors import HeterpsError, InputError, UnknownNameError
from heterps_compile.escape import short
from heterps_compile.options import Amount, Option, Repeated, Sizes, Whole
from heterps_compile.plan.command_options import CHECK, DIFF
from heterps_compile.plan.folder import PLAN_NAME, read_text
from heterps_compile.plan.reading_options import Values
from heterps_compile.plan.request import OPTIONS as REQUEST
from heterps_compile.plan_diff.fail_on import parse_criteria

MANIFEST_NAME = "heterps.toml"

_OF_CHECK = ("cluster", "profile", "batch", "shapes", "values", "inputs", "tolerance")
_OF_A_REVIEW: Mapping[str, Option] = MappingProxyType(
    {name: CHECK.option(name) for name in _OF_CHECK} | {"fail_on": DIFF.option("fail_on")}
)
"""Options of the commands that a plan of the manifest may have."""

_DEFAULTS = (*_OF_A_REVIEW, "request")
_ENTRY = ("plan", "model", *_DEFAULTS)
_TOP = ("defaults", "requests", "outside", "plan")


@dataclass(frozen=True, slots=True)
class Entry:
    """One plan of a manifest.

    Attributes:
        name: Its path as the manifest has it.
        plan: Its path for this process.
        model: That of its model; None where only the plan is reviewed.
        request: Options of a request by name; None for what the plan itself asks for.
        options: Values of ``cluster``, ``profile``, ``batch``, ``shapes``, ``values`` and ``inputs``, those that are
            given.
        tolerance: How much better a plan may exist.
        fail_on: What counts as a change; None for any.
    """

    name: str
    plan: str
    model: str | None
    request: Mapping[str, Any] | None
    options: Mapping[str, Any]
    tolerance: float
    fail_on: str | None


@dataclass(frozen=True, slots=True)
class Manifest:
    """All plans of a repository, in the order of the file; ``path`` is where it lies."""

    path: str
    entries: tuple[Entry, ...]


def read_manifest(path: str | None = None) -> Manifest:
    """Read a manifest; heterps.toml of the working directory unless another is named.

    Raises:
        InputError: where there is none, or it says something wrong: the place, the fault, what was expected, and of a
            key or a name that nobody knows the nearest.
    """
    where = MANIFEST_NAME if path is None else path
    try:
        text = read_text(Path(where))
    except FileNotFoundError as error:
        named = "" if path is not None else " here; write one, or name it (--manifest FILE)"
        raise InputError(f"there is no manifest {where!r}{named}") from error
    except (OSError, ValueError) as error:
        reason = (isinstance(error, OSError) and error.strerror) or "it is no UTF-8 text"
        raise InputError(f"cannot read the manifest {where!r}: {reason}") from error
    return parse_manifest(text, where)


def parse_manifest(text: str, where: str) -> Manifest:
    """Read a manifest from its text; ``where`` is its path, which paths in it are relative to.

    Raises:
        InputError: as :func:`read_manifest`.
    """
    try:
        document = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise InputError(f"{where} {unmerged(text) or f'is not TOML: {error}'}") from error
    try:
        return Manifest(where, tuple(_entries(document, Path(where).parent)))
    except HeterpsError as error:
        raise InputError(f"{where}: {error}") from error


def _entries(document: Mapping[str, Any], folder: Path) -> Sequence[Entry]:
    _refuse_unknown(document, _TOP, "the file")
    tables = document.get("plan", [])
    if not isinstance(tables, list) or not tables or not all(isinstance(table, dict) for table in tables):
        raise InputError("there is no plan; expected at least one table, under a heading [[plan]]")
    roots = [folder.resolve(), *(_folder(name, folder) for name in _list(document.get("outside", []), "outside"))]
    defaults = _table(document.get("defaults", {}), "defaults")
    _refuse_unknown(defaults, _DEFAULTS, "[defaults]")
    named = _table(document.get("requests", {}), "requests")
    requests = {name: _request(table, {}, f"[requests.{name}]") for name, table in named.items()}
    entries = [
        _entry(defaults | table, f"plan number {number}", requests, folder, roots)
        for number, table in enumerate(tables, 1)
    ]
    seen: dict[Path, str] = {}
    for entry in entries:
        if (other := seen.setdefault(_file_of(entry.plan), entry.name)) is not entry.name:
            raise InputError(
                f"{entry.name!r} and {other!r} are one plan, which two entries cannot both write; keep one"
            )
    return entries


def _entry(
    table: Mapping[str, Any], place: str, requests: Mapping[str, Any], folder: Path, roots: Sequence[Path]
) -> Entry:
    if isinstance(table.get("plan"), str):
        place = f"plan {short(table['plan'])}"
    _refuse_unknown(table, _ENTRY, place)
    if "plan" not in table:
        raise InputError(f"{place}: the key plan is missing; name its plan.json or compiled folder")
    values = {name: _value(option, table[name], place) for name, option in _OF_A_REVIEW.items() if name in table}
    tolerance, fail_on = values.pop("tolerance", CHECK.option("tolerance").default), values.pop("fail_on", None)
    if fail_on is not None:
        parse_criteria(fail_on)
    if "cluster" in values and (values["cluster"].endswith(".toml") or "/" in values["cluster"]):
        values["cluster"] = _inside(values["cluster"], "cluster", place, folder, roots)
    if "inputs" in values:
        values["inputs"] = _inside(values["inputs"], "inputs", place, folder, roots)
    if "profile" in values:
        files = profile_files(values["profile"])
        found = [(name, _inside(str(path), "profile", place, folder, roots)) for name, path in files]
        values["profile"] = ",".join(f"{name}={path}" if name else path for name, path in found)
    return Entry(
        name=_text(table["plan"], "plan", place),
        plan=_inside(table["plan"], "plan", place, folder, roots[:1]),
        model=None if "model" not in table else _inside(table["model"], "model", place, folder, roots),
        request=None if "request" not in table else MappingProxyType(_request(table["request"], requests, place)),
        options=MappingProxyType(values),
        tolerance=tolerance,
        fail_on=fail_on,
    )


def _request(value: Any, requests: Mapping[str, Any], place: str) -> dict[str, Any]:
    """Return the options of a request: those of a table, or of the request of a name."""
    if isinstance(value, str):
        if value not in requests:
            raise UnknownNameError("request", value, requests)
        return dict(requests[value])
    table = _table(value, f"{place}, key request")
    _refuse_unknown(table, tuple(REQUEST), f"{place}, request")
    return {name: _value(REQUEST[name], given, place) for name, given in table.items()}


def _value(option: Option, given: Any, place: str) -> Any:
    """Return the value of an option, read as the command line's."""
    kind, where = option.type, f"{place}, key {option.name}"
    is_number = isinstance(given, int | float) and not isinstance(given, bool)
    try:
        if isinstance(kind, Repeated):
            if isinstance(kind, Values) and isinstance(given, dict):
                return kind.collect([f"{name}={json.dumps(item)}" for name, item in given.items()])
            number = int if isinstance(kind, Sizes) else str
            if isinstance(given, dict) and all(type(item) is number for item in given.values()):
                return kind.collect([f"{name}={item}" for name, item in given.items()])
            return kind.collect([_text(item, option.name, place) for item in _list(given, option.name)])
        if isinstance(kind, Whole | Amount):
            if not is_number:
                raise InputError(f"{short(given)} is no number")
            return kind.read(str(given))
        return kind.read(_text(given, option.name, place))
    except InputError as error:
        raise InputError(f"{where}: {error}") from error


def _inside(written: Any, key: str, place: str, folder: Path, roots: Sequence[Path]) -> str:
    """Return a path for this process, which lies in one of some folders, links followed."""
    path = folder / _text(written, key, place)
    try:
        real = path.resolve()
    except (OSError, ValueError, RuntimeError) as error:  # a NUL in it; a link that leads in circles
        raise InputError(f"{place}, key {key}: {short(written)} is no path") from error
    if not any(real.is_relative_to(root) for root in roots):
        way_out = "" if key == "plan" else ', or name the folder it lies in (outside = ["..."] at the top)'
        raise InputError(
            f"{place}, key {key}: {short(written)} leads out of the manifest's folder, to {str(real)!r}; move it "
            f"in{way_out}"
        )
    return os.path.normpath(path)


def _folder(name: str, folder: Path) -> Path:
    path = (folder / name).resolve()
    if not path.is_dir():
        raise InputError(f"key outside: {short(name)} is no folder")
    return path


def _file_of(plan: str) -> Path:
    path = Path(plan).resolve()
    return path if path.suffix == ".json" else path / PLAN_NAME


def _refuse_unknown(table: Mapping[str, Any], known: Sequence[str], place: str) -> None:
    for key in table:
        if key not in known:
            raise UnknownNameError(f"key of {place}:", key, known)


def _table(value: Any, what: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise InputError(f"{what}: {short(value)} is no table")
    return value


def _list(value: Any, key: str) -> list[Any]:
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise InputError(f"key {key}: {short(value)} is no list of texts")
    return value


def _text(value: Any, key: str, place: str) -> str:
    if not isinstance(value, str) or not value:
        raise InputError(f"{place}, key {key}: {short(value)} is no text")
    return value
