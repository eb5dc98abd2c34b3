"""The time model of emulated hosts: what is planted is found, and losses add up."""

import json
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast_bench.emulate.model import (
    Sample,
    TimeModel,
    fit,
    held_out,
    largest_of,
    powers_of_two,
)
from holdfast_bench.emulate.task import LAYERS

SIZE, RATE = 27_262_976, 10e9 / 8


def sample(model, hosts, compute_s=5.5, spread=0.01):
    imbalance_s = compute_s * spread * largest_of(hosts)
    return Sample(
        hosts=hosts,
        compute_s=compute_s,
        spread=spread if hosts > 1 else 0.0,
        imbalance_s=imbalance_s,
        reduce_s=model.sync_s(hosts, compute_s),
        wait_s=0.0,
        step_s=model.step_s(hosts, compute_s, spread),
    )


def weak(model, sizes=(1, 2, 4, 8, 16)):
    return [sample(model, hosts) for hosts in sizes]


def strong(model, sizes=(1, 2, 4, 8, 16)):
    return [sample(model, hosts, 5.5 / hosts) for hosts in sizes]


def planted(rho=1e-10, alpha_s=2e-3, gamma=4e-9, control_s=4e-3):
    return TimeModel(
        rho=rho,
        alpha_s=alpha_s,
        beta=2 / RATE,
        gamma=gamma,
        control_s=control_s,
        size_bytes=SIZE,
        own_cores=0,
    )


@given(st.floats(0, 1e-9), st.floats(0, 0.1), st.floats(1e-9, 1e-8), st.floats(0, 0.1))
def test_a_planted_model_is_found(rho, alpha_s, gamma, control_s):
    model = planted(rho, alpha_s, gamma, control_s)
    found = fit([*weak(model), *strong(model)], SIZE, RATE)
    assert found.gamma == pytest.approx(gamma, rel=1e-3, abs=1e-13)
    for hosts in (1, 2, 4, 8, 16, 64):
        for compute_s in (5.5, 5.5 / hosts):
            expected = model.step_s(hosts, compute_s, 0.01)
            assert found.step_s(hosts, compute_s, 0.01) == pytest.approx(expected, rel=1e-6)


def test_sizes_that_are_held_out_are_predicted():
    samples = [*weak(planted()), *strong(planted())]
    for predicted, each in zip(held_out(samples, SIZE, RATE), samples, strict=True):
        assert predicted == pytest.approx(each.step_s, rel=0.02)
    assert held_out(samples[:1], SIZE, RATE) == [None]


def test_only_what_moves_after_a_backward_pass_is_visible():
    model = planted(rho=0.0, alpha_s=0.0)
    moved = model.move_s(8)
    assert model.sync_s(8, 5.5) == pytest.approx(moved / LAYERS)
    assert model.sync_s(8, 0.0) == moved
    visible = [model.sync_s(8, compute_s) for compute_s in (0.0, 0.2, 0.4, 0.8, 1.6)]
    assert visible == sorted(visible, reverse=True)


def test_the_smallest_cost_of_a_shared_byte_explains_what_is_hidden():
    found = fit(weak(planted()), SIZE, RATE)  # α could be that of the last bytes, too
    assert found.gamma == pytest.approx(0.0, abs=1e-13)
    for hosts in (2, 4, 8, 16):
        assert found.sync_s(hosts, 5.5) == pytest.approx(planted().sync_s(hosts, 5.5))


def test_a_share_of_each_loss_and_the_compute_are_a_whole_step():
    for hosts in (1, 2, 16):
        each = sample(planted(), hosts)
        assert sum(each.lost.values()) + each.compute_s / each.step_s == pytest.approx(1)


def test_hosts_with_cores_of_their_own_pay_for_their_own_bytes_only():
    model, own = planted(), planted().on_own_cores(2)
    assert own.move_s(2) > 0
    assert own.move_s(1024) < 1.1 * own.move_s(64)  # each sends nearly the whole gradient
    assert own.sync_s(1024, 5.5) < 1.1 * own.sync_s(64, 5.5)
    assert model.move_s(1024) > 10 * model.move_s(64)


def test_the_largest_of_more_is_larger():
    largest = [largest_of(count) for count in powers_of_two(1024)]
    assert largest == sorted(largest)
    assert largest[0] == 0
    assert largest_of(2) == pytest.approx(0.564, abs=0.03)  # 1 / sqrt(pi)


@pytest.mark.soak
def test_hosts_are_emulated_and_predicted():
    options = ["--hosts", "1,2", "--scaling", "weak", "--compute-s", "0.2", "--steps", "3"]
    command = [
        sys.executable,
        "-m",
        "holdfast_bench.run",
        "emulate",
        "--parameters",
        "100000",
        *options,
    ]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)["rows"]
    one, two = (row for row in rows if row["measure"] == "emulated")
    assert (one["hosts"], two["hosts"]) == (1, 2)
    assert one["efficiency"] == 1
    assert two["step_s"]["median"] > 0.2
    shares = [two[f"{name}_share"] for name in ("reduce", "wait", "imbalance", "control")]
    assert all(0 <= share < 1 for share in shares)
    assert [row["hosts"] for row in rows if row["measure"] == "predicted"] == powers_of_two(1024)
