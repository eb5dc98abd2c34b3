"""What trackers call a trial: its search is a group, and a part of its name."""

from types import MappingProxyType

from holdfast.rundir.run_directory import search_of
from holdfast.sinks.trackers.tracker import TrackedJob, TrackedRun


def run(path):
    job = TrackedJob(name="digits", params={}, text="", tokens_per_sample=None)
    search = search_of(path)
    tags = MappingProxyType({"search": search} if search else {})
    return TrackedRun(path=path, run_id="ab", job=job, tags=tags)


def test_a_trial_has_the_name_of_its_search(tmp_path):
    trial = tmp_path / "digits-tune" / "trials" / "0003"
    trial.mkdir(parents=True)
    assert (run(trial).search, run(trial).name) == (None, "0003")
    (tmp_path / "digits-tune" / "search.yaml").touch()
    assert (run(trial).search, run(trial).name) == ("digits-tune", "digits-tune/0003")
