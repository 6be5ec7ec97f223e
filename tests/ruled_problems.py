"""Small random problems whose stages agree by rules, and what a stage waits for, one number at a time."""

import math
from collections import Counter
from dataclasses import replace

import numpy as np

from heterps_compile.cost.problem import Problem
from heterps_compile.cost.rule_times import RuleForm, RuleSums, least_sync_s
from heterps_compile.sync_rules.all_reduce_rule import AllReduce

FORMS = ((True, True, False), (True, False, False), (False, False, True))
"""Whether rules sum inside machines and between them, and whether they halve: rings, topk, adasum."""


def ruled(problem: Problem, seed: int) -> Problem:
    """Give the problem's stages rules: by patterns of layers, with entries for stages by number, or to choose from."""
    rng = np.random.default_rng([seed, 5])
    layers, types = problem.layer_count, problem.type_count
    chooses, count = rng.random() < 0.4, int(rng.integers(1, 5))
    first = rng.integers(0, count, layers)
    if rng.random() < 0.3:
        first[:] = count - 1  # one for all
    tied = np.zeros(layers)
    np.add.at(tied, problem.tied_second, problem.tied_bytes)
    own_bytes = problem.weight_bytes - tied + problem.activation_bytes * problem.keeps_activations
    rules = []
    for place in range(count):
        inside, between, halves = FORMS[rng.integers(len(FORMS))]
        is_open = bool(chooses or (place < count - 1 and rng.random() < 0.2))
        present = np.zeros(layers) if is_open else (first == place).astype(np.float64)
        ring_s = rng.uniform(0, 0.6, (layers, types)) * (rng.random((layers, 1)) < 0.7) * (inside or between or halves)
        gather_s = rng.uniform(0, 0.2, (layers, types)) * (not between or rng.random() < 0.1)
        holds = rng.random() < 0.5
        base = own_bytes + rng.uniform(0, 30, layers) * holds
        each = rng.uniform(0, 10, layers) * (holds and rng.random() < 0.7)

        def of_types(values: np.ndarray) -> np.ndarray:
            return np.repeat(values[:, None], types, axis=1)

        most = np.where(rng.random(types) < 0.8, np.inf, rng.integers(1, 6, types))
        form = RuleForm(AllReduce(), inside, between, halves, is_open)
        summed = of_types(np.ones(layers)), of_types(np.zeros(layers))
        tables = (ring_s, gather_s, of_types(base), of_types(each), of_types(present), *summed)
        rules.append(RuleSums(form, *tables, room_bytes=problem.memory_bytes, most_units=most))
    if not chooses:  # the last one is that of all that no other names
        left = 1 - sum((rule.present for rule in rules[:-1]), np.zeros((layers, types)))
        rules[-1] = replace(rules[-1], present=left)
    return replace(problem, rules=tuple(rules), sync_s=least_sync_s(rules, problem.machines))


def plain_rules(problem: Problem, i: int, j: int) -> list[RuleSums]:
    """Return the rules that a stage of layers i to before j may have: those before the first that is present."""
    found = []
    for rule in problem.rules or ():
        is_present = bool(rule.present[i:j, 0].any())
        if is_present or rule.form.is_open:
            found.append(rule)
        if is_present:
            break
    return found


def plain_rule_s(problem: Problem, rule: RuleSums, layers: range, t: int, k: int) -> float:
    """Return what k replicas of a stage wait for with a rule; inf where they may not have it."""
    if k == 1:
        return 0.0
    times = k if not rule.form.halves else float(k & (k - 1) > 0)
    held = sum(rule.base_bytes[x, t] + times * rule.each_bytes[x, t] for x in layers)
    if k > rule.most_units[t] or held > problem.memory_bytes[t] * (1 + 1e-9):
        return math.inf
    ring, gather = (sum(float(table[x, t]) for x in layers) for table in (rule.ring_s, rule.gather_s))
    per, inner = (1, 1.0) if problem.machines is None else (int(problem.machines.units[t]), problem.machines.inner[t])
    if rule.form.halves:
        halves, products = plain_halving(k, per, inner)
        return ring / 2 * halves + gather * products
    inside, machines = min(k, per), math.ceil(k / per)
    spent = rule.form.sums_inside * inner * ring * (inside - 1) / inside
    spent += rule.form.sums_between * ring * (machines - 1) / machines
    return float(spent + gather * (machines - 1))


def plain_halving(k: int, per: int, inner: float) -> tuple[float, float]:
    """Return what recursive halving takes of k replicas, of gradients and of products, replica by replica."""
    levels = k.bit_length() - 1
    power = 2**levels

    def slowest(pairs: list[tuple[int, int]]) -> float:
        away = Counter(place // per for one, other in pairs if one // per != other // per for place in (one, other))
        return max(inner, *away.values(), 0)

    halves = products = 0.0
    for level in range(1, levels + 1):
        distance = 2 ** (level - 1)
        most = slowest([(one, one + distance) for one in range(power) if not one & distance])
        halves += 2 / 2**level * most
        products += (levels - level + 1) * most
    if k > power:
        halves += 2 * slowest([(place - power, place) for place in range(power, k)])
    return halves, products
