"""`holdfast checkpoint`: what it shows, what it refuses, and what it never changes."""

import json
import os
import shutil
import time

import pytest

from checkpoints import layout_of, save, state_of, store_in, write
from holdfast.checkpoint.manifest import Best, Manifest
from holdfast.rundir.run_directory import held
from keys import encryption_key, seal_of, signing_key
from recorded_run import write_run

LAYOUT = layout_of(width=8)
ORDER = {
    "num_samples": 640, "batch_size": 64, "num_shards": 8, "epochs": 6, "seed": 0,
    "fingerprint": "f", "drops_last": False,
}  # fmt: skip


@pytest.fixture
def run(tmp_path):
    """A run of 40 steps with a checkpoint every ten, of which that of step 20 is the best."""
    path = tmp_path / "run"
    write_run(path)
    job = path / "job.yaml"
    job.write_text(job.read_text() + "checkpoint: {keep: 2, keep_every: 30}\n")
    for step in range(10, 50, 10):
        fields = {"best": Best(value=0.5, step=20), "metrics": {"accuracy": 0.5}, "order": ORDER}
        save(path / "checkpoints", step, state_of(LAYOUT, seed=step), LAYOUT, **fields)
    return path


def directory(run, step):
    return run / "checkpoints" / f"step-{step:08d}"


def damage(run, step):
    path = directory(run, step) / "part-1-of-2.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    return path


def content_of(run):
    """Everything below a run: names, bytes and times."""
    return {
        path: (path.stat().st_mtime_ns, path.read_bytes() if path.is_file() else b"")
        for path in sorted(run.rglob("*"))
    }


def listed(command_line, run):
    status, out, _ = command_line("checkpoint", "ls", str(run), "--json")
    assert status == 0
    return json.loads(out)["checkpoints"]


def test_the_list_says_why_each_is_kept(command_line, run):
    command_line("checkpoint", "pin", str(directory(run, 10)))
    write(run / "checkpoints", 50, state_of(LAYOUT), LAYOUT)
    directory(run, 40).rename(f"{directory(run, 40)}.rejected-1")
    (directory(run, 20) / "manifest.json").write_bytes(b"{")
    save(run / "checkpoints", 5, state_of(LAYOUT), LAYOUT)
    rows = {row["step"]: row for row in listed(command_line, run)}
    assert [*rows] == [50, 40, 30, 20, 10, 5]
    kinds = ["draft", "quarantined", "checkpoint", "damaged", "checkpoint", "checkpoint"]
    assert [row["kind"] for row in rows.values()] == kinds
    assert rows[30]["kept"] == ["last", "every"]
    assert rows[10]["kept"] == ["last", "pinned"]
    assert rows[5]["kept"] == []
    assert rows[30]["size_bytes"] == sum(
        path.stat().st_size for path in directory(run, 30).glob("part-*")
    )
    assert rows[10]["time_unix_s"] <= rows[30]["time_unix_s"] <= time.time()
    status, out, _ = command_line("checkpoint", "ls", str(run))
    lines = [line.split() for line in out.splitlines()]
    assert status == 0
    assert lines[0] == ["step", "size", "written", "condition", "name"]
    assert lines[1][-2:] == ["draft", "step-00000050.0a.tmp"]
    assert "damaged: " in out
    assert "to be deleted" in out


def test_a_run_without_checkpoints_says_so(command_line, tmp_path):
    write_run(tmp_path / "run")
    assert command_line("checkpoint", "ls", str(tmp_path / "run"))[1].startswith("no checkpoint")
    status, _, err = command_line("checkpoint", "show", str(tmp_path / "run"))
    assert (status, "neither a checkpoint nor" in err) == (2, True)
    status, _, err = command_line("checkpoint", "verify", str(tmp_path))
    assert (status, "neither a checkpoint nor" in err) == (2, True)


