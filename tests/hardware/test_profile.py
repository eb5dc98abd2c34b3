"""`holdfast profile`, with the hardware of this host, and with a stand-in for GPUs."""

import json
import os
import subprocess
import sys
from contextlib import contextmanager

import pytest

import nvml_stand_in
from conftest import events_of
from nvml_stand_in import needs_gcc

HOT_TFLOPS, COOL_TFLOPS = 2e-6 * 3584 * 1252, 2e-6 * 896 * 1665

pytestmark = pytest.mark.slow


def holdfast(folder, *words, **environment):
    """Exit status, output and errors of a command; it leaves only what is named by --output."""
    done = subprocess.run(
        [sys.executable, "-m", "holdfast", *words], cwd=folder, env={**os.environ, **environment},
        capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    return done.returncode, done.stdout, done.stderr


@pytest.fixture
def gpus(tmp_path_factory):
    """Build a stand-in for the driver's library: `gpus(flag, …) -> environment`."""

    def build(*flags):
        return nvml_stand_in.build(tmp_path_factory.mktemp("driver"), *flags)

    return build


@pytest.mark.soak
@needs_gcc
def test_cards_of_a_driver_are_shown_scored_and_passed_on(tmp_path, gpus):
    status, out, err = holdfast(tmp_path, "profile", "--output", "cluster.json", **gpus())
    assert (status, err) == (0, "")
    assert [each.name for each in tmp_path.iterdir()] == ["cluster.json"]
    hot, cool, hot_state, cool_state = (line for line in out.splitlines() if line.startswith("gpu"))
    assert "score 8.97 (estimate), relative 3.0x" in hot
    assert "relative 1.0x" in cool
    slowed = "slowed by power cap, heat (hardware limit)"
    assert hot_state == f"gpu 0: 86 °C, 168 of 170 W, 97 % busy, 1252 of 1777 MHz, {slowed}"
    assert cool_state == "gpu 1: 51 °C, 0 % busy, 300 of 1665 MHz", "it reports no power"
    assert "cannot use these GPUs" in out

    [host] = json.loads((tmp_path / "cluster.json").read_text())["hosts"].values()
    *cards, cpu = host["devices"]
    assert [each["score"] for each in cards] == pytest.approx([HOT_TFLOPS, COOL_TFLOPS])
    assert [each["capability"] for each in cards] == ["8.6", "7.5"]
    assert {**cpu["unreliable"], **cpu["tflops"]}["fp32"] > 0

    words = ("train", "digits", "workers=2", "epochs=1", "--run", "run")
    status, _, err = holdfast(tmp_path, *words, "--profile", "cluster.json")
    assert status == 0, err
    assert json.loads((tmp_path / "run" / "profile.json").read_text())["hosts"]
    assert events_of(tmp_path / "run", "host-profiled") == [], "an even balance needs no scores"


@contextmanager
def busy():
    """Other processes that use all cores."""
    work = [sys.executable, "-c", "while True: pass"]
    others = [subprocess.Popen(work) for _ in range(2 * os.cpu_count())]
    try:
        yield
    finally:
        for other in others:
            other.kill()
            other.wait()


@pytest.mark.soak
def test_a_busy_host_has_scores_on_which_rounds_agree_or_none(tmp_path):
    with busy():
        status, out, err = holdfast(tmp_path, "profile", "--json", CUDA_VISIBLE_DEVICES="")
    assert status == 0, err
    [host] = json.loads(out)["hosts"].values()
    cpu = host["devices"][-1]
    measured = {*cpu["tflops"], *(["copies"] if cpu["memory_bytes_per_s"] else [])}
    assert not measured & cpu["unreliable"].keys()
    assert measured | cpu["unreliable"].keys() == {"fp32", "bf16", "fp16", "copies"}
    assert cpu["score"] == cpu["tflops"].get("fp32", 0.0)


@pytest.mark.soak
@needs_gcc
def test_only_visible_cards_count(tmp_path, gpus):
    environment = {**gpus(), "CUDA_VISIBLE_DEVICES": "GPU-1650"}
    status, out, _ = holdfast(tmp_path, "profile", "--json", **environment)
    assert status == 0
    [host] = json.loads(out)["hosts"].values()
    assert [each["name"] for each in host["devices"][:-1]] == ["NVIDIA GeForce GTX 1650"]


@pytest.mark.soak
@needs_gcc
def test_a_broken_driver_is_a_line(tmp_path, gpus):
    status, out, err = holdfast(tmp_path, "profile", **gpus("-DBROKEN"))
    assert (status, err) == (0, "")
    assert "no GPU: the NVIDIA driver does not work " in out
    assert "version mismatch); install" in out
    assert "cpu: " in out


def test_a_directory_that_cannot_be_measured_is_one_line(tmp_path):
    status, out, err = holdfast(tmp_path, "profile", "--path", "none")
    assert (status, out) == (2, "")
    assert err == "holdfast: --path none: there is no such directory; name one that exists\n"
