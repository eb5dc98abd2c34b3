"""The shell completes jobs, keys and values, by the protocol that its completion script speaks."""

import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow


def offered(line, cwd):
    """What bash is offered for the last word of `line`, which it has split at `=` already."""
    words = line.split(" ")
    code = "import sys; sys.argv[0] = 'holdfast'; from holdfast.cli.main import main; main()"
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-c", code],
        env={
            **os.environ,
            "_HOLDFAST_COMPLETE": "complete_bash",
            "COMP_WORDS": "\n".join(words),
            "COMP_CWORD": str(len(words) - 1),
        },
        cwd=cwd,
        capture_output=True,
        text=True,
        check=False,
    )
    assert " torch\n" not in done.stderr
    return done.stdout.split()


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("holdfast tr", ["train"]),
        ("holdfast train dig", ["digits"]),
        ("holdfast train mi", ["mine.yaml"]),
        ("holdfast train mo", ["more/"]),
        ("holdfast train more/", ["more/other.yml"]),
        ("holdfast train nowhere/", []),
        ("holdfast train digits --te", ["--tee"]),
        (
            "holdfast train digits nume",
            ["numerics=", "numerics=exact", "numerics=portable", "numerics=fast"],
        ),
        ("holdfast train digits numerics=f", ["numerics=fast"]),
        ("holdfast train digits numerics =", ["exact", "portable", "fast"]),
        ("holdfast train digits numerics = e", ["exact"]),
        ("holdfast train digits optimizer.l", ["optimizer.lr=", "optimizer.lr=0.004"]),
        ("holdfast train mine.yaml optimizer.l", ["optimizer.lr=", "optimizer.lr=0.5"]),
        ("holdfast train digits workers = 2 optimizer.lr =", ["0.004"]),
        ("holdfast train digits model.hid", []),
        ("holdfast train digits model.name = mlp model.hid", ["model.hidden="]),
        ("holdfast train digits data.augment=t", ["data.augment=true"]),
    ],
)  # fmt: skip
def test_a_word_is_completed(tmp_path, line, expected):
    (tmp_path / "mine.yaml").write_text("optimizer: {name: sgd, lr: 0.5}\n")
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "other.yml").touch()
    assert offered(line, tmp_path) == expected
