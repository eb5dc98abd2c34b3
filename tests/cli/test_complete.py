"""The shell completes jobs, keys and values, by the protocol that its completion script speaks."""

import os
import subprocess
import sys

import pytest

from holdfast.cli.main import main


def request(line):
    """The environment in which bash asks for the last word of `line`, split at `=` already."""
    words = line.split(" ")
    return {
        "_HOLDFAST_COMPLETE": "complete_bash",
        "COMP_WORDS": "\n".join(words),
        "COMP_CWORD": str(len(words) - 1),
    }


@pytest.mark.slow
def test_a_completion_is_a_process_that_does_not_import_torch(tmp_path):
    code = "import sys; sys.argv[0] = 'holdfast'; from holdfast.cli.main import main; main()"
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-c", code],
        env={**os.environ, **request("holdfast train dig")},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.split() == ["digits"]
    assert " torch\n" not in done.stderr


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("holdfast tr", ["train", "track"]),
        ("holdfast train dig", ["digits"]),
        ("holdfast train mi", ["mine.yaml"]),
        ("holdfast train mo", ["more/"]),
        ("holdfast train more/", ["more/other.yml"]),
        ("holdfast train nowhere/", []),
        ("holdfast train digits --te", ["--tee"]),
        (
            "holdfast train digits nume",
            ["numerics=", "numerics=exact", "numerics=portable", "numerics=mixed", "numerics=fast"],
        ),
        ("holdfast train digits numerics=f", ["numerics=fast"]),
        ("holdfast train digits numerics =", ["exact", "portable", "mixed", "fast"]),
        ("holdfast train digits numerics = e", ["exact"]),
        ("holdfast train digits optimizer.l", ["optimizer.lr=", "optimizer.lr=0.004"]),
        ("holdfast train mine.yaml optimizer.l", ["optimizer.lr=", "optimizer.lr=0.5"]),
        ("holdfast train digits workers = 2 optimizer.lr =", ["0.004"]),
        ("holdfast train digits model.hid", []),
        ("holdfast train digits model.name = mlp model.hid", ["model.hidden="]),
        ("holdfast train digits data.augment=t", ["data.augment=true"]),
    ],
)  # fmt: skip
def test_a_word_is_completed(tmp_path, monkeypatch, capsys, line, expected):
    (tmp_path / "mine.yaml").write_text("optimizer: {name: sgd, lr: 0.5}\n")
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "other.yml").touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["holdfast"])
    for name, value in request(line).items():
        monkeypatch.setenv(name, value)
    with pytest.raises(SystemExit):
        main()
    assert capsys.readouterr().out.split() == expected
