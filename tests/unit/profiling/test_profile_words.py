import io
from dataclasses import replace

from profiles import CPU, PROFILE, device, layer, point

from heterps_compile.console import make_console
from heterps_compile.cost.profile import Fitted, Profile
from heterps_compile.profiling.profile_words import print_profile


def shown(profile: Profile) -> str:
    stream = io.StringIO()
    print_profile(make_console(stream, None), profile)
    return stream.getvalue()


def test_it_says_what_takes_the_most_and_how_sure_it_is():
    text = shown(PROFILE)
    assert "cpu: inference, torch, 1 thread, by the cpu clock" in text
    assert text.index("layer a") < text.index("layer b")  # 5 ms before 1 ms
    assert "5 ms ±10 %" in text
    assert "whole model at batch 8: 3 ms; the layers one by one add up to 1.10 x the whole" in text
    assert "that replicas divide (alpha): 0.80 ±0.02, from 1, 2 units\n" in text
    assert "link: 30 us (±2 us) + 1.86 GiB/s" in text


def test_an_uncertain_fraction_is_said_not_to_be_used():
    unsure = replace(PROFILE, devices=(replace(CPU, data_parallel=Fitted(0.5, 0.4, (1, 2))),))
    assert "(beta): 0.50 ±0.40, from 1, 2 units; too uncertain to be used" in shown(unsure)


def test_training_shows_forward_and_backward_together():
    trained = replace(PROFILE, devices=(device(layer("a", point(8, 2e-3, 3e-3))),))
    assert "5 ms" in shown(trained)


def test_names_cannot_play_tricks_on_the_terminal():
    hostile = replace(CPU, layers=(replace(CPU.layers[0], name="\x1b[2Jlayer"),))
    text = shown(replace(PROFILE, model="\x1b]0;x", devices=(hostile,)))
    assert "\x1b" not in text
