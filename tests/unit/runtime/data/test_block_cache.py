"""Blocks of files far away: what is read is the file's, whoever has kept it, and the server is asked for the rest."""

from pathlib import Path

import pytest

from heterps_compile.errors import InputError, RunError
from heterps_compile.runtime.data import block_cache as module
from heterps_compile.runtime.data.block_cache import BlockCache, CachedFile, measure_read, with_blocks_kept
from heterps_compile.runtime.data.open_source import open_source
from heterps_compile.runtime.data.remote_file import RemoteFile

fsspec = pytest.importorskip("fsspec", reason="fsspec is an extra")
CONTENT = bytes(range(256)) * 10 + b"end"
BLOCK = 100


@pytest.fixture
def memory():
    """Return the file system of ``memory://``, empty before and after."""
    system = fsspec.filesystem("memory")
    system.pipe("/b/x.bin", CONTENT)
    yield system
    system.store.clear()
    system.pseudo_dirs[:] = [""]


@pytest.fixture
def asked(memory, monkeypatch):
    """Return the ranges that the server is asked for."""
    found, read = [], RemoteFile.read

    def counting(file, begin, end):
        found.append((begin, end))
        return read(file, begin, end)

    monkeypatch.setattr(RemoteFile, "read", counting)
    return found


FILE = RemoteFile("memory://b/x.bin", len(CONTENT), "ETag 1")


def cache_in(folder: Path) -> BlockCache:
    return BlockCache(folder, block_bytes=BLOCK, least_free_bytes=0)


def test_what_is_read_is_the_file_and_nothing_is_fetched_twice(asked, tmp_path):
    cache = cache_in(tmp_path / "kept")
    for begin, end in ((250, 310), (0, 100), (99, 101), (2500, len(CONTENT)), (0, len(CONTENT)), (7, 7)):
        assert cache.read(FILE, begin, end) == CONTENT[begin:end]
    assert asked == [(200, 400), (0, 100), (100, 200), (2500, 2563), (400, 2500)]
    assert cache.counts == {"remote": 60 + 100 + 1 + 63 + 2100, "disk": 1 + 463}
    other = cache_in(tmp_path / "kept")  # of another rank
    assert other.read(FILE, 0, len(CONTENT)) == CONTENT
    assert other.counts == {"disk": len(CONTENT)}
    assert len(asked) == 5


def test_another_version_is_another_file_and_a_damaged_block_is_fetched_again(asked, tmp_path):
    cache_in(tmp_path / "kept").read(FILE, 0, 300)
    other = RemoteFile(FILE.url, FILE.size_bytes, "ETag 2")
    assert cache_in(tmp_path / "kept").read(other, 0, 100) == CONTENT[:100]
    assert asked == [(0, 300), (0, 100)]
    (kept,) = [path for path in (tmp_path / "kept").iterdir() if (path / "1").exists()]
    (kept / "1").write_bytes((kept / "1").read_bytes()[:-1] + b"?")
    (kept / "2").write_bytes(b"")
    again = cache_in(tmp_path / "kept")
    assert again.read(FILE, 0, 300) == CONTENT[:300]
    assert asked[2:] == [(100, 300)]
    assert again.counts == {"disk": 100, "remote": 200}
    assert cache_in(tmp_path / "kept").read(FILE, 100, 200) == CONTENT[100:200]
    assert len(asked) == 3


def test_a_request_that_fails_leaves_no_block(asked, tmp_path, monkeypatch):
    cache = cache_in(tmp_path / "kept")
    served = RemoteFile.read
    monkeypatch.setattr(RemoteFile, "read", lambda *_: (_ for _ in ()).throw(RunError("the network is gone")))
    with pytest.raises(RunError, match="network"):
        cache.read(FILE, 0, 300)
    monkeypatch.setattr(RemoteFile, "read", served)
    assert cache.read(FILE, 0, 300) == CONTENT[:300]
    assert asked == [(0, 300)]


def test_ranks_that_begin_a_file_together_read_the_file(asked, tmp_path):
    one, other = cache_in(tmp_path / "kept"), cache_in(tmp_path / "kept")
    for begin in range(0, len(CONTENT) - 250, 250):
        assert (
            one.read(FILE, begin, begin + 250) == other.read(FILE, begin, begin + 250) == CONTENT[begin : begin + 250]
        )
    assert len(asked) == len(range(0, len(CONTENT) - 250, 250)), "the other fetches nothing"


def test_a_disk_that_is_full_is_told_once_and_the_data_are_read_all_the_same(asked, tmp_path, capsys):
    cache = BlockCache(tmp_path / "kept", block_bytes=BLOCK, least_free_bytes=2**80)
    assert cache.read(FILE, 0, 250) == CONTENT[:250]
    assert cache.read(FILE, 900, 1000) == CONTENT[900:1000]
    assert capsys.readouterr().err.count(str(tmp_path / "kept")) == 1
    assert list((tmp_path / "kept").iterdir()) == []


def test_a_source_reads_through_the_folder_that_the_environment_names(memory, asked, tmp_path, monkeypatch):
    rows = "".join(f"{n},{n % 2}\n" for n in range(1000))
    memory.pipe("/b/x.csv", f"x,y\n{rows}".encode())
    monkeypatch.setenv("HETERPS_DATA_CACHE", str(tmp_path / "kept"))
    measure_read()
    for _ in range(2):
        assert open_source("memory://b/x.csv").read(300, 3, ["x"])["x"].tolist() == [300, 301, 302]
    read = measure_read()["data_bytes"]
    assert read["remote"] > 0
    assert read["disk"] > 0
    assert measure_read() == {"data_bytes": {}}
    assert len(asked) == 1
    monkeypatch.delenv("HETERPS_DATA_CACHE")
    open_source("memory://b/x.csv").read(0, 3, ["x"])
    assert len(asked) > 1


def test_a_file_without_a_version_and_a_folder_that_cannot_be_written_are_refused(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv(module.VARIABLE, str(tmp_path / "file" / "kept"))
    with pytest.raises(InputError, match=r"ETag.*'memory://b/x.bin'"):
        with_blocks_kept(RemoteFile(FILE.url, 3, ""))
    with pytest.raises(InputError, match=r"files.*HETERPS_DATA_CACHE"):
        with_blocks_kept(FILE)
    monkeypatch.setenv(module.VARIABLE, str(tmp_path / "kept"))
    assert isinstance(with_blocks_kept(FILE), CachedFile)
    monkeypatch.delenv(module.VARIABLE)
    assert with_blocks_kept(FILE) is FILE
