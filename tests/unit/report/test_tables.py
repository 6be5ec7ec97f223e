import io
from dataclasses import replace

import pytest
from drafts import CLUSTER, COSTS, LAYERS, renamed
from plans import PLAN, with_stage

from heterps_compile.console import make_console
from heterps_compile.plan.plan import Artifact
from heterps_compile.report.rows import layer_rows
from heterps_compile.report.tables import cluster_table, notes, plan_totals, print_plan

ROWS = layer_rows(PLAN, LAYERS, COSTS)
SAVED = replace(PLAN, artifacts=((Artifact("stage_0.onnx", "d" * 64),), (Artifact("stage_1.onnx", "e" * 64),)))


def printed(plan=SAVED, rows=ROWS, *, width=None, directory="ctr.heterps", all_layers=False) -> str:
    stream = io.StringIO()
    print_plan(make_console(stream, width), plan, rows, directory=directory, all_layers=all_layers)
    return stream.getvalue()


def test_a_plan_reads_well_where_there_is_no_terminal(golden):
    golden("report/plan_120.txt", printed())


def test_a_plan_reads_well_in_80_columns(golden):
    golden("report/plan_80.txt", printed(width=80))


@pytest.mark.parametrize("width", [20, 80, 99, 100, 120, 300])
def test_no_line_is_wider_than_the_terminal(width):
    names = ("encoder.layer.10." * 20, "x" * 500)
    plan = with_stage(SAVED, 1, layers=names, device="d" * 64)
    rows = [replace(row, name=names[0], device="d" * 64) for row in ROWS]
    assert max(map(len, printed(plan, rows, width=width).splitlines())) <= max(80, width)


def test_nothing_but_text_is_printed_where_there_is_no_terminal():
    assert printed().replace("\n", "").isprintable()


def rows_of(count: int) -> list:
    return [replace(ROWS[0], name=f"layer{i}") for i in range(count)]


def test_a_long_table_shows_its_ends_and_says_how_many_it_hides():
    text = printed(rows=rows_of(100))
    assert "layer7 " in text
    assert "layer8 " not in text
    assert "… 84 more; -v shows all" in text
    assert "layer91 " not in text
    assert "layer92 " in text


def test_a_table_of_sixteen_layers_is_whole():
    text = printed(rows=rows_of(16))
    assert all(f"layer{i} " in text for i in range(16))
    assert "more; -v" not in text


def test_all_layers_are_shown_on_demand():
    text = printed(rows=rows_of(100), all_layers=True)
    assert all(f"layer{i} " in text for i in range(100))


@pytest.mark.parametrize("evil", ["\x1b[31mred\x07", "[red]x[/red]", "[/]", "a\nb", ":smile:", "\u202eabc", "\ud800"])
def test_a_name_is_text_and_nothing_else(evil):
    draft = renamed(evil)
    plan = replace(with_stage(SAVED, 0, layers=(evil,), device=evil), model=evil, unused_devices=(evil,), notes=(evil,))
    text = printed(plan, layer_rows(plan, draft.layers, COSTS), directory=evil)
    assert text.replace("\n", "").isprintable()
    assert evil in text or not evil.isprintable()


