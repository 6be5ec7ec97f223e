"""``heterps-compile bench MODEL``: one table, one plot."""

from pathlib import Path

from commands import heterps
from light_models import path
from onnx_files import click_model, save
from wording import names


def test_methods_are_compared_in_a_table_and_a_plot(tmp_path: Path) -> None:
    done = heterps("bench", path("squeezenet"), "--methods", "exact,gpu-only", "--plot", "m.svg", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    exact, gpu = (line.split() for line in done.stdout.splitlines() if line.startswith(("exact", "gpu-only")))
    assert exact[2:4] == ["USD", "1.000"]
    assert float(gpu[3]) > 1
    assert (tmp_path / "m.svg").read_text().startswith("<svg")


def test_a_plot_that_cannot_be_written_is_one_clear_error(tmp_path: Path) -> None:
    done = heterps("bench", path("squeezenet"), "--methods", "exact", "--plot", "no/m.svg", cwd=tmp_path)
    assert done.returncode == 1
    assert names(done.stderr, "Error: --plot 'no/m.svg'", "mkdir -p")


def test_open_dimensions_get_their_numbers(tmp_path: Path) -> None:
    model = save(click_model(), tmp_path / "click.onnx")
    done = heterps("bench", model, "--methods", "exact", "--shape", "N=8", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert "1.000" in done.stdout
