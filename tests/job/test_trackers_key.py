"""The key `trackers`: names, or names with settings; no credentials."""

import pytest

from holdfast.errors import JobError
from holdfast.job.load import dump, load, of_text


def test_names_and_settings_are_read_back():
    job = load("digits", ["trackers=[otel, {name: mlflow, uri: 'http://h:5000'}]"]).resolved()
    assert [each.name for each in job.trackers] == ["otel", "mlflow"]
    assert job.trackers[1].uri == "http://h:5000"
    assert of_text(dump(job), "job.yaml") == job


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("mlflow", "trackers: should be a list of trackers, such as"),
        ("[mlfow]", "no tracker 'mlfow'; name tensorboard, mlflow, wandb or otel"),
        ("[3]", "no tracker 3; name"),
        ("[{uri: x}]", "no tracker None; name"),
        ("[wandb, wandb]", "wandb is given twice"),
        ("[{name: otel, uri: x}]", "unknown key trackers.0.uri"),
        (
            "[{name: mlflow, experiment: ''}]",
            "trackers.0.experiment: string should have at least 1",
        ),
    ],
)
def test_mistakes_are_named(value, message):
    with pytest.raises(JobError) as caught:
        load("digits", [f"trackers={value}"])
    assert message in str(caught.value)


@pytest.mark.parametrize(
    "address", ["http://user:secret@h:5000", "http://h/?key=secret", "http://secret@h"]
)
def test_credentials_are_refused_without_being_repeated(address):
    with pytest.raises(JobError, match="address without a user, password or query") as caught:
        load("digits", [f"trackers=[{{name: mlflow, uri: '{address}'}}]"])
    assert "secret" not in str(caught.value)
