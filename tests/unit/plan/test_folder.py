import hashlib
import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from plans import PLAN, as_read, with_stage, write_two_stages

from heterps_compile.errors import BackendError, InputError, PlanError, StalePlanError
from heterps_compile.plan import folder
from heterps_compile.plan.file import from_json, to_json
from heterps_compile.plan.folder import check_target, read_folder, write_folder
from heterps_compile.plan.readme import readme

FILES = [".heterps-compile", "README.md", "plan.json", "stage_0.onnx", "stage_1.onnx", "stage_1.onnx.data"]


def tree(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def written(tmp_path):
    write_folder(tmp_path / "out", PLAN, write_two_stages)
    return tmp_path / "out"


def test_the_plan_that_comes_back_is_the_plan_in_the_file(tmp_path):
    plan = write_folder(tmp_path / "out", PLAN, write_two_stages)
    assert from_json((tmp_path / "out" / "plan.json").read_text(), "plan.json") == as_read(plan)
    assert replace(plan, artifacts=()) == PLAN


def test_every_artefact_has_its_hash(written):
    plan, _ = read_folder(written)
    assert [[a.file for a in files] for files in plan.artifacts] == [
        ["stage_0.onnx"],
        ["stage_1.onnx", "stage_1.onnx.data"],
    ]
    assert plan.artifacts[0][0].sha256 == hashlib.sha256(b"first").hexdigest()


def test_files_of_an_older_plan_are_gone(written):
    def write_fewer(folder):
        (folder / "stage_0.onnx").write_bytes(b"1")
        (folder / "stage_1.onnx").write_bytes(b"2")
        return [["stage_0.onnx"], ["stage_1.onnx"]]

    write_folder(written, PLAN, write_fewer)
    assert sorted(os.listdir(written)) == FILES[:-1]


def test_an_empty_folder_is_taken(tmp_path):
    (tmp_path / "out").mkdir()
    write_folder(tmp_path / "out", PLAN, write_two_stages)
    assert sorted(os.listdir(tmp_path / "out")) == FILES


def test_a_folder_we_ran_from_is_still_ours(written):
    (written / "__pycache__").mkdir()
    write_folder(written, PLAN, write_two_stages)
    assert sorted(os.listdir(written)) == FILES


def test_a_link_to_a_folder_is_followed_and_stays(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    write_folder(tmp_path / "link", PLAN, write_two_stages)
    assert (tmp_path / "link").is_symlink()
    assert sorted(os.listdir(tmp_path / "real")) == FILES


@pytest.mark.parametrize("check", [check_target, lambda d, force: write_folder(d, PLAN, write_two_stages, force=force)])
class TestRefusals:
    def refused(self, check, folder, said, *, force=False):
        before = tree(folder.parent) if folder.parent.is_dir() else None
        with pytest.raises(InputError) as caught:
            check(folder, force=force)
        assert said in str(caught.value)
        assert (tree(folder.parent) if folder.parent.is_dir() else None) == before

    def test_a_folder_we_did_not_write(self, check, tmp_path):
        (tmp_path / "out").mkdir()
        (tmp_path / "out" / "thesis.tex").write_text("years")
        self.refused(check, tmp_path / "out", "was not written by heterps-compile; choose another (-o DIR) or replace")

    def test_a_folder_with_a_plan_but_no_mark(self, check, written):
        (written / ".heterps-compile").unlink()
        self.refused(check, written, "was not written by heterps-compile")

    def test_a_folder_with_somebody_elses_mark(self, check, written):
        (written / ".heterps-compile").write_bytes(b"\xff\xfe")
        self.refused(check, written, "was not written by heterps-compile")

    def test_a_file_added_to_our_folder(self, check, written):
        for name in ("notes.txt", "b", "c", "d\x1b"):
            (written / name).write_text("mine")
        self.refused(check, written, r"did not write ('b', 'c', 'd\x1b' and 1 more) and that would be lost")

    def test_a_file(self, check, tmp_path):
        (tmp_path / "out").write_text("a file")
        self.refused(check, tmp_path / "out", "is a file; name a folder", force=True)

    def test_a_folder_that_cannot_be_written(self, check):
        self.refused(check, Path("/proc/heterps/out"), "cannot write the folder '/proc/heterps/out'")

    def test_a_name_with_a_zero_byte(self, check, tmp_path):
        with pytest.raises(InputError):
            check(f"{tmp_path}/a\0b", force=False)

    def test_the_current_folder_even_by_force(self, check, tmp_path, monkeypatch):
        (tmp_path / "out" / "deep").mkdir(parents=True)
        monkeypatch.chdir(tmp_path / "out" / "deep")
        self.refused(check, tmp_path / "out", "is or holds the current folder", force=True)

    def test_the_home_folder_even_by_force(self, check, tmp_path, monkeypatch):
        (tmp_path / "home" / "me").mkdir(parents=True)
        monkeypatch.setenv("HOME", str(tmp_path / "home" / "me"))
        self.refused(check, tmp_path / "home", "is or holds the current folder, the home", force=True)

    def test_a_mounted_disk_even_by_force(self, check, tmp_path, monkeypatch):
        (tmp_path / "disk").mkdir()
        monkeypatch.setattr(os.path, "ismount", lambda path: path == tmp_path / "disk")
        self.refused(check, tmp_path / "disk", "mounted disk", force=True)


def test_force_replaces_a_folder_we_did_not_write(tmp_path):
    (tmp_path / "out" / "deep").mkdir(parents=True)
    (tmp_path / "out" / "deep" / "file").write_text("gone")
    write_folder(tmp_path / "out", PLAN, write_two_stages, force=True)
    assert sorted(os.listdir(tmp_path / "out")) == FILES


def test_checking_leaves_nothing_behind(tmp_path):
    assert check_target(tmp_path / "x" / "out", force=False) == tmp_path / "x" / "out"
    assert os.listdir(tmp_path) == []


def test_a_file_that_comes_while_we_write_is_not_lost(written):
    def write_slowly(folder):
        (written / "notes.txt").write_text("mine")
        return write_two_stages(folder)

    with pytest.raises(InputError, match=r"'notes\.txt'"):
        write_folder(written, PLAN, write_slowly)
    assert (written / "notes.txt").read_text() == "mine"
    assert os.listdir(written.parent) == ["out"]


@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError, BackendError("no")])
def test_a_failure_while_writing_stages_keeps_the_old_folder(written, error):
    before = tree(written.parent)

    def write_half(folder):
        (folder / "stage_0.onnx").write_bytes(b"half")
        raise error

    with pytest.raises(error if isinstance(error, type) else type(error)):
        write_folder(written, replace(PLAN, model="other"), write_half)
    assert tree(written.parent) == before


