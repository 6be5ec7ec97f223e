import json

import pytest
from profiles import PROFILE

from heterps_compile.cost.profile import Crowding
from heterps_compile.cost.profile_file import from_json, json_schema, published_schema, read_profile, to_json
from heterps_compile.cost.step_rates import OptimizerRate, StepRates
from heterps_compile.errors import InputError
from heterps_compile.plan.file import render


def changed(**changes: object) -> str:
    return json.dumps({**json.loads(to_json(PROFILE)), **changes})


def with_point(**changes: object) -> str:
    document = json.loads(to_json(PROFILE))
    document["devices"][0]["layers"][0]["points"][0].update(changes)
    return json.dumps(document)


def test_what_is_written_reads_back(tmp_path):
    path = tmp_path / "profile.json"
    path.write_text(to_json(PROFILE))
    assert read_profile(path) == PROFILE


def test_two_entries_of_one_key_are_refused_with_both_times():
    document = json.loads(to_json(PROFILE))
    layers = document["devices"][0]["layers"]
    again = json.loads(json.dumps(layers[0])) | {"name": "again"}
    again["points"][0]["forward"]["median_s"] = 0.75
    first_s = layers[0]["points"][0]["forward"]["median_s"]
    layers.append(again)
    with pytest.raises(InputError) as caught:
        from_json(json.dumps(document), "the file")
    name, key = layers[0]["name"], layers[0]["keys"][0]
    said = f"the key {key!r} has two entries, {name!r} with a forward of {first_s} s and 'again' with 0.75 s; keep"
    assert said in str(caught.value)


def test_the_published_schema_is_that_of_the_classes():
    assert published_schema() == render(json_schema()) + "\n"  # write it anew: tools/write_schema.py


def test_the_schema_refuses_unknown_keys_as_reading_does():
    schema = json.loads(published_schema())
    parts = [schema, *schema["$defs"].values()]
    assert [part.get("additionalProperties") for part in parts] == [False] * len(parts)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("{", "is not JSON"),
        ("[]", "its key 'format'"),
        ("[" * 100_000, "brackets too deep"),
        ('{"format": NaN}', "NaN is no number"),
        (changed(version=5), "has version 5, and 1, 2, 3, 4 is"),
        (changed(version=True), "has version True"),
        (changed(version=1.0), "has version 1.0"),
        (changed(devices=[]), "devices: "),
        (changed(extra=1), "extra: "),
        (changed(measured="today"), "measured: "),
        (with_point(forward={"median_s": -1.0, "spread_s": 0.0}), "forward.median_s"),
        (with_point(forward={"median_s": "1", "spread_s": 0.0}), "forward.median_s"),
        (with_point(forward={"median_s": 1e300, "spread_s": 0.0}), "forward.median_s"),
        (with_point(batch=0), "points[0].batch"),
        (with_point(batch=10**400), "points[0].batch"),
        (with_point(batch=32), "batches must ascend"),
        (
            with_point(backward={"median_s": 1.0, "spread_s": 0.0}),
            "backward of layer 'layer a' at batch 8 must be null",
        ),
    ],
)
def test_what_is_wrong_is_refused_with_its_place(text, told):
    with pytest.raises(InputError) as refused:
        from_json(text, "the file")
    assert told in str(refused.value)


def test_numbers_that_are_none_are_refused():
    text = to_json(PROFILE).replace('"median_s": 0.002', '"median_s": Infinity')
    with pytest.raises(InputError, match="Infinity"):
        from_json(text, "the file")


def test_a_name_cannot_play_tricks_on_the_terminal():
    text = changed(model=5, measured="\x1b[2J")
    with pytest.raises(InputError) as refused:
        from_json(text, "the file")
    assert str(refused.value).isprintable()


def test_a_file_that_is_missing_or_no_text_is_told(tmp_path):
    with pytest.raises(InputError, match="read"):
        read_profile(tmp_path / "none.json")
    (tmp_path / "bytes.json").write_bytes(b"\xff\xfe")
    with pytest.raises(InputError, match="UTF-8"):
        read_profile(tmp_path / "bytes.json")


def with_fraction(changes: dict[str, object], version: int = 2) -> str:
    document = json.loads(to_json(PROFILE))
    document["version"] = version
    document["devices"][0]["layers"][0]["compute_parallel"] = {"value": 0.5, "error": 0.1, "units": [1, 2], **changes}
    return json.dumps(document)


def test_version_1_is_read():
    document = json.loads(to_json(PROFILE))
    document["version"] = 1
    assert document["devices"][0].pop("crowding") is None
    assert document["devices"][0].pop("step_rates") is None
    for layer in document["devices"][0]["layers"]:
        assert (layer.pop("compute_parallel"), layer.pop("data_parallel"), layer.pop("served")) == (None, None, [])
    del document["devices"][0]["compute_parallel"]["unclipped"]
    assert from_json(json.dumps(document), "the file") == PROFILE
    fraction = from_json(with_fraction({}), "the file").devices[0].layers[0].compute_parallel
    assert fraction is not None
    assert (fraction.value, fraction.error, fraction.units, fraction.unclipped) == (0.5, 0.1, (1, 2), None)


