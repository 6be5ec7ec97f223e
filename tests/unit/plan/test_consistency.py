"""Every number, name and choice of a plan file is refused with another value, or nothing else in the file states it."""

import json
import re

from test_plan_file import SAVED

from heterps_compile.errors import PlanError
from heterps_compile.plan.file import from_json, to_json
from heterps_compile.plan.schema import json_schema

TEXT = to_json(SAVED)
WORDS = {
    word for words in re.findall(r'"enum": \[(.*?)\]', json.dumps(json_schema())) for word in json.loads(f"[{words}]")
}
STATED_ONCE = """
model.name model.signature notes[] request.min_throughput request.budget_per_hour request.precision request.optimizer
request.recompute request.method request.min_stages request.max_stages request.mixed_stages request.provisioner
request.tables request.pins[].pattern request.pins[].device request.seed request.time_limit_s cluster.name
cluster.devices[].kind cluster.devices[].price_per_hour cluster.devices[].max_units cluster.devices[].memory_bytes
cluster.links[].between[] cluster.links[].bytes_per_s cluster.links[].latency_s cluster.parameter_server.price_source
cluster.parameter_server.price_date cluster.parameter_server.bytes_per_s decisions.stages[].layers[].name
decisions.stages[].layers[].fingerprint decisions.schedule.name decisions.tables.names[] decisions.replicated[]
decisions.scoring.refused decisions.scoring.signature decisions.scoring.stages[].artifacts[].file
decisions.scoring.stages[].artifacts[].sha256 artifacts[][].file artifacts[][].sha256 estimates.currency
estimates.bound_of_all_orders estimates.steady_bound estimates.stages[].compute_s estimates.stages[].data_s
estimates.stages[].received_bytes estimates.stages[].sent_bytes estimates.stages[].times[].count
estimates.stages[].times[].forward_s estimates.schedule.reason estimates.tables.size_bytes
estimates.tables.moved_bytes estimates.tables.batch_s estimates.other_objective.throughput_samples_per_s
estimates.other_objective.is_proven provenance.method provenance.found_by provenance.evaluations
"""
"""Fields with values that nothing else in the file states; of a list, the field of one entry at least."""
RECORDS = ("cluster.devices[].data_sheet.", "estimates.stages[].memory.", "provenance.hashes.", "provenance.versions.")


def leaves(value, path=()):
    """Iterate over the plain values in JSON with their keys."""
    if isinstance(value, dict | list):
        for key, item in value.items() if isinstance(value, dict) else enumerate(value):
            yield from leaves(item, (*path, key))
    else:
        yield path, value


def others(value):
    """Make other values of a kind: half, double and one more; another hash, currency or choice."""
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, str):
        return [
            f"{value}x",
            "0" * 64,
            "-".join(["0" * 12] * 3),
            "EUR",
            *sorted(WORDS - {value} if value in WORDS else ()),
        ]
    return (
        [1, 2.0] if value is None else {value + 1, value * 2, value // 2 if type(value) is int else value / 2} - {value}
    )


def test_another_value_is_refused_by_name_or_nothing_else_states_it():
    believed, refusals = set[str](), set[str]()
    for path, value in leaves(json.loads(TEXT)):
        name = "".join("[]" if isinstance(key, int) else f".{key}" for key in path)[1:]
        # an older version is read as what it had
        for other in () if name in believed or name == "version" else others(value):
            document = place = json.loads(TEXT)
            for key in path[:-1]:
                place = place[key]
            place[path[-1]] = other
            try:
                plan = from_json(json.dumps(document), "plan.json")
            except PlanError as error:
                refusals.add(str(error))
                continue
            assert json.loads(to_json(plan)) == document, name
            believed.add(name)
            break
    # A new field belongs to these lists, or gets a law.
    assert {name for name in believed if not name.startswith(RECORDS) and "verification." not in name} == set(
        STATED_ONCE.split()
    )
    assert {
        each for each in refusals if not re.match(r"plan\.json: \w+[.\[][\w.'\[\]-]+: |plan\.json has version", each)
    } == set()
