"""Two versions of the user's code are told apart only by what is known of both."""

import pytest

from holdfast.core.code_version import UNKNOWN, CodeVersion, changes, in_words

COMMIT = CodeVersion(commit="0123456789abcdef", task_sha256="f" * 64)
MODIFIED = CodeVersion(commit="0123456789abcdef", is_modified=True, task_sha256="f" * 64)
OTHER = CodeVersion(commit="fedcba9876543210", task_sha256="f" * 64)
FILE = CodeVersion(task_sha256="a" * 64)


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (UNKNOWN, ""),
        (COMMIT, "commit 0123456789ab"),
        (MODIFIED, "commit 0123456789ab with changes"),
        (FILE, "a task with SHA-256 aaaaaaaaaaaa"),
    ],
)
def test_a_version_in_words(code, words):
    assert in_words(code) == words


@pytest.mark.parametrize(
    ("before", "now", "differ"),
    [
        (COMMIT, COMMIT, False),
        (COMMIT, OTHER, True),
        (COMMIT, MODIFIED, True),
        (COMMIT, UNKNOWN, False),
        (UNKNOWN, COMMIT, False),
        (FILE, FILE, False),
        (FILE, CodeVersion(task_sha256="b" * 64), True),
        (FILE, UNKNOWN, False),
        (UNKNOWN, FILE, False),
        (CodeVersion(commit="0123"), FILE, False),
    ],
)
def test_what_differs_is_said_of_both(before, now, differ):
    expected = {"before": in_words(before), "now": in_words(now)} if differ else {}
    assert changes(before, now) == expected


def test_the_file_tells_apart_what_the_commit_does_not():
    assert changes(COMMIT, CodeVersion(task_sha256="a" * 64)) == {
        "before": "a task with SHA-256 ffffffffffff", "now": "a task with SHA-256 aaaaaaaaaaaa"
    }  # fmt: skip