def test_a_full_disk_is_an_input_error(tmp_path):
    def write_too_much(_folder):
        raise OSError(28, "No space left on device")

    with pytest.raises(InputError, match="No space left on device"):
        write_folder(tmp_path / "out", PLAN, write_too_much)
    assert os.listdir(tmp_path) == []


def test_a_plan_that_cannot_be_written_writes_nothing(tmp_path):
    with pytest.raises(PlanError, match="replicas"):
        write_folder(tmp_path / "out", with_stage(PLAN, 0, replicas=0), write_two_stages)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("name", ["../evil", "/evil", ".hidden", "a b", "a\nb", "plan.json", "README.md", ""])
def test_a_backend_cannot_choose_a_bad_name(tmp_path, name):
    with pytest.raises(BackendError):
        write_folder(tmp_path / "out", PLAN, lambda _folder: [[name], ["stage_1.onnx"]])
    assert os.listdir(tmp_path) == []


def test_a_backend_must_name_what_it_writes(tmp_path):
    with pytest.raises(BackendError, match=r"\['stage_1.onnx.data'\]"):
        write_folder(tmp_path / "out", PLAN, lambda folder: [names[:1] for names in write_two_stages(folder)])
    with pytest.raises(BackendError, match=r"\['stage_9.onnx'\]"):
        write_folder(tmp_path / "out", PLAN, lambda folder: [*write_two_stages(folder)[:1], ["stage_9.onnx"]])


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda f: (f / "stage_0.onnx").write_bytes(b"First"), "'stage_0.onnx' in '{}' is not the file the plan was"),
        (lambda f: (f / "stage_1.onnx.data").unlink(), "'{}' lacks 'stage_1.onnx.data', which its plan names"),
        (lambda f: shutil.move(f / "stage_0.onnx", f / "x") and (f / "stage_0.onnx").symlink_to("x"), "is a link or"),
        (lambda f: (f / "stage_0.onnx").unlink() or (f / "stage_0.onnx").mkdir(), "is a link or folder"),
    ],
)
def test_an_artefact_that_changed_is_named(written, damage, said):
    damage(written)
    with pytest.raises(StalePlanError) as caught:
        read_folder(written)
    assert said.format(written) in str(caught.value)


