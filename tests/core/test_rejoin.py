"""How long a host waits before it joins again."""

from holdfast.core.placement.replacing import MIN_REJOIN_DELAY_S, SOON_S, RejoinDelay


def test_a_host_that_is_fenced_soon_after_it_joined_waits_longer_each_time():
    delay = RejoinDelay()
    assert [delay.after(3.0) for _ in range(6)] == [5.0, 10.0, 20.0, 40.0, 60.0, 60.0]
    assert delay.after(SOON_S) == 0.0
    assert delay.after(3.0) == MIN_REJOIN_DELAY_S


def test_a_host_that_has_served_joins_again_at_once():
    assert RejoinDelay().after(3600.0) == 0.0
