"""Files far away: an S3 server on the loopback interface, fsspec's memory, and servers that fail."""

import os
from dataclasses import replace

import pytest
import torch

from heterps_compile.errors import InputError, RunError
from heterps_compile.runtime.data import remote_file as module
from heterps_compile.runtime.data.identity import difference, identity_of, with_contents
from heterps_compile.runtime.data.open_source import check_spec, open_source
from heterps_compile.runtime.data.remote_file import RemoteFile, is_remote, remote_file

pa = pytest.importorskip("pyarrow", reason="pyarrow is an extra")
pq = pytest.importorskip("pyarrow.parquet")
fsspec = pytest.importorskip("fsspec", reason="fsspec is an extra")

NO_PROXY = {"NO_PROXY": "127.0.0.1,localhost", "no_proxy": "127.0.0.1,localhost"}


@pytest.fixture
def memory():
    """Return the file system of ``memory://``, empty before and after."""
    system = fsspec.filesystem("memory")
    yield system
    system.store.clear()
    system.pseudo_dirs[:] = [""]


def write_table(file, rows=range(10), **options) -> None:
    pq.write_table(pa.table({"x": list(rows), "word": [f"w{n}" for n in rows]}), file, **options)


def test_parquet_csv_and_folders_are_read_where_they_lie(memory, tmp_path):
    with memory.open("/b/0.parquet", "wb") as file:
        write_table(file, row_group_size=4)
    with memory.open("/b/1.parquet", "wb") as file:
        write_table(file, range(10, 13))
    memory.pipe("/c/x.csv", b"x,word\n1,a\n2,b\n")
    check_spec("memory://b/", dict)
    folder = open_source("memory://b/?rows=word:50")
    assert folder.read(2, 10, ["x"])["x"].tolist() == list(range(2, 12))
    assert open_source("memory://b/1*.parquet").samples == 3  # a pattern
    assert open_source("memory://c/x.csv").read(1, 1, ["x"])["x"].tolist() == [2]
    write_table(tmp_path / "0.parquet", row_group_size=4)
    near, far = open_source(f"{tmp_path}/0.parquet?rows=9"), open_source("memory://b/0.parquet?rows=9")
    assert torch.equal(near.read(0, 10, ["word"])["word"], far.read(0, 10, ["word"])["word"])


def test_a_file_that_moves_there_is_the_same_and_another_is_not(memory, tmp_path):
    write_table(tmp_path / "x.parquet")
    memory.pipe("/b/x.parquet", (tmp_path / "x.parquet").read_bytes())
    near, far = open_source(f"{tmp_path}/x.parquet"), open_source("memory://b/x.parquet")
    identities = [with_contents(identity_of(source, "x"), source) for source in (near, far)]
    assert difference(identities[0], identities[1]) is None
    with memory.open("/b/x.parquet", "wb") as file:
        write_table(file, range(1, 11))
    other = open_source("memory://b/x.parquet")
    assert difference(identities[1], with_contents(identity_of(other, "x"), other)) is not None


def test_a_file_that_changes_is_refused(memory):
    memory.pipe("/b/x.csv", b"x\n1\n")
    source = open_source("memory://b/x.csv")
    memory.pipe("/b/x.csv", b"x\n1\n2\n")
    with pytest.raises(RunError, match=r"'memory://b/x.csv'.*\b4\b.*\b6\b"):
        source.read(0, 1, ["x"])


def test_text_of_a_server_that_reports_no_version_is_refused(memory, monkeypatch):
    memory.pipe("/b/x.csv", b"x\n1\n")
    monkeypatch.setattr(module, "_TIMES", ())
    with pytest.raises(InputError, match=r"ETag.*'memory://b/x.csv'"):
        open_source("memory://b/x.csv")


@pytest.mark.parametrize(
    ("spec", "fault"),
    [
        ("memory://b/gone.parquet", "'memory://b/gone.parquet'"),
        ("memory://b/empty.csv", "empty"),
        ("memory://none/", "bucket|files"),
        ("s3://me:secret@b/x.parquet", "'b'.*environment"),
        ("simplecache::memory://b/x.csv", "simplecache"),
        ("file:///x.csv", "file:///x.csv"),
        ("nosuch://b/x.csv", "'nosuch://b/x.csv'.*nosuch"),
        ("hdfs://b/x.json", "x.json"),
    ],
)
def test_what_cannot_be_there_is_refused_in_a_sentence(memory, spec, fault):
    memory.pipe("/b/empty.csv", b"")
    with pytest.raises(InputError, match=fault) as raised:
        open_source(spec)
    assert "secret" not in str(raised.value)


