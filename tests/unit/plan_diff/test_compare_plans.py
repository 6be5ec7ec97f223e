from dataclasses import replace

import pytest
from plan_changes import drawn
from plans import PLAN

import heterps_compile
from heterps_compile.errors import InputError, StalePlanError, UnknownNameError
from heterps_compile.plan_diff.compare_plans import PlanDiff, apply
from heterps_compile.plan_diff.decisions import decisions
from heterps_compile.plan_diff.fail_on import met, parse_criteria

BEFORE = drawn("2 cpu: emb | 1 v100: a b c d | 3 cpu: head")


def diff(old: str, new: str) -> PlanDiff:
    return heterps_compile.diff(drawn(old), drawn(new))


def moved(changes: PlanDiff) -> list[str]:
    return [f"{change.layer}: {change.old_device} -> {change.new_device}" for change in changes.moved]


def events(changes: PlanDiff) -> list[str]:
    return [f"{event.kind} {list(event.old)} {list(event.new)} {event.device}" for event in changes.events]


def test_a_plan_does_not_differ_from_itself():
    assert heterps_compile.diff(PLAN, PLAN).is_empty


def test_new_names_alone_are_no_change():
    changes = diff("2 cpu: emb | 1 v100: a b", "2 cpu: emb' | 1 v100: a' b'")
    assert changes.is_empty
    assert changes.renamed == {"emb": "emb'", "a": "a'", "b": "b'"}


def test_names_that_were_swapped_are_no_change():
    old = drawn("2 cpu: a | 1 v100: b")
    new = replace(drawn("2 cpu: b | 1 v100: a"), fingerprints={"b": old.fingerprints["a"], "a": old.fingerprints["b"]})
    assert heterps_compile.diff(old, new).is_empty


def test_one_layer_that_moved_to_the_neighbour_is_exactly_that():
    changes = diff("1 cpu: a b | 1 v100: c d", "1 cpu: a | 1 v100: b c d")
    assert moved(changes) == ["b: cpu -> v100"]
    assert (events(changes), changes.regrouped, changes.added, changes.removed) == ([], (), (), ())


def test_one_layer_that_moved_out_of_the_middle_splits_its_stage():
    changes = diff("1 v100: a b c", "1 v100: a | 1 cpu: b | 1 v100: c")
    assert moved(changes) == ["b: v100 -> cpu"]
    assert events(changes) == ["split [0] [0, 2] v100", "new [] [1] cpu"]
    assert changes.regrouped == ()


def test_a_new_stage_comes_from_the_one_that_most_of_its_layers_were_in():
    changes = diff("1 v100: a b c d e | 1 cpu: f g h", "1 v100: a b c | 1 cpu: g h | 1 v100: d e f")
    assert moved(changes) == ["f: cpu -> v100"]
    assert events(changes) == ["split [0] [0, 2] v100"]


def test_stages_that_became_one_were_merged():
    changes = diff("1 v100: a | 1 v100: b c", "1 v100: a b c")
    assert (moved(changes), events(changes)) == ([], ["merged [0, 1] [0] v100"])
    assert changes.regrouped == ()


def test_a_border_that_shifted_regroups_layers():
    changes = diff("1 v100: a b c | 1 v100: d", "1 v100: a b | 1 v100: c d")
    assert (moved(changes), events(changes)) == ([], [])
    assert [(c.layer, c.old_stage, c.new_stage) for c in changes.regrouped] == [("c", 0, 1)]


def test_a_stage_that_changed_its_device_is_the_same_stage():
    changes = diff("1 cpu: a | 1 v100: b c", "1 cpu: a | 1 t4: b c")
    assert moved(changes) == ["b: v100 -> t4", "c: v100 -> t4"]
    assert events(changes) == []
    assert [(s.index, s.old.device, s.new.device) for s in changes.rebuilt if s.old] == [(1, "v100", "t4")]


def test_a_stage_whose_layers_all_went_elsewhere_is_gone():
    changes = diff("1 cpu: a | 1 v100: b c", "1 v100: a b c")
    assert (moved(changes), events(changes)) == (["a: cpu -> v100"], ["gone [0] [] cpu"])


