from dataclasses import replace
from io import StringIO

from drafts import COSTS, LAYERS
from plans import PLAN, with_stage

from heterps_compile.console import make_console
from heterps_compile.report.layer_columns import layer_table
from heterps_compile.report.rows import layer_rows

ROWS = layer_rows(PLAN, LAYERS, COSTS)


def printed(rows, width) -> str:
    stream = StringIO()
    console = make_console(stream, width)
    console.print(layer_table(rows, console.width))
    return stream.getvalue()


def test_layers_read_well(golden):
    golden("report/layers.txt", printed(ROWS, 120))


def test_names_with_a_common_prefix_differ_in_the_table():
    names = [f"/model/encoder/layers.{i}/self_attn/{part}_proj/MatMul" for i in range(30) for part in "qk"]
    lines = printed([replace(ROWS[0], name=name) for name in names], 80).splitlines()[2:]
    assert len({line.split()[0] for line in lines}) == len(names)
    assert max(map(len, lines)) <= 80


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
