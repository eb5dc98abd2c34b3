"""`python -m holdfast.hardware.measure`: measures the devices of this host, as a line of JSON.

It is a process of its own: commands have no torch, and a driver that crashes ends only this.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final, get_args

import torch

from holdfast.hardware import rates
from holdfast.hardware.host_supply import gpus_here
from holdfast.hardware.nvml import DriverGpu, driver_gpus
from holdfast.hardware.profile import Device, HostProfile, Precision
from holdfast.hardware.profile_file import PROFILE
from holdfast.linux.host_memory import available
from holdfast.linux.lifeline import die_with_parent
from holdfast.linux.supply import model_name, usable_cores

LIMIT_S: Final = 0.3
"""Time for which one rate of one device is measured."""


def main() -> None:
    """Measure, and print the profile."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--parent", type=int, required=True)
    parser.add_argument("--scores-for", choices=("auto", "cpu", "cuda"))
    parser.add_argument("--precision", choices=get_args(Precision), default="fp32")
    options = parser.parse_args()
    die_with_parent(options.parent)
    output = sys.stdout
    sys.stdout = sys.stderr  # libraries may print
    torch.set_num_threads(usable_cores())
    if options.scores_for is None:
        found = full_profile(os.environ)
    else:
        found = scores(options.scores_for, options.precision)
    print(PROFILE.dump_json(found).decode(), file=output, flush=True)


def full_profile(environment: Mapping[str, str]) -> HostProfile:
    """All devices, at all rates.

    Args:
        environment: Environment for CUDA, which may restrict the GPUs.
    """
    in_driver, problem = driver_gpus()
    known = {each.uuid: each for each in in_driver}
    seen = [known[uuid] for uuid in gpus_here(environment) if uuid in known]
    notes = [problem] if problem else []
    if not in_driver and not problem:
        notes.append("no GPU: the NVIDIA driver lists none")
    elif in_driver and not seen:
        notes.append(f"no GPU: CUDA_VISIBLE_DEVICES names none of {len(in_driver)}")
    if torch.cuda.is_available():
        gpus = [_gpu(number, in_driver, notes) for number in range(torch.cuda.device_count())]
    else:
        gpus = [_estimated(each) for each in seen]
    if seen and not torch.cuda.is_available():
        notes.append(
            f"torch {torch.__version__} cannot use these GPUs, so their scores are estimates from "
            "cores and clocks; install a build of torch for CUDA and this driver"
        )
    return HostProfile(devices=(*gpus, _cpu(tuple(rates.DTYPES), bandwidth=True)), notes=(*notes,))


def scores(wanted: str, precision: Precision) -> HostProfile:
    """The devices that workers use, in one precision.

    Args:
        wanted: The device of the job: `auto`, `cpu` or `cuda`.
        precision: Precision of the job.
    """
    if wanted == "cpu" or not torch.cuda.is_available():
        return HostProfile(devices=(_cpu((precision,), bandwidth=False),))
    devices = [_measured_gpu(n, (precision,)) for n in range(torch.cuda.device_count())]
    return HostProfile(devices=tuple(devices))


def _cpu(precisions: Sequence[Precision], *, bandwidth: bool) -> Device:
    cpu = torch.device("cpu")
    reported = Device(name=model_name(), kind="cpu", score=0.0, cores=usable_cores())
    found = _with_scores(reported, cpu, precisions)
    return _with_copies(found, cpu, available().size_bytes) if bandwidth else found


def _gpu(number: int, in_driver: Sequence[DriverGpu], notes: list[str]) -> Device:
    """A GPU that torch uses, with what the driver knows of it.

    Args:
        number: Number of CUDA.
        in_driver: All GPUs of the driver.
        notes: Gets why it could not be measured, if so.
    """
    reported = replace(_named_gpu(number), source="estimated")
    known = next((each for each in in_driver if each.uuid == reported.uuid), None)
    if known is not None:
        reported = _estimated(known)
    try:
        device = torch.device("cuda", number)
        free, total = torch.cuda.mem_get_info(number)
        measured = _with_scores(reported, device, tuple(rates.DTYPES))
        measured = _with_copies(measured, device, free)
    except RuntimeError as error:  # such as too little free memory
        notes.append(f"GPU {number} could not be measured: {str(error).partition(chr(10))[0]}")
        return reported
    return replace(measured, memory_bytes=total)


def _measured_gpu(number: int, precisions: Sequence[Precision]) -> Device:
    return _with_scores(_named_gpu(number), torch.device("cuda", number), precisions)


def _named_gpu(number: int) -> Device:
    uuid = f"GPU-{torch.cuda.get_device_properties(number).uuid}"
    return Device(name=torch.cuda.get_device_name(number), score=0.0, uuid=uuid)


def _with_scores(reported: Device, device: torch.device, precisions: Sequence[Precision]) -> Device:
    """A device with what it reaches in some precisions, the first of which is its score."""
    found = {each: rates.tflops(device, each, LIMIT_S) for each in precisions}
    tflops = {each: one.rate for each, one in found.items() if one.is_reliable}
    return replace(
        reported,
        source="measured",
        score=tflops.get(precisions[0], 0.0),
        tflops=tflops,
        unreliable={each: one.rate for each, one in found.items() if not one.is_reliable},
    )


def _with_copies(scored: Device, device: torch.device, free_bytes: int) -> Device:
    """A device with the rate of copies within its memory."""
    copied = rates.copy_bytes_per_s(device, LIMIT_S, free_bytes)
    if copied.is_reliable:
        return replace(scored, memory_bytes_per_s=copied.rate)
    return replace(scored, unreliable={**scored.unreliable, "copies": copied.rate})


def _estimated(gpu: DriverGpu) -> Device:
    """A GPU with the score that it could reach at most; 0 if that is not known."""
    return Device(
        name=gpu.name,
        source="estimated",
        score=gpu.peak_tflops or 0.0,
        cores=gpu.cores,
        memory_bytes=gpu.memory_bytes,
        capability=gpu.capability,
        uuid=gpu.uuid,
        state=gpu.state,
    )


if __name__ == "__main__":
    main()
