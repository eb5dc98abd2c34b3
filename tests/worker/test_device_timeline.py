"""Phases on a GPU take as long as the GPU computes; with a stand-in for its events, and on one."""

import torch

from conftest import needs_gpu
from holdfast.arena.memory import Arena, Phase
from holdfast.arena.worker_status import WorkerStatus
from holdfast.collectives.barrier_tags import describe
from holdfast.collectives.group import Group
from holdfast.worker.timing.stopwatch import MANY, DeviceTimeline, Stopwatch, timeline_of

PHASES = {phase.name.lower(): phase for phase in Phase}


class StandInGpu:
    """A stand-in for a GPU: work takes given milliseconds, and is done when it is told so."""

    def __init__(self):
        self.launched_ms = self.done_ms = 0
        self.num_events = 0

    def event(self):
        self.num_events += 1
        return StandInEvent(self)


class StandInEvent:
    """A stand-in for `torch.cuda.Event`."""

    def __init__(self, gpu):
        self._gpu, self._at_ms = gpu, None

    def record(self):
        self._at_ms = self._gpu.launched_ms

    def query(self):
        return self._at_ms <= self._gpu.done_ms

    def elapsed_time(self, end_event):
        assert self.query()
        assert end_event.query(), "it may be asked only once it has passed"
        return float(end_event._at_ms - self._at_ms)


class Worker:
    """A worker that launches work on a stand-in."""

    def __init__(self):
        self.gpu, self.status = StandInGpu(), WorkerStatus(Arena.create(1), 0)
        self.status.claim()
        self.timeline = DeviceTimeline(self.status, self.gpu.event)

    def launch(self, *work):
        """Enter phases, each with the milliseconds of its work."""
        for name, ms in work:
            self.status.enter(PHASES[name])
            self.gpu.launched_ms += ms

    def finish(self):
        self.gpu.done_ms = self.gpu.launched_ms

    def corrected_ms(self):
        """What is counted for the phases that launch work."""
        self.timeline.correct()
        times = self.status.times()
        names = "forward", "backward", "collect", "optimizer"
        return [times[PHASES[name]] * 1e3 for name in names]


SHARD = ("forward", 4), ("backward", 9), ("collect", 2), ("forward", 1), ("collect", 3), ("data", 0)


def test_phases_take_as_long_as_the_gpu_computes():
    worker = Worker()
    worker.launch(("data", 0), *SHARD, *SHARD, ("wait", 0), ("optimizer", 7), ("data", 0))
    worker.finish()
    assert worker.corrected_ms() == [10, 18, 10, 7]
    worker.launch(*SHARD)
    worker.finish()
    assert worker.corrected_ms() == [15, 27, 15, 7], "each is corrected once"


def test_what_the_gpu_has_not_done_is_corrected_later():
    worker = Worker()
    worker.launch(*SHARD)
    worker.gpu.done_ms = 13
    forward, backward, collect, _ = worker.corrected_ms()
    assert 4 <= forward < 5
    assert backward == 9
    assert collect < 2, "launching takes the host no time"
    worker.finish()
    assert worker.corrected_ms()[:3] == [5, 9, 5]


def test_events_are_used_again_within_a_step():
    worker = Worker()
    for _ in range(MANY):
        worker.launch(*SHARD)
        worker.finish()
    assert worker.gpu.num_events <= MANY + 1
    assert worker.corrected_ms()[:2] == [5 * MANY, 9 * MANY]


def test_a_worker_that_leaves_because_of_its_gpu_asks_nothing_more_of_it():
    worker = Worker()
    worker.launch(("forward", 1))
    worker.gpu.event = None
    worker.launch(("left", 0))
    assert worker.gpu.num_events == 1


def test_on_a_cpu_there_is_no_timeline():
    status = WorkerStatus(Arena.create(1), 0)
    assert timeline_of(status, torch.device("cpu")) is None
    assert status.on_change is None


@needs_gpu
def test_a_gpu_gets_the_time_of_a_phase_that_the_host_only_launches():
    arena, device = Arena.create(1), torch.device("cuda", 0)
    group, status = Group(arena, 0, 10.0, describe), WorkerStatus(arena, 0)
    status.claim()
    stopwatch = Stopwatch(group, status, device)
    values = torch.ones(4096, 4096, device=device)
    (values @ values).sum().item()  # what is done once
    status.enter(Phase.FORWARD)
    for _ in range(50):
        values = torch.tanh(values @ values)
    status.enter(Phase.BACKWARD)
    values.sum().item()  # waits for all
    status.enter(Phase.DATA)
    torch.cuda.synchronize()
    counted = status.times()
    times = stopwatch.take(0)
    assert counted[Phase.FORWARD] < counted[Phase.BACKWARD], "the host waits in the second one"
    assert times.forward_ns > 10 * times.backward_ns > 0
