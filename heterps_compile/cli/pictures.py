"""``--report``, ``--plots`` and ``--trace``: what a compilation draws beside its folder, and the page of a diff.

Left out: the pictures (``report/``).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from heterps_compile.errors import InputError
from heterps_compile.progress import OnProgress, Progress

from .output import tell

if TYPE_CHECKING:
    from heterps_compile.compiled_model import CompiledModel
    from heterps_compile.passes.contract import Pass
    from heterps_compile.passes.drafts import Draft, Placed
    from heterps_compile.plan.plan import Plan
    from heterps_compile.plan_diff.compare_plans import PlanDiff
    from heterps_compile.report.findings import Findings
    from heterps_compile.report.pictures.pareto import Point

BASELINES = ("greedy", "heuristic", "cpu-only", "gpu-only")
"""The methods that pictures show beside the plan's own."""

_PARETO_LIMIT_S = 8.0


@dataclass(frozen=True, slots=True)
class Drawings:
    """Where to write what; None for what is not asked for.

    Attributes:
        report: File of the HTML page.
        plots: Folder of the pictures, one file each; it is made.
        trace: File of the simulated step as a Chrome trace.
        older: The plan that the page tells the changes against.
    """

    report: str | None = None
    plots: str | None = None
    trace: str | None = None
    older: "Plan | None" = None

    def check(self, directory: str) -> None:
        """Check, before the long work, that the files can be written.

        Args:
            directory: The compiled folder, which is replaced as a whole and holds nothing else.

        Raises:
            InputError: where one cannot; says why.
        """
        for option, path in (("--report", self.report), ("--plots", self.plots), ("--trace", self.trace)):
            if path is None:
                continue
            if Path(path).resolve().is_relative_to(Path(directory).resolve()):
                raise InputError(
                    f"{option} {path!r} lies in the output folder {directory!r}, which is replaced as a whole; "
                    f"choose a path beside it"
                )
            if option != "--plots":
                check_file(option, path)

    def write(self, compiled: "CompiledModel", draft: "Placed", on_progress: "OnProgress") -> None:
        """Search what only pictures need, draw everything, write it.

        Raises:
            InputError: where a file cannot be written.
        """
        if self.report is None and self.plots is None and self.trace is None:
            return
        found = _findings(compiled, draft, on_progress, searches=self.report is not None or self.plots is not None)
        if self.report is not None:
            from heterps_compile.plan_diff.compare_plans import diff  # noqa: PLC0415 - only where asked for
            from heterps_compile.report.html import html_report  # noqa: PLC0415 - jinja2

            changes = None if self.older is None else diff(self.older, compiled.plan)
            write_file(self.report, html_report(replace(found, older=self.older, changes=changes)))
        if self.plots is not None:
            _write_plots(self.plots, found)
        if self.trace is not None:
            from heterps_compile.simulation.chrome_trace import chrome_trace  # noqa: PLC0415 - only where asked for

            write_file(self.trace, chrome_trace(compiled.plan, found.step))


def write_changes(path: str, older: "Plan", newer: "Plan", changes: "PlanDiff") -> None:
    """Write the page that shows two plans and what changed between them; nothing but the plans is needed for it.

    Raises:
        InputError: where the file cannot be written.
    """
    from heterps_compile.report.findings import Findings  # noqa: PLC0415 - as above
    from heterps_compile.report.html import html_report  # noqa: PLC0415 - jinja2

    write_file(path, html_report(Findings(newer, older=older, changes=changes)))


class LastDraft:
    """An observer of passes that keeps the last placed draft and hands everything on."""

    def __init__(self, following: "Callable[[Pass, Draft], None]") -> None:
        self._following = following
        self.draft: Placed | None = None

    def __call__(self, step: "Pass", draft: "Draft") -> None:
        """Keep a draft that is placed."""
        from heterps_compile.passes.drafts import Placed  # noqa: PLC0415 - numpy

        if isinstance(draft, Placed):
            self.draft = draft
        self._following(step, draft)


def _findings(compiled: "CompiledModel", draft: "Placed", on_progress: "OnProgress", *, searches: bool) -> "Findings":
    """Return what is known of a compilation, with points of throughput and price and other methods where asked for."""
    from heterps_compile.bench.compare_methods import comparison_of  # noqa: PLC0415 - the search methods
    from heterps_compile.report.findings import Findings  # noqa: PLC0415 - as above
    from heterps_compile.report.pictures.pareto import pareto, usual_floors  # noqa: PLC0415
    from heterps_compile.report.rows import layer_rows  # noqa: PLC0415

    plan, problem, search = compiled.plan, draft.problem, draft.search
    rows = layer_rows(plan, compiled.layers, compiled.costs) if compiled.layers is not None else []
    known = Findings(plan, rows, compiled.layers, problem)
    if not searches:
        return known
    on_progress(Progress("throughput against price", 0, 1))
    floors = usual_floors(plan.throughput_samples_per_s)
    points: Sequence[Point] = ()
    if plan.price_per_hour > 0:  # what is free has a price to the search alone
        points = pareto(problem, floors, time_limit_s=_PARETO_LIMIT_S, warm_start=search.placement)
    comparison = comparison_of(draft, draft.tried, search)
    return Findings(plan, rows, compiled.layers, problem, points, comparison)


def _write_plots(directory: str, found: "Findings") -> None:
    from heterps_compile.report.pictures.svg import can_draw_png, to_png  # noqa: PLC0415 - only where asked for

    try:
        Path(directory).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"cannot make the folder {directory!r}: {error.strerror}") from error
    for drawn in found.pictures():
        write_file(str(Path(directory, f"{drawn.name}.svg")), drawn.svg)
        if can_draw_png():
            write_file(str(Path(directory, f"{drawn.name}.png")), to_png(drawn))
    if not can_draw_png():
        tell("note: the pictures are written as SVG alone; PNG needs resvg-py (pip install 'heterps-compile[plots]')")


def check_file(option: str, path: str | None) -> None:
    """Check, before the work, that a file can be written there; None is not asked for.

    Raises:
        InputError: where it cannot; says why.
    """
    if path is None:
        return
    if not Path(path).resolve().parent.is_dir():
        raise InputError(f"{option} {path!r}: its folder does not exist; make it first (mkdir -p)")
    if Path(path).is_dir():
        raise InputError(f"{option} {path!r} is a folder; expected a file to write")


def write_file(path: str, content: str | bytes) -> None:
    """Write a file that was named on the command line.

    Raises:
        InputError: where it cannot be written.
    """
    try:
        Path(path).write_bytes(content.encode("utf-8") if isinstance(content, str) else content)
    except OSError as error:
        raise InputError(f"cannot write {path!r}: {error.strerror}") from error
