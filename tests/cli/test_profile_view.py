"""What `holdfast profile` shows of rates that are not reliable."""

from holdfast.cli.cluster.profile_view import show
from holdfast.hardware.profile import Device, HostProfile
from holdfast.hardware.profile_file import Profiles


def test_a_rate_that_is_not_reliable_is_marked_and_scores_nothing(capsys):
    unreliable = {"fp32": 0.0008, "copies": 5e9}
    cpu = Device(
        name="EPYC", kind="cpu", source="measured", score=0.0, tflops={"bf16": 0.4},
        unreliable=unreliable,
    )  # fmt: skip
    gpu = Device(name="RTX", source="measured", score=12.0, tflops={"fp32": 12.0})
    profiles = Profiles(hosts={"a": HostProfile(devices=(gpu, cpu))})
    show(Profiles.model_validate_json(profiles.model_dump_json()))
    _, card, processor, why = capsys.readouterr().out.splitlines()
    assert card == "gpu 0: RTX, score 12, relative 1.0x, fp32 12"
    marked = "fp32 0.0008 (not reliable), bf16 0.4, copies 5.0 GB/s (not reliable)"
    assert processor == f"cpu: EPYC, {marked}"
    assert why.startswith("cpu: rounds of fp32, copies do not agree, so nothing uses these rates")
