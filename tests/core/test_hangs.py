"""Only what cannot be work is taken for a hang."""

import pytest

from holdfast.core.hangs import HangDetector, Observation, PhaseKind

LOOK_S = 0.1


def verdict_after(seconds, **sighting):
    """What a watch says of a worker that looks the same for so long."""
    watch, says = HangDetector(user_s=30.0), ""
    for look in range(int(seconds / LOOK_S) + 1):
        changes = {key: value(look) for key, value in sighting.items() if callable(value)}
        seen = {"since": 5.0, "cpu_s": 1.0, "stopped": False, **sighting, **changes}
        says = says or watch.see({1: Observation(**seen)}, 100 + look * LOOK_S).get(1, "")
    return says


@pytest.mark.parametrize("phase_kind", list(PhaseKind))
def test_a_stopped_worker_hangs_whatever_it_was_at(phase_kind):
    assert verdict_after(0.7, phase_kind=phase_kind, stopped=True) == ""
    assert verdict_after(1.0, phase_kind=phase_kind, stopped=True) == "was stopped for 0.8 s"


def test_a_worker_that_was_stopped_for_a_moment_does_not():
    assert verdict_after(60, phase_kind=PhaseKind.WAITING, stopped=lambda look: look % 8 != 0) == ""


def test_waiting_is_never_a_hang():
    assert verdict_after(10_000, phase_kind=PhaseKind.WAITING) == ""


def test_our_own_code_hangs_after_a_second_and_the_users_after_what_the_job_allows():
    assert verdict_after(0.9, phase_kind=PhaseKind.HOLDFAST) == ""
    assert verdict_after(1.2, phase_kind=PhaseKind.HOLDFAST).startswith("did nothing for 1.")
    assert verdict_after(29, phase_kind=PhaseKind.USER) == ""
    assert verdict_after(31, phase_kind=PhaseKind.USER).startswith("did nothing for 30.")


def test_whoever_uses_the_processor_works():
    assert verdict_after(500, phase_kind=PhaseKind.HOLDFAST, cpu_s=lambda look: look * 0.01) == ""


def test_whoever_only_murmurs_does_not():
    cpu_s = {"cpu_s": lambda look: look * LOOK_S * 0.005}
    assert verdict_after(20, phase_kind=PhaseKind.USER, **cpu_s) == ""
    assert verdict_after(40, phase_kind=PhaseKind.USER, **cpu_s).startswith("did nothing for 3")


def test_whoever_has_murmured_for_long_and_then_works_is_seen_to_work():
    def cpu_s(look):
        seconds = look * LOOK_S
        return 0.005 * seconds if seconds < 25 else seconds - 24.875

    assert verdict_after(50, phase_kind=PhaseKind.USER, cpu_s=cpu_s) == ""


def test_a_worker_that_has_worked_and_then_does_nothing_hangs():
    def cpu_s(look):
        return min(look * LOOK_S, 20.0)

    assert verdict_after(49.5, phase_kind=PhaseKind.USER, cpu_s=cpu_s) == ""
    assert verdict_after(51, phase_kind=PhaseKind.USER, cpu_s=cpu_s).startswith("did nothing for 3")


def together(seconds, **cpu_s):
    """What a watch over workers that wait for each other says of them after so long."""
    watch, says = HangDetector(user_s=3.0, together=True), {}
    for look in range(int(seconds / LOOK_S) + 1):
        seen = {
            int(name[1:]): Observation(
                phase_kind=PhaseKind.USER if used is not None else PhaseKind.WAITING,
                since=5.0,
                cpu_s=look * LOOK_S * (used or 0),
                stopped=False,
            )
            for name, used in cpu_s.items()
        }
        says = says or watch.see(seen, 100 + look * LOOK_S)
    return says


def test_of_workers_that_wait_for_each_other_none_hangs_while_one_works():
    assert together(60, p1=0, p2=0.5, p3=0) == {}


def test_of_workers_that_wait_for_each_other_all_hang_where_none_works():
    assert together(2.8, p1=0, p2=0.001) == {}
    assert together(3.5, p1=0, p2=0.001).keys() == {1, 2}
    assert "nor did any other worker for 3." in together(3.5, p1=0, p2=0)[1]


def test_who_has_finished_excuses_nobody():
    assert together(3.5, p1=0, p2=None).keys() == {1}


def test_whoever_goes_from_phase_to_phase_works():
    assert verdict_after(500, phase_kind=PhaseKind.HOLDFAST, since=lambda look: look // 7) == ""


def test_what_has_lately_taken_long_may_take_three_times_as_long():
    watch = HangDetector(user_s=1.0)

    def at(now, since):
        seen = Observation(phase_kind=PhaseKind.USER, since=since, cpu_s=1.0, stopped=False)
        return watch.see({1: seen}, now)

    looks = [look * LOOK_S for look in range(200)]
    assert not any(at(now, since=0.0 if now < 0.9 else 0.9) for now in looks if now < 3.4)
    assert any(at(now, since=0.9) for now in looks if now >= 3.4)


def test_a_watch_that_was_held_up_itself_begins_anew():
    watch = HangDetector(user_s=1.0)
    seen = Observation(phase_kind=PhaseKind.HOLDFAST, since=0.0, cpu_s=1.0, stopped=True)
    assert [watch.see({1: seen}, now) for now in (0.0, 5.0, 10.0, 15.0)] == [{}] * 4


def test_a_stopped_worker_hangs_though_others_work():
    watch = HangDetector(user_s=30.0, together=True)
    for look in range(12):
        works = Observation(phase_kind=PhaseKind.USER, since=5.0, cpu_s=look, stopped=False)
        stopped = Observation(phase_kind=PhaseKind.USER, since=5.0, cpu_s=1.0, stopped=True)
        says = watch.see({1: works, 2: stopped}, look * LOOK_S)
    assert says == {2: "was stopped for 1.0 s"}


def test_the_longest_of_the_last_phases_counts_whatever_came_after_it():
    watch = HangDetector(user_s=1.0)

    def hangs(look):
        since = 0.0 if look < 20 else 2.0 if look < 25 else 2.5
        seen = Observation(phase_kind=PhaseKind.USER, since=100 + since, cpu_s=1.0, stopped=False)
        # While the first phase lasts, it uses the processor.
        if look < 20:
            seen = Observation(
                phase_kind=PhaseKind.USER, since=100.0, cpu_s=look * LOOK_S, stopped=False
            )
        return bool(watch.see({1: seen}, 100 + look * LOOK_S))

    looks = {look: hangs(look) for look in range(100)}
    assert not any(looks[look] for look in range(84))  # 2.5 s, and three times 2 s
    assert all(looks[look] for look in range(86, 100))
