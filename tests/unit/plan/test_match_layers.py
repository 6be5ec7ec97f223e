from heterps_compile.plan.match_layers import match_layers


def fingerprint(own: str, before: str = "", after: str = "") -> str:
    """Return a fingerprint whose last two parts are those of a layer alone in its model, where not given."""
    return "-".join(part.rjust(12, "0") for part in (own, before or f"b{own}", after or f"a{own}"))


def test_layers_are_found_whatever_they_are_called():
    old = {"a": fingerprint("1"), "b": fingerprint("2")}
    assert match_layers(old, {"x": fingerprint("2"), "y": fingerprint("1")}) == {"a": "y", "b": "x"}


def test_a_structure_counts_for_more_than_a_name():
    old = {"conv_1": fingerprint("1"), "conv_2": fingerprint("2")}
    assert match_layers(old, {"conv_1": fingerprint("2"), "conv_2": fingerprint("1")}) == {
        "conv_1": "conv_2",
        "conv_2": "conv_1",
    }


def test_among_equal_structures_equal_names_come_first_and_then_the_order():
    old = dict.fromkeys("abc", fingerprint("1"))
    assert match_layers(old, dict.fromkeys("xby", fingerprint("1"))) == {"a": "x", "b": "b", "c": "y"}


def test_numbers_that_moved_by_one_do_not_mislead():
    old = {f"conv_{i}": fingerprint("7", str(i), str(9 - i)) for i in range(6)}
    new = {}
    for i in range(7):
        before, after = (str(i) if i < 3 else f"e{i}"), (str(10 - i) if i > 3 else f"f{i}")
        new[f"conv_{i}"] = fingerprint("8" if i == 3 else "7", before, after)
    assert match_layers(old, new) == {f"conv_{i}": f"conv_{i if i < 3 else i + 1}" for i in range(6)}


def test_cheap_nodes_that_went_to_a_neighbour_do_not_mislead():
    old = {"a": fingerprint("1", "b1", "a1"), "b": fingerprint("2", "b2", "a2")}
    new = {"x": fingerprint("3", "b2", "a2"), "y": fingerprint("2", "b1", "a1")}
    assert match_layers(old, new) == {"a": "y", "b": "x"}


def test_a_layer_that_is_another_computation_keeps_its_name():
    assert match_layers({"a": fingerprint("1")}, {"a": fingerprint("2")}) == {"a": "a"}


def test_without_fingerprints_names_alone_count():
    assert match_layers({"a": "", "b": ""}, {"b": "", "c": fingerprint("1")}) == {"b": "b"}


def test_what_one_plan_lacks_is_in_no_pair():
    assert match_layers({"a": fingerprint("1")}, {"b": fingerprint("2")}) == {}
