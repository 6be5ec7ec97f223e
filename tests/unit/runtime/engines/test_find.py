from dataclasses import MISSING, dataclass, fields
from importlib import import_module
from importlib.metadata import EntryPoint
from typing import ClassVar

import pytest
from click.testing import CliRunner
from wording import names

from heterps_compile.cli.main import command
from heterps_compile.errors import InputError, PlugInError, UnknownNameError
from heterps_compile.options import Asked
from heterps_compile.runtime.engines import find
from heterps_compile.runtime.engines.contract import Capabilities, Engine, Written
from heterps_compile.runtime.engines.find import ENGINES, find_engine
from heterps_compile.runtime.engines.launch_options import ABOUT_LOSSES, ENGINE_NAMES, LAUNCH, subject

OF_THE_COMMAND = {"on", "only_print", *ABOUT_LOSSES}


def asked(name: str, **given) -> Asked:
    values = {option.name: option.default for option in LAUNCH.options} | {"on": name} | given
    return Asked(LAUNCH, values, {"on", *given}, subject(name))


def kind_of(name: str) -> type[Engine]:
    module, _, attribute = ENGINES[name].partition(":")
    return getattr(import_module(module), attribute)


@pytest.mark.parametrize("name", ENGINE_NAMES)
def test_an_engine_has_a_field_for_every_option_that_names_it_with_the_same_default(name):
    kind = kind_of(name)
    declared = {o.name: o.default for o in LAUNCH.options if LAUNCH.honours(o, subject(name))}
    made = {one.name: None if one.default is MISSING else one.default for one in fields(kind)}
    assert made == {key: value for key, value in declared.items() if key not in OF_THE_COMMAND}
    assert (kind.name, type(find_engine(asked(name)))) == (name, kind)


def test_the_engines_of_the_help_are_those_that_there_are():
    assert tuple(ENGINES) == ENGINE_NAMES


def test_an_unknown_engine_and_an_option_of_another_are_told_in_one_sentence():
    with pytest.raises(UnknownNameError, match=r"'shh'.*'ssh'"):
        find_engine(asked("shh"))
    done = CliRunner().invoke(command, ["launch", "m.heterps", "--on", "slurm", "--max-restarts", "2"])
    assert done.exit_code == 2
    assert names(done.stderr, "--max-restarts", "--on ssh", "--on ray", "--on kubernetes")


@dataclass(frozen=True, slots=True)
class Night(Engine):
    """Of another package."""

    name: ClassVar[str] = "night"
    capabilities: ClassVar[Capabilities] = Capabilities(starts=False)
    queue: str = "day"

    def check(self, job):
        pass

    def write(self, job):
        return [Written(self.queue, "#")]


def plug_in(monkeypatch, what: str) -> None:
    entry = EntryPoint("night", f"{__name__}:{what}", find.GROUP)
    monkeypatch.setattr(find, "entry_points", lambda group: [entry] if group == find.GROUP else [])


def test_an_engine_of_another_package_has_its_options_by_name(monkeypatch):
    plug_in(monkeypatch, "Night")
    assert find_engine(asked("night", engine_options=(("queue", "late"),))) == Night("late")
    with pytest.raises(InputError, match=r"unexpected.*'when'.*--engine-option"):
        find_engine(asked("night", engine_options=(("when", "now"),)))


def test_what_is_no_engine_is_told(monkeypatch):
    plug_in(monkeypatch, "plug_in")
    with pytest.raises(PlugInError, match="Engine"):
        find_engine(asked("night"))
