"""The script for sbatch is one that bash reads, and the one that was reviewed."""

import subprocess
from pathlib import Path

import pytest

from holdfast.clusters.render.slurm import sbatch
from holdfast.job import load

GOLDEN = Path(__file__).parent / "golden" / "slurm" / "digits.sh"
WORDS = ["digits", "workers=6", "resources.memory=2GiB", "resources.cpus=2"]


def script(*overrides, hosts=3):
    words = [*WORDS, *overrides]
    job = load.load(words[0], [*words[1:], f"hosts={hosts}"]).resolved()
    return sbatch(job, words)


def test_the_script_is_the_one_that_was_reviewed():
    assert script() == GOLDEN.read_text()


def test_the_script_asks_for_what_workers_need():
    def directives(*overrides, **options):
        lines = script(*overrides, **options).splitlines()
        return {line.removeprefix("#SBATCH --") for line in lines if line.startswith("#SBATCH")}

    before = directives()
    assert directives("resources.gpus=1") - before == {"gpus-per-node=2"}
    assert directives("workers=8", hosts=4) - before == {"nodes=4"}
    assert directives("max_hosts=5") - before == {"nodes=3-5"}
    assert "max_hosts=5 --on slurm" in script("max_hosts=5")
    assert directives("resources.cpus=3") - before == {"cpus-per-task=6"}
    assert before - directives("resources.memory='0'") == {"mem=4096M"}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["digits", "it's mine; $(true)"])
def test_bash_reads_the_script_and_no_value_becomes_a_command(name):
    text = script(f"params.note={name!r}")
    checked = subprocess.run(
        ["bash", "-n"], input=text, text=True, capture_output=True, check=False, timeout=30
    )
    assert (checked.returncode, checked.stderr) == (0, "")
    (line,) = (line for line in text.splitlines() if "params.note" in line)
    words = line.strip().partition(" --on ")[0]
    split = subprocess.run(
        ["bash", "-c", f"printf '%s\\n' {words}"], text=True, capture_output=True, check=True
    )
    assert f"params.note={name!r}" in split.stdout.splitlines()


if __name__ == "__main__":
    GOLDEN.parent.mkdir(exist_ok=True)
    GOLDEN.write_text(script())
