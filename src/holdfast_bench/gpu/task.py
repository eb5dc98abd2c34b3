"""The task of the benchmark: a load that holdfast trains, and what its steps take."""

from __future__ import annotations

import json
from pathlib import Path

from holdfast import Session
from holdfast_bench.gpu.loads import LOADS, Repeated
from holdfast_bench.gpu.meter import Meter


def main(session: Session) -> None:
    """Train the load `params.load`; writes what a step takes to the file `params.reading`."""
    params = session.job.params
    load = LOADS[params["load"]]
    model, _ = session.attach(load.model, load.optimizer)
    steps = params["warm"] + params["steps"] + 1
    meter: Meter | None = None
    for shard in session.shards(Repeated(load, session.job.batch * steps), epochs=1):
        if meter is None:  # before the loop, the model is not on the device yet
            meter = Meter(shard.batch[0].device, params["warm"], params["steps"])
        meter.at(shard.step)
        session.backward(load.loss(model, shard.batch))
    assert meter is not None, "no step was trained"
    Path(params["reading"]).write_text(json.dumps(meter.reading), encoding="utf-8")
