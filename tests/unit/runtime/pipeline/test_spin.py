"""How long a waiting rank looks, drawn: L a long look, s a short one; what was found is a capital or small letter F."""

from heterps_compile.runtime.pipeline.shared_memory.spin import Look


def looks(found: str, *, has_core: bool = True) -> str:
    """Draw the looks of a rank that finds (f) its message or looks in vain (v)."""
    look, drawn = Look(has_core=has_core), ""
    for one in found:
        drawn += {2e-3: "L", 20e-6: "s", 0.0: "-"}[look.longest_s]
        (look.found if one == "f" else look.in_vain)()
    return drawn


def test_looks_are_long_as_long_as_they_find():
    assert looks("ffffffff") == "LLLLLLLL"


def test_every_long_look_in_vain_is_followed_by_twice_as_many_short_ones():
    assert looks("v" * 19) == "LsLssLssssLssssssss"
    drawn = looks("v" * 2000)
    assert max(len(short) for short in drawn.split("L")) == 256


def test_short_looks_that_find_bring_a_long_one_no_sooner():
    assert looks("vv" + "vff" + "vffff" + "f") == "Ls" + "Lss" + "Lssss" + "L"


def test_long_looks_that_find_halve_what_follows_one_in_vain():
    assert looks("vv" + "vvv" + "ff" + "vv" + "v") == "Ls" + "Lss" + "LL" + "Ls" + "L"


def test_ranks_that_share_cores_do_not_look():
    assert looks("vfvf", has_core=False) == "----"
