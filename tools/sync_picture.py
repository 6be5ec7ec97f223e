"""The trainings of `bench_sync.py --runs` as one picture: held-back loss over time on two links."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from sync_runs import LINKS, STEP_S, Ended

from heterps_compile.report.pictures.pareto import Axis
from heterps_compile.report.pictures.svg import DEVICE_COLOURS, WIDTH, Picture, legend, line, picture, text
from heterps_compile.sync_rules.adasum import Adasum
from heterps_compile.sync_rules.local_steps import LocalSteps
from heterps_compile.sync_rules.rule_text import rule_text
from heterps_compile.sync_rules.shadow import Shadow
from heterps_compile.sync_rules.through_servers import Servers
from heterps_compile.units import format_count

_LEFT, _RIGHT, _HEIGHT, _BETWEEN = 52.0, 16.0, 210.0, 64.0
_MOST = 1.3
"""Of the loss of dense: worse ones are drawn at the upper edge."""

_LEFT_OUT = (Adasum(on="step"), LocalSteps(64), Shadow(8, "bmuf"), Servers(16))
"""There are eight colours."""

Curve = list[tuple[float, float]]


def run_picture(ended: Mapping[str, Sequence[Ended]]) -> Picture:
    """Draw a panel for every training and link; both axes are logarithmic."""
    drawn = {name: [one for one in trainings if one.rule not in _LEFT_OUT] for name, trainings in ended.items()}
    rules = [one.rule for one in next(iter(drawn.values()))][:DEVICE_COLOURS]
    parts, top = legend([(f"d{place}", rule_text(rule)) for place, rule in enumerate(rules)], WIDTH)
    width = (WIDTH - 2 * _LEFT - _RIGHT) / 2
    for name, trainings in drawn.items():
        for place, link in enumerate(LINKS):
            left = _LEFT + place * (width + _LEFT)
            parts.append(text(left, top + 12, f"{name}, {link}: loss over seconds", "soft"))
            parts += _panel(trainings[: len(rules)], link, (left, top + 22, width))
        top += _HEIGHT + _BETWEEN
    return picture("synchronisation", "Held-back loss over time under every rule", top, parts)


def _panel(trainings: Sequence[Ended], link: str, at: tuple[float, float, float]) -> Iterator[str]:
    left, top, width = at
    curves = [_curve(one, link) for one in trainings]
    highest = _MOST * min(loss for _, loss in curves[0])
    curves = [[(time_s, min(loss, highest)) for time_s, loss in curve] for curve in curves]
    across = Axis([time_s for curve in curves for time_s, _ in curve], left, left + width)
    up = Axis([loss for curve in curves for _, loss in curve], top + _HEIGHT, top)
    for value in across.ticks(6):
        yield line(across(value), top, across(value), top + _HEIGHT, "grid")
        yield text(across(value), top + _HEIGHT + 16, format_count(value), "soft small", "middle")
    for value in up.ticks(4):
        yield line(left, up(value), left + width, up(value), "grid")
        yield text(left - 6, up(value) + 4, f"{value:.3g}", "soft small", "end")
    for place, curve in enumerate(curves):
        points = "L".join(f"{across(time_s):.1f} {up(loss):.1f}" for time_s, loss in curve)
        yield f'<path class="edge s{place}" d="M{points}"/>'


def _curve(one: Ended, link: str) -> Curve:
    group = replace(one.group, network=LINKS[link])
    step_s = STEP_S + one.rule.exposed(group).time_s
    return [(step * step_s, loss) for step, loss in one.checks]