def test_replicas_are_told_with_their_stage():
    changes = diff("2 cpu: a | 1 v100: b", "5 cpu: a | 1 v100: b")
    assert [(s.index, s.old.replicas, s.new.replicas) for s in changes.replicas if s.old] == [(0, 2, 5)]
    assert (moved(changes), events(changes)) == ([], [])


def test_layers_that_came_and_went_are_told_with_their_device():
    changes = diff("1 cpu: a b | 1 v100: c", "1 cpu: a | 1 v100: c new")
    assert [(gone.layer, gone.device) for gone in changes.removed] == [("b", "cpu")]
    assert [(came.layer, came.device, came.stage) for came in changes.added] == [("new", "v100", 1)]


def test_options_are_compared_one_by_one():
    request = replace(PLAN.request, method="exact", pins=())
    changes = heterps_compile.diff(PLAN, replace(PLAN, request=request, cluster="mine"))
    assert [(s.name, s.old, s.new) for s in changes.settings] == [
        ("cluster", "heterps-paper", "mine"),
        ("method", "best", "exact"),
        ("pins", "embedding=cpu", ""),
    ]


def test_numbers_have_units_and_change_in_percent():
    changes = heterps_compile.diff(drawn("2 cpu: a", 0.004), drawn("3 cpu: a", 0.002))
    numbers = {n.name: (n.old_text, n.new_text, n.percent) for n in changes.numbers}
    assert numbers["price"] == ("0.08 USD/h", "0.12 USD/h", pytest.approx(50))
    assert numbers["throughput"] == ("16,000 samples/s", "32,000 samples/s", pytest.approx(100))
    assert numbers["memory"][:2] == ("2.31 MiB", "3.46 MiB")


def test_prices_in_two_currencies_are_not_compared():
    changes = heterps_compile.diff(BEFORE, replace(BEFORE, currency="EUR"))
    price = changes.numbers[0]
    assert (price.unit, price.has_changed, price.percent != price.percent) == ("", True, True)
    assert met(parse_criteria("price>50%"), changes) == ["price>50%"]


def test_a_layer_of_another_shape_is_altered_but_not_at_another_batch():
    other = replace(BEFORE, fingerprints={**BEFORE.fingerprints, "a": "f" * 12 + "-" + "e" * 12 + "-" + "d" * 12})
    assert heterps_compile.diff(BEFORE, other).altered == ("a",)
    assert heterps_compile.diff(BEFORE, replace(other, batch=128)).altered == ()


def test_other_weights_are_told_and_are_no_change():
    changes = heterps_compile.diff(PLAN, replace(PLAN, hashes={**PLAN.hashes, "weights": "e" * 64}))
    assert (changes.hashes, changes.is_empty) == (("weights",), True)


@pytest.mark.parametrize(
    "new",
    ["1 v100: emb a b c d head", "2 cpu: a | 1 t4: emb' b new | 1 cpu: c | 1 cpu: d head", "9 t4: other"],
)
def test_what_changed_turns_the_old_decisions_into_the_new_ones(new):
    assert apply(heterps_compile.diff(BEFORE, drawn(new)), BEFORE) == decisions(drawn(new))


def test_a_diff_of_another_plan_is_not_applied():
    with pytest.raises(StalePlanError):
        apply(heterps_compile.diff(BEFORE, BEFORE), PLAN)


@pytest.mark.parametrize(
    ("criteria", "failed"),
    [
        ("placement", ["placement"]),
        ("stages,replicas", ["replicas"]),
        ("price>5%, throughput<-2%", ["price>5%"]),
        ("price>2000%,cost<0%,layers,settings", []),
        ("throughput", []),
        ("price", ["price"]),
    ],
)
def test_what_to_fail_on_is_a_choice(criteria, failed):
    changes = diff("1 cpu: a b | 1 t4: c", "2 cpu: a | 1 t4: b c")
    assert met(parse_criteria(criteria), changes) == failed


def test_what_is_nothing_to_fail_on_is_told():
    with pytest.raises(UnknownNameError, match="'placement'"):
        parse_criteria("placment")
    with pytest.raises(InputError, match="'price>5'"):
        parse_criteria("price>5")
    with pytest.raises(InputError, match="'stages>5%'"):
        parse_criteria("stages>5%")
