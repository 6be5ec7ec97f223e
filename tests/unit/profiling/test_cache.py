import pytest

from heterps_compile.cost.profile import Timing
from heterps_compile.errors import InputError
from heterps_compile.plan.whole_file import check_writable
from heterps_compile.profiling.cache import Cache
from heterps_compile.profiling.chain import LayerTiming

TIMES = LayerTiming(Timing(1.0, 0.1), Timing(2.0, 0.2), None)
IDENTITY = ("key", 8, "a processor", "torch", {"torch": "2.13"}, "training", 1, "cpu")


def test_times_are_found_again_by_all_that_they_depend_on(tmp_path):
    path = tmp_path / "cache.json"
    cache = Cache(path)
    cache.keep(IDENTITY, TIMES)
    cache.save()
    again = Cache(path)
    assert again.find(IDENTITY) == TIMES
    for place in range(len(IDENTITY)):
        other = (*IDENTITY[:place], "other", *IDENTITY[place + 1 :])
        assert again.find(other) is None


def test_without_a_file_nothing_is_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    cache = Cache(None)
    cache.keep(IDENTITY, TIMES)
    cache.save()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{}",
        '{"format": "heterps-compile profile cache", "version": 2, "times": {}}',
        '{"format": "heterps-compile profile cache", "version": 1, "times": {"no digest": null}}',
    ],
)
def test_what_is_no_cache_is_refused(tmp_path, text):
    path = tmp_path / "cache.json"
    path.write_text(text)
    with pytest.raises(InputError):
        Cache(path)


def test_a_time_that_is_none_is_refused(tmp_path):
    path = tmp_path / "cache.json"
    cache = Cache(path)
    cache.keep(IDENTITY, TIMES)
    cache.save()
    path.write_text(path.read_text().replace("1.0", "-1.0"))
    with pytest.raises(InputError, match="forward"):
        Cache(path)


def test_where_nothing_can_be_written_is_told_before_the_work(tmp_path):
    check_writable(tmp_path / "cache.json")
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(InputError, match=r"'.*cache.json'.*No such file"):
        check_writable(tmp_path / "no" / "cache.json")