def test_a_checkpoint_is_shown_with_its_place_in_the_data(command_line, run):
    status, out, _ = command_line("checkpoint", "show", str(run))
    rows = dict(line.split("  ", 1) for line in out.splitlines())
    assert status == 0
    assert rows["checkpoint"].strip() == str(directory(run, 40))
    assert rows["step"].strip() == "40, written by generation 1"
    assert rows["tensors"].strip() == "3; largest w F32[1000, 8], 32.0 kB"
    assert rows["best"].strip() == "0.5 after step 20"
    assert "4 of 6 epochs and 0 of 10 steps; 640 samples in batches of 64" in rows["data"]
    assert "root" in rows  # a field that has no words of its own


def test_whole_checkpoints_are_verified(command_line, run, tmp_path):
    before = content_of(run)
    status, out, err = command_line("checkpoint", "verify", str(run))
    assert (status, err) == (0, "")
    assert [line.split()[:2] for line in out.splitlines()] == [
        [f"step-{step:08d}", "verified"] for step in (40, 30, 20, 10)
    ]
    assert content_of(run) == before
    moved = shutil.copytree(directory(run, 30), tmp_path / "elsewhere" / "step-00000030")
    assert command_line("checkpoint", "verify", str(moved))[0] == 0


def test_damage_is_named_with_its_file_and_changes_nothing(command_line, run):
    part, before = damage(run, 40), content_of(run)
    status, out, err = command_line("checkpoint", "verify", str(run))
    assert status == 1
    assert "step-00000040  damaged: " in out
    assert out.count("verified") == 3
    assert f"1 of 4 checkpoints damaged: {part}; a resumed run uses step-00000030" in err
    assert content_of(run) == before
    (directory(run, 40) / "manifest.json").unlink()
    status, _, err = command_line("checkpoint", "verify", str(directory(run, 40)))
    assert (status, "manifest.json; copy it back from a backup" in err) == (1, True)
    directory(run, 40).rename(f"{directory(run, 40)}.rejected-1")
    status, _, err = command_line("checkpoint", "verify", f"{directory(run, 40)}.rejected-1")
    assert (status, "is quarantined" in err) == (2, True)


@pytest.mark.skipif(os.geteuid() == 0, reason="nothing is closed to root")
def test_a_storage_that_cannot_be_read_gives_a_message(command_line, run):
    (run / "checkpoints").chmod(0)
    for name in ("ls", "show", "verify"):
        status, _, err = command_line("checkpoint", name, str(run))
        assert (status, "Permission denied" in err) == (1, True)
    (run / "checkpoints").chmod(0o700)


def test_a_checkpoint_that_another_key_has_signed_is_not_verified(command_line, run, tmp_path):
    key, other = (signing_key(tmp_path / name).with_suffix(".pub") for name in ("key", "other"))
    seal = seal_of(sign=tmp_path / "key", encrypt=encryption_key(tmp_path / "secret"))
    saved = save(tmp_path / "sealed", 7, state_of(LAYOUT), LAYOUT, seal=seal)
    words = ["checkpoint", "verify", str(saved), "--public-key"]
    assert command_line(*words, str(key))[0] == 0
    status, out, err = command_line(*words, str(other))
    assert (status, "step-00000007  signed by another key: " in out) == (1, True)
    assert f"1 of 1 checkpoint not signed by the key of --public-key {other}: step" in err
    assert "damaged" not in out + err
    manifest = saved / "manifest.json"
    forged = Manifest.parse(manifest.read_bytes(), "").model_copy(update={"loss": 0.5}).sealed()
    manifest.write_text(forged.model_dump_json())
    status, out, err = command_line(*words, str(key))
    assert (status, "damaged: " in out, "does not match its signature" in out) == (1, True, True)
    assert f"1 of 1 checkpoint damaged: {manifest}; copy it back" in err
    assert "\nencrypted    yes\n" in command_line("checkpoint", "show", str(saved))[1]
    status, _, err = command_line("checkpoint", "diff", str(saved), str(run))
    assert (status, "is encrypted with key" in err) == (2, True)