def test_a_plan_that_leads_out_of_its_folder_is_refused(written):
    plan = written / "plan.json"
    plan.write_text(plan.read_text().replace("stage_0.onnx", "../secret"))
    with pytest.raises(PlanError, match=r"artifacts\[0\]\[0\].file.*String.*match"):
        read_folder(written)


@pytest.mark.parametrize(
    ("prepare", "error", "said"),
    [
        (shutil.rmtree, InputError, "does not exist; expected a folder that heterps-compile wrote"),
        (lambda f: shutil.rmtree(f) or f.write_text("x"), InputError, "is a file; expected a folder"),
        (lambda f: (f / "plan.json").unlink(), InputError, "is no compiled folder: it has no plan.json"),
        (lambda f: (f / "plan.json").write_bytes(b"\xff"), InputError, "plan.json': it is no UTF-8 text"),
        (lambda f: (f / "plan.json").write_text("{"), PlanError, "plan.json is not JSON"),
        (lambda f: (f / "plan.json").unlink() or (f / "plan.json").mkdir(), InputError, "Is a directory"),
    ],
)
def test_what_is_no_compiled_folder_says_so(written, prepare, error, said):
    prepare(written)
    with pytest.raises(error) as caught:
        read_folder(written)
    assert said in str(caught.value)


def test_a_plan_without_artefacts_cannot_be_run(written):
    (written / "plan.json").write_text(to_json(PLAN))
    with pytest.raises(PlanError):
        read_folder(written)


def test_the_readme_reads_well(golden, written):
    golden("plan/README.md", (written / "README.md").read_text())


def test_the_readme_of_a_plan_for_training_says_how_to_train(tmp_path):
    plan = replace(PLAN, request=replace(PLAN.request, mode="training", reading="steady-state"))
    text = readme(write_folder(tmp_path / "out", plan, write_two_stages))
    assert "heterps-compile run path/to/this/folder --train train.py --data data.parquet" in text


def test_names_in_the_readme_are_only_names(tmp_path):
    evil = "<script>alert(1)</script>|`x`\n# Heading [link](http://x) \x1b[31m"
    plan = replace(PLAN, model=evil, cluster=evil, graph_inputs=(*PLAN.graph_inputs, evil))
    text = readme(write_folder(tmp_path / "out", plan, write_two_stages))
    assert "<script>" not in text
    assert "\x1b" not in text
    assert [line for line in text.splitlines() if line.startswith("#")][1:] == [
        "## Run it",
        "## Stages",
        "## Estimates",
    ]
    assert r"\[link\](http:\//x)" in text


def test_a_text_of_one_byte_too_many_is_refused_and_not_cut_off(tmp_path, monkeypatch):
    monkeypatch.setattr(folder, "MAX_TEXT_BYTES", 8)
    (tmp_path / "plan.json").write_text("12345678", "utf-8")
    assert folder.read_text(tmp_path / "plan.json") == "12345678"
    (tmp_path / "plan.json").write_text("123456789", "utf-8")
    with pytest.raises(ValueError, match=r"\b8\b"):
        folder.read_text(tmp_path / "plan.json")