class Flaky:
    """A server that fails so many times."""

    def __init__(self, content: bytes, *failures: Exception) -> None:
        self.content, self.failures = content, list(failures)

    def cat_file(self, path, start, end):
        if self.failures:
            raise self.failures.pop(0)
        return self.content[start:end]


def test_a_request_that_fails_is_tried_again_and_then_told(monkeypatch):
    file = RemoteFile("s3://b/x", 4, "", waits_s=(0.0, 0.0))

    def served_by(server: Flaky) -> None:
        monkeypatch.setattr(module, "_system", lambda url: (server, "b/x"))

    served_by(Flaky(b"abcd", ConnectionError("reset"), TimeoutError()))
    assert file.read(1, 3) == b"bc"
    served_by(Flaky(b"abcd", *[ConnectionError("reset")] * 3))
    with pytest.raises(RunError, match=r"'s3://b/x'.*\b3\b"):
        file.read(0, 2)
    served_by(Flaky(b"abcd", PermissionError("Forbidden")))
    with pytest.raises(InputError, match=r"access.*denied.*Forbidden"):
        file.read(0, 2)
    served_by(Flaky(b"a"))
    with pytest.raises(InputError, match=r"\b1\b.*'s3://b/x'.*\b4\b"):
        replace(file, waits_s=()).read(0, 4)


def test_a_network_that_goes_while_a_table_is_decoded_is_no_damaged_file(memory, monkeypatch):
    with memory.open("/b/x.parquet", "wb") as file:
        write_table(file)
    source = open_source("memory://b/x.parquet")
    monkeypatch.setattr(module.RemoteFile, "read", lambda *_: (_ for _ in ()).throw(RunError("the network is gone")))
    with pytest.raises(RunError, match="network"):
        source.read(0, 1, ["x"])


def test_paths_and_addresses_are_told_apart():
    assert [is_remote(where) for where in ("s3://b/x", "C:/x", "/a://b", "days/", "random:x")] == [True, *[False] * 4]


@pytest.fixture(scope="module")
def bucket():
    """Return the address of a bucket on an S3 server of the loopback interface, and its file system."""
    server_of = pytest.importorskip("moto.server", reason="moto is for tests alone")
    pytest.importorskip("s3fs", reason="s3fs is for tests alone")
    server = server_of.ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    with pytest.MonkeyPatch.context() as patched:
        _, port = server.get_host_and_port()
        environment = {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
            "AWS_ACCESS_KEY_ID": "testing",
            "AWS_SECRET_ACCESS_KEY": "testing",
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_EC2_METADATA_DISABLED": "true",
            **NO_PROXY,
        }
        for name, value in environment.items():
            patched.setenv(name, value)
        for name in [name for name in os.environ if name.lower() in ("http_proxy", "https_proxy", "all_proxy")]:
            patched.delenv(name)
        fsspec.filesystem("s3").clear_instance_cache()
        system = fsspec.filesystem("s3")
        system.mkdir("bucket")
        yield "s3://bucket", system
        system.clear_instance_cache()
    server.stop()


def test_ranges_of_a_bucket_are_read_and_a_change_is_known_by_its_etag(bucket, monkeypatch):
    url, system = bucket
    with system.open(f"{url}/x.parquet", "wb") as file:
        write_table(file, range(20_000), row_group_size=5000)
    ranges = []
    read = RemoteFile.read
    monkeypatch.setattr(RemoteFile, "read", lambda self, a, b: ranges.append(b - a) or read(self, a, b))
    source = open_source(f"{url}/x.parquet?rows=word:1000")
    assert source.read(12_000, 3, ["x"])["x"].tolist() == [12_000, 12_001, 12_002]
    size = remote_file(f"{url}/x.parquet").size_bytes
    assert sum(ranges) < size / 2, "only a group, of it a column, and the footer"
    assert with_contents(identity_of(source, "x"), source).files[0].kind == "ETag"
    with system.open(f"{url}/x.parquet", "wb") as file:
        write_table(file, range(1, 20_001), row_group_size=5000)
    with pytest.raises(RunError, match="ETag"):
        source.read(0, 1, ["x"])
    with pytest.raises(InputError, match="such"):
        open_source("s3://nobody/x.parquet")
    with pytest.raises(InputError, match="such"):
        open_source("s3://nobody/days/")
