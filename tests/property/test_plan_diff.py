"""A diff is a patch: applied to the old decisions it gives the new ones, whatever the two plans are."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st
from plan_changes import KINDS, PRICES, planned

from heterps_compile.plan.plan import Plan
from heterps_compile.plan.planned_stage import PlannedStage, StageSync
from heterps_compile.plan_diff.compare_plans import apply, diff
from heterps_compile.plan_diff.decisions import decisions

NAMES = [f"layer {i}" for i in range(12)]
PARTS = st.sampled_from([f"{i:012x}" for i in range(4)])


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    """Draw a plan: some of the names, in some order, cut into stages, with fingerprints many of which agree."""
    names = draw(st.lists(st.sampled_from(NAMES), min_size=1, unique=True))
    cuts = sorted(draw(st.sets(st.integers(1, len(names)), max_size=4)) | {len(names)})
    stages = []
    for first, end in zip([0, *cuts[:-1]], cuts, strict=True):
        device, replicas = draw(st.sampled_from(sorted(PRICES))), draw(st.integers(1, 3))
        stages.append(
            PlannedStage(
                index=len(stages),
                device=device,
                kind=KINDS[device],
                backend=draw(st.sampled_from(["torch", "jax"])),
                layers=tuple(names[first:end]),
                replicas=replicas,
                compute_s=0.001,
                price_per_hour=replicas * PRICES[device],
                sync=draw(st.sampled_from([None, StageSync("adasum", "any", 1.0, 2.0, 0.1)])),
            )
        )
    known = draw(st.sets(st.sampled_from(names)))
    fingerprints = {name: "-".join(draw(st.tuples(PARTS, PARTS, PARTS))) for name in names if name in known}
    return replace(planned(stages), fingerprints=fingerprints, cluster=draw(st.sampled_from(["one", "two"])))


@given(plans(), plans())
def test_what_changed_applied_to_the_old_gives_the_new(old, new):
    changes = diff(old, new)
    assert apply(changes, old) == decisions(new)
    assert len(set(changes.matched.values())) == len(changes.matched)
    assert {*changes.matched, *(gone.layer for gone in changes.removed)} == decided(old)
    assert {*changes.matched.values(), *(came.layer for came in changes.added)} == decided(new)


@given(plans())
def test_a_plan_does_not_differ_from_itself(plan):
    assert diff(plan, plan).is_empty


@given(plans(), st.permutations(NAMES))
def test_renaming_and_reordering_what_can_be_told_apart_is_no_change(plan, names):
    new = dict(zip(NAMES, (f"new {name}" for name in names), strict=True))
    unique = {name: f"{NAMES.index(name):012x}-{0:012x}-{0:012x}" for name in NAMES}
    old = replace(plan, fingerprints={name: unique[name] for name in decided(plan)})
    other = replace(
        old,
        stages=tuple(replace(s, layers=tuple(new[name] for name in reversed(s.layers))) for s in old.stages),
        fingerprints={new[name]: fingerprint for name, fingerprint in old.fingerprints.items()},
    )
    changes = diff(old, other)
    assert changes.is_empty
    assert changes.renamed == {name: new[name] for name in decided(old)}


def decided(plan: Plan) -> set[str]:
    return {name for stage in plan.stages for name in stage.layers}