def with_crowding(changes: dict[str, object], version: int = 3) -> str:
    document = json.loads(to_json(PROFILE))
    document["version"] = version
    document["devices"][0]["crowding"] = {"factor": 1.2, "spread": 0.05, "others": 3, "batch": 8, **changes}
    return json.dumps(document)


RATES = {
    "moved_per_s": 8e9, "selected_per_s": 2e8, "chosen_per_s": 3e7, "placed_per_s": 4e8, "combined_per_s": 3e8,
    "optimizers": [{"name": "sgd", "tensor_s": 3e-6, "bytes_per_s": 2e10}],
}  # fmt: skip


def with_rates(changes: dict[str, object], version: int = 4) -> str:
    document = json.loads(to_json(PROFILE))
    document["version"] = version
    document["devices"][0]["step_rates"] = {**RATES, **changes}
    return json.dumps(document)


def test_what_a_step_has_besides_layers_came_with_version_4():
    read = from_json(with_rates({}), "the file")
    assert read.devices[0].step_rates == StepRates(8e9, 2e8, 3e7, 4e8, 3e8, (OptimizerRate("sgd", 3e-6, 2e10),))
    assert from_json(to_json(read), "the file") == read


@pytest.mark.parametrize(
    "changes",
    [
        {"moved_per_s": 0.0}, {"selected_per_s": -1.0}, {"placed_per_s": "1"}, {"combined_per_s": 1e300}, {"more": 1},
        {"optimizers": [{"name": "lion", "tensor_s": 0.0, "bytes_per_s": 1.0}]},
        {"optimizers": [{"name": "sgd", "tensor_s": -1.0, "bytes_per_s": 1.0}]},
        {"optimizers": [{"name": "sgd", "tensor_s": 0.0, "bytes_per_s": 1.0}] * 2},
    ],
)  # fmt: skip
def test_rates_that_no_device_has_are_refused(changes):
    with pytest.raises(InputError, match="step_rates"):
        from_json(with_rates(changes), "the file")


def test_what_busy_cores_take_came_with_version_3():
    read = from_json(with_crowding({}), "the file")
    assert read.devices[0].crowding == Crowding(1.2, 0.05, 3, 8)
    assert from_json(to_json(read), "the file") == read


def with_served(version: int = 4, **changes: object) -> str:
    document = json.loads(to_json(PROFILE))
    document["version"] = version
    layer = document["devices"][0]["layers"][1]
    layer["served"] = [{**layer["points"][0], **changes}]
    return json.dumps(document)


def test_layers_with_tables_on_servers_came_with_version_4():
    read = from_json(with_served(forward={"median_s": 3e-4, "spread_s": 0.0}), "the file")
    layer = read.devices[0].layers[1]
    assert [point.forward.median_s for point in layer.served] == [3e-4]
    assert from_json(to_json(read), "the file") == read


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"batch": 0}, "served[0].batch"),
        ({"forward": None}, "served[0].forward"),
        ({"backward": {"median_s": 1.0, "spread_s": 0.0}}, "backward of layer 'layer b' at batch 8 must be null"),
        ({"more": 1}, "served[0].more"),
    ],
)
def test_served_layers_are_read_as_strictly_as_others(changes, told):
    with pytest.raises(InputError) as refused:
        from_json(with_served(**changes), "the file")
    assert told in str(refused.value)


@pytest.mark.parametrize(
    "changes",
    [
        {"factor": 0.0}, {"factor": -1.0}, {"factor": 1e300}, {"factor": "1"}, {"factor": None}, {"spread": -1.0},
        {"others": 0}, {"others": 1.5}, {"batch": 0}, {"more": 1},
    ],
)  # fmt: skip
def test_crowding_that_no_machine_has_is_refused(changes):
    with pytest.raises(InputError, match="crowding"):
        from_json(with_crowding(changes), "the file")


@pytest.mark.parametrize(
    "changes",
    [
        {"value": -0.1}, {"value": 1.1}, {"value": 1e308}, {"value": "1"}, {"value": None}, {"error": -1.0},
        {"error": 1e308}, {"units": []}, {"units": [0]}, {"units": [1.5]}, {"units": 2}, {"unclipped": 1e308},
        {"value": True}, {"more": 1},
    ],
)  # fmt: skip
def test_fractions_that_are_none_are_refused_with_their_place(changes):
    with pytest.raises(InputError, match=r"devices\[0\]\.layers\[0\]\.compute_parallel") as refused:
        from_json(with_fraction(changes), "the file")
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999"])
@pytest.mark.parametrize("name", ["value", "error", "unclipped"])
def test_fractions_that_are_no_numbers_are_refused(name, number):
    text = with_fraction({name: 0.0625}).replace("0.0625", number)
    with pytest.raises(InputError, match=r"number|compute_parallel"):
        from_json(text, "the file")
