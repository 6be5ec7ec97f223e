import io
from dataclasses import replace

from profiles import CPU, PROFILE, device, layer, point

from heterps_compile.console import make_console
from heterps_compile.cost.profile import Crowding, Fitted, Profile
from heterps_compile.cost.step_rates import OptimizerRate, StepRates
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


def test_what_busy_cores_take_is_told():
    crowded = replace(PROFILE, devices=(replace(CPU, crowding=Crowding(1.18, 0.02, 1, 32)),))
    assert (
        "beside another process that runs it too, each on a core of its own, the model takes 1.18 ±0.02 x as long as "
        "alone (batch 32); times of layers are those alone" in shown(crowded)
    )
    four = replace(PROFILE, devices=(replace(CPU, crowding=Crowding(1.18, 0.02, 3, 32)),))
    assert "beside 3 other processes that run it too" in shown(four)
    assert "beside" not in shown(PROFILE)


def test_what_layers_take_with_their_tables_on_servers_is_told():
    table = replace(layer("b", point(32, 1e-3, 4e-3), kind="embedding"), served=(point(32, 5e-4, 1e-3),))
    told = shown(replace(PROFILE, devices=(device(layer("a", point(32, 2e-3, 3e-3)), table),)))
    assert (
        "tables that parameter servers could hold, of 1 layer: 1.5 ms with them there, 5 ms as they stand (batch 32)\n"
        in told
    )
    assert "parameter servers" not in shown(PROFILE)


def test_an_uncertain_fraction_is_said_not_to_be_used():
    unsure = replace(PROFILE, devices=(replace(CPU, data_parallel=Fitted(0.5, 0.4, (1, 2))),))
    assert "(beta): 0.50 ±0.40, from 1, 2 units; too uncertain to be used" in shown(unsure)


def test_one_batch_alone_is_told():
    alone = replace(PROFILE, devices=(device(layer("a", point(8, 2e-3))),))
    assert "one batch was measured, 8: other sizes are taken in proportion" in shown(alone)
    assert "one batch was measured" not in shown(PROFILE)


def test_names_cannot_play_tricks_on_the_terminal():
    hostile = replace(CPU, layers=(replace(CPU.layers[0], name="\x1b[2Jlayer"),))
    text = shown(replace(PROFILE, model="\x1b]0;x", devices=(hostile,)))
    assert "\x1b" not in text


def test_fractions_of_layers_are_told_with_those_that_have_none_and_those_held_in_range():
    first, second = CPU.layers
    own = replace(first, compute_parallel=Fitted(0.4, 0.05, (1, 2)))
    alike = replace(second, compute_parallel=Fitted(0.85, 0.1, (1, 2)))
    text = shown(replace(PROFILE, devices=(replace(CPU, layers=(own, alike)),)))
    assert "0.40 ±0.05" in text
    assert (
        "1 of 2 layers have an alpha of their own; 1 take the 0.80 of the whole, from which theirs differs by no more "
        "than its error: layer b\n"
    ) in text
    assert "1 and 2 units tell one alpha of a layer, and not whether it holds for more" in text
    above = replace(second, compute_parallel=Fitted(1.0, 0.01, (1, 2, 4), 1.08))
    text = shown(replace(PROFILE, devices=(replace(CPU, layers=(above,)),)))
    assert "alpha was fitted below 0 or above 1, and is held at 0 or 1: layer b 1.08\n" in text
    assert "Amdahl" not in text
    unsure = replace(CPU, layers=(own,), compute_parallel=Fitted(0.8, 0.5, (1, 2)))
    assert "differs from that of the pool's type by more than its error" in shown(replace(PROFILE, devices=(unsure,)))


def test_what_a_step_has_besides_layers_is_told():
    rates = StepRates(8 << 30, 1 << 28, 3e7, 4e8, 1 << 29, (OptimizerRate("sgd", 0.0, 16 << 30),))
    told = shown(replace(PROFILE, devices=(replace(CPU, step_rates=rates),)))
    assert (
        "beside layers: 8 GiB/s are moved, of 256 MiB/s the largest selected, of 512 MiB/s pairs combined, 3e+07 "
        "entries a second chosen and 4e+08 placed; steps of optimizers, of weights: sgd 16 GiB/s" in told
    )
    unseen = shown(replace(PROFILE, devices=(replace(CPU, step_rates=replace(rates, chosen_per_s=1.9e14)),)))
    assert "pairs combined, entries chosen in no time that was seen and 4e+08 a second placed; steps" in unseen
