"""Money against time of the sets of machines whose plans were searched for: a picture.

The front is drawn as steps, each of its sets with its number in the table below the picture, and the set that is chosen
as a star.
"""

from heterps_compile.machines.goal import HOUR_S
from heterps_compile.machines.search import Answer
from heterps_compile.offers.offer import CURRENCY
from heterps_compile.units import format_duration, format_money

from .pareto import Axis, star
from .svg import WIDTH, Picture, legend, line, picture, text

_LEFT, _RIGHT, _HEIGHT, _TICK = 80.0, 40.0, 280.0, 60.0


def machine_front(answer: Answer, *, width: float = WIDTH) -> Picture:
    """Draw US dollars over hours, both logarithmic and in the median."""
    chosen = answer.best
    others = [option for option in answer.runners_up if option not in answer.front]
    options = [*answer.front, *others, *([] if answer.failing is None else [answer.failing])]
    told = [("p4", f"chosen: {chosen.machines.title}"), ("p0", "no other set that was searched beats it in both")]
    told += [("soft", "a set that another one beats, or that comes next")] if others else []
    parts, top = legend(told, width)
    parts.append(text(12, top + 8, f"{CURRENCY} over time, medians; numbers as in the table", "soft"))
    top += 28
    hours = [option.outlook.median_s / HOUR_S for option in (chosen, *options)]
    across = Axis(hours, _LEFT, width - _RIGHT)
    up = Axis([option.outlook.median_money for option in (chosen, *options)], top + _HEIGHT, top)
    for value in across.ticks(round((width - _LEFT) / _TICK)):
        parts += [line(across(value), top, across(value), top + _HEIGHT, "grid")]
        parts += [text(across(value), top + _HEIGHT + 18, format_duration(value * HOUR_S), "soft small", "middle")]
    for value in up.ticks(round(_HEIGHT / _TICK)):
        parts += [line(_LEFT, up(value), width - _RIGHT, up(value), "grid")]
        parts += [text(_LEFT - 8, up(value) + 4, format_money(value), "soft small", "end")]
    corners = [(across(o.outlook.median_s / HOUR_S), up(o.outlook.median_money)) for o in answer.front]
    path = f"M{corners[0][0]:.1f} {corners[0][1]:.1f}" + "".join(f"H{x:.1f}V{y:.1f}" for x, y in corners[1:])
    parts.append(f'<path class="edge s0" d="{path}"/>')
    for option in options:
        x, y = across(option.outlook.median_s / HOUR_S), up(option.outlook.median_money)
        colour = "p0" if option in answer.front else "soft"
        parts.append(f'<circle class="{colour}" cx="{x:.1f}" cy="{y:.1f}" r="4.5"/>')
    for number, (x, y) in enumerate(corners, 1):  # above the step that leaves the dot to the right
        parts.append(text(x + 5, y - 8, str(number), "soft small"))
    x, y = across(chosen.outlook.median_s / HOUR_S), up(chosen.outlook.median_money)
    parts.append(f'<path class="p4" d="{star(x, y, 10)}"/>')
    return picture("machines", "Money against time", top + _HEIGHT + 28, parts, width=width)