def test_parameters_are_counted_in_elements_and_tied_ones_once():
    assert [row.parameters for row in ROWS] == [1000 * 16, 29 * 32, 32]
    tied = replace(
        LAYERS.graph,
        parameters={
            "table": LAYERS.graph.parameters["table"],
            "again": replace(LAYERS.graph.parameters["table"], name="again"),
            "const": replace(LAYERS.graph.parameters["w1"], name="const", storage="const", kind="constant"),
        },
    )
    layer = replace(LAYERS.layers[0], parameters=("table", "again", "const"))
    rows = layer_rows(with_stage(PLAN, 0, layers=("emb",)), replace(LAYERS, graph=tied, layers=(layer,)), COSTS[:1])
    assert rows[0].parameters == 16000


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, "0.05 USD per million samples (steady state): no plan that keeps these 3 layers in this order is"),
        (
            {"bound": PLAN.value},
            "0.0503 USD per million samples (steady state): no plan that keeps these 3 layers in this",
        ),
        ({"bound": 0.0}, "proven bound         none"),
        ({"verification": None}, "verified             no (--no-verify)"),
        ({"currency": "EUR"}, "price                2.90 EUR/h"),
        (
            {},
            "steady state         16,000 samples/s, a batch every 4 ms, bubble 1.92 % (floor 1,000 samples/s",
        ),
        (
            {"request": replace(PLAN.request, min_throughput=0.0)},
            "16,000 samples/s, a batch every 4 ms, bubble 1.92 %\n",
        ),
        ({"request": replace(PLAN.request, mode="training")}, "(a training run's, where steps cannot overlap)"),
    ],
)
def test_the_totals_say(changes, said):
    assert said in printed(replace(SAVED, **changes))


def test_a_training_run_below_the_floor_is_said_to_be_below_it():
    asked = replace(PLAN.request, mode="training", reading="steady-state", min_throughput=8000.0)
    rows = dict(plan_totals(replace(PLAN, request=asked)))
    assert rows["one batch alone"].endswith("(a training run's, where steps cannot overlap, below the floor)")
    assert rows["steady state"].endswith("(floor 8,000 samples/s, held here)")


def test_a_plan_of_the_best_step_is_held_to_the_floor_there_and_says_what_the_steady_state_proves():
    asked = replace(PLAN.request, mode="training", min_throughput=7000.0)
    rows = dict(plan_totals(replace(PLAN, request=asked)))
    assert rows["one batch alone"].endswith("cannot overlap) (floor 7,000 samples/s, held here)")
    assert "floor" not in rows["steady state"]
    assert rows["proven bound"].startswith("0.05 USD per million samples (one batch alone): no plan")
    assert rows["proven bound"].endswith("; the steady state alone proves 0.01 USD per million samples")


def test_the_latency_of_the_search_is_told_from_one_batch_alone():
    rows = dict(plan_totals(replace(PLAN, value=0.02, request=replace(PLAN.request, objective="latency"))))
    assert rows["latency"] == "20 ms a batch, undivided, computation and data one after the other"
    assert "step 9 ms" in rows["one batch alone"]


def test_every_surprise_is_a_note():
    plan = replace(PLAN, replicated=("a", "b", "c", "d", "e"))
    assert notes(plan) == [
        "layer 'fc2': float8 runs at its float32 rate on 'cpu'",
        "no stage uses 't4'",
        "several stages hold 'a', 'b', 'c' and 2 more",
        "the cheapest hourly bill that meets the floor is 0.8 USD/h (-72.4 %), on 20 x cpu at 1,100 samples/s: "
        "--objective price",
    ]


def test_many_files_are_counted():
    files = tuple(Artifact(f"f{i}", "d" * 64) for i in range(9))
    text = printed(replace(SAVED, artifacts=(files[:8], files[8:])))
    assert "plan.json, README.md, f0, f1, f2, f3, f4, f5 and 3 more" in text


def test_a_pool_reads_well(golden):
    stream = io.StringIO()
    make_console(stream, None).print(cluster_table(CLUSTER, 120))
    golden("report/cluster_120.txt", "".join(f"{line.rstrip()}\n" for line in stream.getvalue().splitlines()))


def test_an_ascii_terminal_gets_ascii_lines():
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii", errors="backslashreplace")
    print_plan(make_console(stream, None), SAVED, ROWS, directory=None, all_layers=False)
    stream.flush()
    assert b"\\u" not in stream.buffer.getvalue()


@pytest.mark.parametrize("width", [80, 99, 120])
def test_no_line_ends_in_spaces(width):
    assert [line for line in printed(width=width).splitlines() if line != line.rstrip()] == []
