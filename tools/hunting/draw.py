"""Draw a module out of the grammar; the same seed gives the same module.

Left out: what the operations are (the tables), running the whole (``module.py``).
"""

import random
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from .description import Description, Input, Output, Step
from .layers import HOOKS
from .module import CONTAINERS, SIZES, Described, arguments, build
from .table import OPS, Draw, UnfitError

_LARGEST = 1e3
_FLOATS = ((4, 8), (4, 8), (4, 6), (4, 3, 8), (4, 5, 4), (4, 4, 6, 6), (4, 2, 5, 4))


def draw_module(seed: int) -> Description:
    """Return a module that runs, and can be called twice and differentiated as far as it asks for that."""
    for attempt in range(100):
        description = _attempt(random.Random(f"hunt-{seed}-{attempt}"), seed)  # noqa: S311 - no secret
        if description is not None and _runs(description):
            return description
    raise RuntimeError(f"no module was found for seed {seed}")


def _attempt(rng: random.Random, seed: int) -> Description | None:
    inputs = _inputs(rng)
    blank = Description(seed, inputs, (), Output("value"), rng.random() < 0.6)
    torch.manual_seed(seed)
    module = Described(blank)
    module.train(blank.training)
    values: list[Any] = list(arguments(blank))
    steps: list[Step] = []
    wanted, names, weights = rng.choice((3, 5, 8, 12)), list(OPS), [row.weight for row in OPS.values()]
    for _ in range(wanted * 4):
        if len(steps) == wanted:
            break
        name = rng.choices(names, weights)[0]
        step = _step(rng, name, values, len(inputs), steps, module)
        if step is None:
            continue
        made = _tried(module, step, values)
        if made is not None:
            if not isinstance(module.calls[-1], nn.Module):
                step = replace(step, hook="", frozen=False)
            steps.append(replace(step, count=len(made)))
            values.extend(made)
    if not steps or not any(isinstance(call, nn.Module) for call in module.calls):
        return None
    output = _output(rng, values, len(inputs), steps, len(list(module.parameters())))
    return replace(
        blank,
        steps=tuple(steps),
        output=output,
        unused=rng.random() < 0.1,
        tied_weight=_tie(rng, steps, module),
        stages=rng.choice((2, 2, 2, 3)),
    )


def _inputs(rng: random.Random) -> tuple[Input, ...]:
    shape = rng.choice(_FLOATS)
    found = [Input("float", shape)]
    for _ in range(rng.choice((0, 0, 0, 1, 1, 2, 3))):
        kind = rng.choices(("float", "int", "bool", "number"), (3, 3, 1, 0.5))[0]
        if kind == "number":
            found.append(Input("number", value=rng.choice((2.0, 0.5, 3))))
        elif kind == "float":
            found.append(Input("float", rng.choice((shape, shape, rng.choice(_FLOATS)))))
        else:
            found.append(Input(kind, rng.choice((shape[:2], shape, (4, 3)))[: 2 if kind == "int" else None]))
    if rng.random() < 0.3:  # ids alone, or first
        found.insert(0, Input("int", (4, 3)))
    found = found[:4]
    if len(found) > 1 and rng.random() < 0.25:
        found[-1] = replace(found[-1], by_name=True)
    return tuple(found)


def _step(
    rng: random.Random, name: str, values: list[Any], given: int, steps: list[Step], module: Described
) -> Step | None:
    try:
        args, options = OPS[name].draw(Draw(rng, values, given))
    except UnfitError:
        return None
    step = Step(name, args, tuple(sorted(options.items())))
    for index, old in enumerate(steps):
        alike = old.op == name and old.options == step.options and old.shares is None
        if alike and isinstance(module.calls[index], nn.Module) and rng.random() < 0.6:
            return replace(step, shares=index)
    chance = rng.random()
    if chance < 0.08:
        return replace(step, hook=rng.choice(list(HOOKS)))
    return replace(step, frozen=True) if chance < 0.16 else step


def _tried(module: Described, step: Step, values: list[Any]) -> tuple[Any, ...] | None:
    """Run a step; None where it fails, or gives what a comparison could not use."""
    kept = len(module.parts), len(module.calls)
    try:
        with torch.no_grad():
            made = module.try_step(step, values)
    except Exception:  # noqa: BLE001 - whatever it is, this step is none
        made = ()
    tensors = [m for m in made if isinstance(m, Tensor)]
    bad = not made or len(tensors) < len(made)
    bad = bad or any(t.numel() > 20_000 or t.numel() == 0 for t in tensors)
    bad = bad or any(t.is_floating_point() and not bool((t.abs() < _LARGEST).all()) for t in tensors)
    if not bad:
        return made
    del module.calls[kept[1] :]
    while len(module.parts) > kept[0]:
        del module.parts[-1]
    return None


def _tie(rng: random.Random, steps: list[Step], module: Described) -> tuple[int, int] | None:
    plain = [
        i
        for i, (step, call) in enumerate(zip(steps, module.calls, strict=True))
        if type(call) in {nn.Linear, nn.Embedding} and step.shares is None and not step.frozen and not step.hook
    ]
    pairs = [
        (i, j) for i in plain for j in plain if i < j and module.calls[i].weight.shape == module.calls[j].weight.shape
    ]
    return rng.choice(pairs) if pairs and rng.random() < 0.5 else None


def _output(rng: random.Random, values: list[Any], given: int, steps: list[Step], parameters: int) -> Output:
    read = {arg for step in steps for arg in step.args}
    loose = [i for i in range(given, len(values)) if i not in read]
    made = list(range(given, len(values)))
    chosen = [rng.choice(loose or made)]
    chosen += [rng.choice(loose + made) for _ in range(rng.choice((0, 0, 1, 1, 2, 3)))]
    if loose and rng.random() < 0.7:
        chosen += [i for i in loose[-3:] if i not in chosen]
    parts = [Output("value", i) for i in chosen]
    for chance, odd in (
        (0.06, Output("constant")),
        (0.04, Output("constant", constant=rng.choice((3, 0.5, True, "text")))),
        (0.04, Output("value", rng.randrange(given))),
        (0.03, Output("parameter", rng.randrange(parameters)) if parameters else Output("constant")),
        (0.04, parts[0]),
    ):
        if rng.random() < chance:
            parts.append(odd)
    rng.shuffle(parts)
    if len(parts) == 1 and rng.random() < 0.7:
        return parts[0]
    return _contained(rng, parts)


def _contained(rng: random.Random, parts: list[Output]) -> Output:
    fitting = [k for k in CONTAINERS if SIZES.get(k, len(parts)) == len(parts)]
    if len(parts) > 2 and rng.random() < 0.3:
        inner = _contained(rng, parts[1:])
        return _contained(rng, [parts[0], inner])
    return Output(rng.choice(fitting), parts=tuple(parts))


def _runs(description: Description) -> bool:
    """Say whether the module as a whole runs twice, on other inputs too, in its mode and in evaluation."""
    from .judge import plain_runs  # noqa: PLC0415 - it compares what this draws

    try:
        build(description)
    except Exception:  # noqa: BLE001 - whatever it is, this module is none
        return False
    return plain_runs(description)
