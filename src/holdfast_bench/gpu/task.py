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
    meter = Meter(next(model.parameters()).device, params["warm"], params["steps"])
    steps = params["warm"] + params["steps"] + 1
    for shard in session.shards(Repeated(load, session.job.batch * steps), epochs=1):
        meter.at(shard.step)
        session.backward(load.loss(model, shard.batch))
    Path(params["reading"]).write_text(json.dumps(meter.reading), encoding="utf-8")
