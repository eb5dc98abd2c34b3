"""Whether recorded rounds of a measurement agree."""

import pytest

from holdfast.hardware.rates import Round, timing


def rounds(*pairs):
    return [Round(seconds=seconds, waited_s=waited_s) for seconds, waited_s in pairs]


def quiet(*seconds):
    return rounds(*((each, 0.0) for each in seconds))


IDLE = quiet(0.0113, 0.0115, 0.0112, 0.0131, 0.0114)
BUSY = rounds((0.1137, 0.198), (0.1293, 0.2168), (0.1393, 0.2414), (0.1518, 0.2657), (0.2, 0.3864))
EQUALLY_BUSY = rounds((0.1305, 0.2284), (0.1354, 0.2379), (0.1368, 0.2344), (0.1713, 0.3033))
"""Recorded on two cores, alone and with eleven other processes."""


def test_rounds_of_an_idle_host_agree_on_the_best():
    found = timing(IDLE)
    assert (found.seconds, found.is_reliable) == (0.0112, True)


@pytest.mark.parametrize("recorded", [BUSY, EQUALLY_BUSY])
def test_rounds_of_a_busy_host_are_not_reliable(recorded):
    found = timing(recorded)
    assert (found.seconds, found.is_reliable) == (min(e.seconds for e in recorded), False)


def test_quiet_rounds_between_others_count():
    found = timing([*BUSY, *IDLE])
    assert (found.seconds, found.is_reliable) == (0.0112, True)
    faster = [*IDLE, *rounds((0.001, 0.002))]
    assert timing(faster).seconds == 0.0112, "its clock was read while it waited"


def test_quiet_rounds_that_differ_are_not_reliable():
    assert not timing(quiet(0.01, 0.0105, 0.0112, 0.03)).is_reliable
    assert timing(quiet(0.01, 0.0105, 0.0109, 0.03)).is_reliable


def test_few_rounds_are_not_reliable():
    assert not timing(quiet(0.01)).is_reliable
    assert not timing(quiet(0.01, 0.01)).is_reliable