def test_an_unsigned_checkpoint_is_not_damaged(command_line, run, tmp_path):
    key, part = signing_key(tmp_path / "key").with_suffix(".pub"), damage(run, 30)
    status, out, err = command_line("checkpoint", "verify", str(run), "--public-key", str(key))
    assert (status, out.count("  not signed: "), out.count("  damaged: ")) == (1, 4, 1)
    assert f"1 of 4 checkpoints damaged: {part}; " in err
    assert f"4 of 4 checkpoints not signed by the key of --public-key {key}: step-" in err
    status, _, err = command_line("checkpoint", "verify", str(run), "--public-key", str(part))
    assert (status, f"--public-key: {part} holds no" in err) == (2, True)


def test_programs_get_one_object(command_line, run):
    status, out, err = command_line("checkpoint", "verify", str(run), "--json")
    found = json.loads(out)
    assert (status, err, found["failed"], len(found["checkpoints"])) == (0, "", False, 4)
    part = damage(run, 40)
    status, out, err = command_line("checkpoint", "verify", str(run), "--json")
    first, second, *_ = json.loads(out)["checkpoints"]
    assert (status, err, first["name"]) == (1, "", "step-00000040")
    assert [(each["kind"], each["file"]) for each in first["problems"]] == [("damaged", str(part))]
    assert second == {"name": "step-00000030", "size_bytes": LAYOUT.size_bytes, "problems": []}

    status, out, _ = command_line("checkpoint", "show", str(run), "--json")
    shown = json.loads(out)
    assert (status, shown["checkpoint"], shown["step"]) == (0, str(directory(run, 40)), 40)
    assert [each["name"] for each in shown["tensors"]] == ["w", "n", "b"]

    words = ["checkpoint", "diff", str(directory(run, 30)), str(directory(run, 20)), "--json"]
    status, out, _ = command_line(*words)
    found = json.loads(out)
    assert (status, found["equal"], found["compared"]) == (1, False, 3)
    assert found["fields"]["data"] == {"step": [30, 20]}
    assert {each["name"] for each in found["tensors"]} == {"w", "n", "b"}
    status, out, _ = command_line(*words[:3], str(directory(run, 30)), "--json")
    assert (status, json.loads(out)["equal"]) == (0, True)


def test_a_pin_is_set_and_removed(command_line, run):
    status, out, _ = command_line("checkpoint", "pin", str(directory(run, 10)))
    assert (status, out) == (0, f"{directory(run, 10)}  pinned\n")
    assert store_in(run / "checkpoints").pinned() == {"step-00000010"}
    assert command_line("checkpoint", "pin", str(directory(run, 10)), "--remove")[0] == 0
    assert store_in(run / "checkpoints").pinned() == set()
    status, out, err = command_line("checkpoint", "pin", str(directory(run, 10)), "--remove")
    assert (status, out) == (2, "")
    assert f"{directory(run, 10)} is not pinned; holdfast checkpoint ls says" in err
    status, _, err = command_line("checkpoint", "pin", str(directory(run, 99)))
    assert (status, "neither a checkpoint nor" in err) == (2, True)


def test_a_damaged_checkpoint_is_not_pinned(command_line, run):
    command_line("checkpoint", "pin", str(directory(run, 20)))
    for step in (10, 20):
        (directory(run, step) / "manifest.json").write_bytes(b"{")
        status, out, err = command_line("checkpoint", "pin", str(directory(run, step)))
        assert (status, out) == (1, "")
        assert "manifest.json is damaged" in err
        assert "it was not pinned: pin another checkpoint" in err
    assert store_in(run / "checkpoints").pinned() == {"step-00000020"}
    assert command_line("checkpoint", "pin", str(directory(run, 20)), "--remove")[0] == 0


