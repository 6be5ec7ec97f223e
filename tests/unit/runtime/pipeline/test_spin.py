"""How long a waiting rank spins, drawn: L a long spin, s a short one, - none."""

from heterps_compile.runtime.pipeline.shared_memory.spin import Spin, WaitPolicy


def spins(found: str, *, has_core: bool = True) -> str:
    """Draw the spins of a rank that finds (f) its message or spins in vain (v)."""
    spin, drawn = Spin(WaitPolicy(), has_core=has_core), ""
    for one in found:
        drawn += {2e-3: "L", 20e-6: "s", 0.0: "-"}[spin.longest_s]
        (spin.found if one == "f" else spin.in_vain)()
    return drawn


def test_spins_are_long_as_long_as_they_find():
    assert spins("ffffffff") == "LLLLLLLL"


def test_every_long_spin_in_vain_is_followed_by_twice_as_many_short_ones():
    assert spins("v" * 19) == "LsLssLssssLssssssss"
    drawn = spins("v" * 2000)
    assert max(len(short) for short in drawn.split("L")) == 256


def test_short_spins_that_find_bring_a_long_one_no_sooner():
    assert spins("vv" + "vff" + "vffff" + "f") == "Ls" + "Lss" + "Lssss" + "L"


def test_long_spins_that_find_halve_what_follows_one_in_vain():
    assert spins("vv" + "vvv" + "ff" + "vv" + "v") == "Ls" + "Lss" + "LL" + "Ls" + "L"


def test_ranks_that_share_cores_do_not_spin():
    assert spins("vfvf", has_core=False) == "----"
