"""``run()`` from Python: what it refuses before anything starts."""

import pytest

from heterps_compile.errors import InputError
from heterps_compile.runtime.launch.run_api import make_options, run
from heterps_compile.runtime.launch.training_file import Training

TRAINING = Training(loss=lambda outputs, batch: outputs, optimizer=lambda parameters: None)


def test_functions_do_not_travel_to_other_processes():
    with pytest.raises(InputError, match=r"a Training object cannot be sent to other processes; name a file instead"):
        run("model.heterps", train=TRAINING, data="random", steps=1)


def test_an_option_that_nobody_knows_is_told():
    with pytest.raises(InputError, match="unexpected keyword argument 'setps'"):
        run("model.heterps", data="random", setps=1)


def test_paths_are_absolute_and_lists_become_tuples(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    options = make_options("m", train="t.py", data="d.tsv", replicas=[2, 1], speeds=[[1.0, 2.0], [1.0]])
    assert options.directory == str(tmp_path / "m")
    assert options.train == str(tmp_path / "t.py")
    assert (options.replicas, options.speeds) == ((2, 1), ((1.0, 2.0), (1.0,)))


def test_a_folder_that_is_not_there_is_told(tmp_path):
    with pytest.raises(InputError, match="does not exist"):
        run(tmp_path / "nowhere", data="random", steps=1)