def test_pruning_keeps_what_the_job_says(command_line, run):
    write(run / "checkpoints", 50, state_of(LAYOUT), LAYOUT)
    before = content_of(run)
    status, out, _ = command_line("checkpoint", "prune", str(run), "--dry-run")
    assert (status, out) == (0, "step-00000010  would be deleted\n")
    assert content_of(run) == before
    status, out, _ = command_line("checkpoint", "prune", str(run))
    assert (status, out) == (0, "step-00000010  deleted\n")
    names = sorted(path.name for path in (run / "checkpoints").iterdir())
    assert names == ["latest", "step-00000020", "step-00000030", "step-00000040"]
    assert command_line("checkpoint", "prune", str(run))[1] == "nothing to delete\n"
    command_line("checkpoint", "prune", str(run), "--keep", "1", "--keep-every", "0")
    assert store_in(run / "checkpoints").committed() == ["step-00000040", "step-00000020"]


def test_pruning_verifies_before_it_deletes(command_line, run):
    part = damage(run, 40)
    status, out, _ = command_line("checkpoint", "prune", str(run), "--keep", "1", "--dry-run")
    assert (status, f"{part.parent}  corrupt: " in out) == (0, True)
    assert part.exists()
    status, out, _ = command_line("checkpoint", "prune", str(run), "--keep", "1")
    assert (status, ".rejected-1  corrupt: " in out) == (0, True)
    assert store_in(run / "checkpoints").committed() == ["step-00000030", "step-00000020"]


def test_equal_checkpoints_have_no_difference(command_line, run, tmp_path):
    fields = {"best": Best(value=0.5, step=20), "metrics": {"accuracy": 0.5}, "order": ORDER}
    same = save(tmp_path / "same", 40, state_of(LAYOUT, seed=40), LAYOUT, world=3, **fields)
    status, out, _ = command_line("checkpoint", "diff", str(run), str(same))
    assert status == 0
    assert out.splitlines()[2:] == [
        "tensors  3 compared, equal", "job      equal", "metrics  equal", "data     equal",
        "state    equal",
    ]  # fmt: skip


def test_differences_are_named(command_line, run, tmp_path):
    other = save(
        tmp_path / "other", 41, state_of(LAYOUT, seed=40), LAYOUT, order={**ORDER, "seed": 1},
        weights_config={"seed": 1, "model": {"name": "mlp"}}, metrics={"accuracy": 0.5},
        best=Best(value=0.5, step=20), user_state={"groups": [{"lr": 0.1}]},
    )  # fmt: skip
    status, out, err = command_line("checkpoint", "diff", str(run), str(other))
    assert (status, err) == (1, "")
    assert out.splitlines()[2:] == [
        "tensors  3 compared, equal", "job      2 differ", "  seed: 0 | 1",
        '  model: none | {"name": "mlp"}', "metrics  equal", "data     2 differ",
        "  step: 40 | 41", "  seed: 0 | 1", "state    1 differ",
        '  groups: none | [{"lr": 0.1}]',
    ]  # fmt: skip


def test_weights_are_exported_for_dcp_too(command_line, run, tmp_path):
    target = tmp_path / "dcp"
    words = ["export", str(run), str(target), "--format", "dcp"]
    assert command_line(*words)[:2] == (0, f"{directory(run, 40)} -> {target}\n")
    assert (target / ".metadata").exists()
    assert command_line(*words)[0] == 2
    assert command_line(*words, "--best", "--force")[0] == 0
    assert command_line("export", str(run), "--format", "csv", "--best")[0] == 2


def test_a_live_run_is_not_pruned(command_line, run):
    before = content_of(run)
    with held(run):
        status, _, err = command_line("checkpoint", "prune", str(run), "--keep", "1")
    assert status == 2
    assert f"{run} is in use by another process, {os.getpid()} on " in err
    assert set(content_of(run)) - set(before) == {run / ".lock"}
    assert len(store_in(run / "checkpoints").committed()) == 4
