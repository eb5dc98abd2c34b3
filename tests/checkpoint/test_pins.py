"""A pin holds whatever happens at the same time, and a pinned checkpoint survives a crash."""

import shutil

import pytest

from checkpoints import layout_of, restore, save, state_of, store_in
from holdfast.checkpoint import names
from holdfast.checkpoint.storage import Storage
from holdfast.checkpoint.store import CheckpointStore
from holdfast.errors import CheckpointError

LAYOUT = layout_of(width=4)
NAME = names.checkpoint_name(10)


@pytest.fixture
def root(tmp_path):
    save(tmp_path, 10, state_of(LAYOUT), LAYOUT)
    return tmp_path


class Interposed(Storage):
    """Calls `meanwhile` once, after a group was renamed or published."""

    def __init__(self, root, meanwhile):
        super().__init__(root)
        self.meanwhile = meanwhile

    def interpose(self):
        meanwhile, self.meanwhile = self.meanwhile, lambda: None
        meanwhile()

    def rename(self, name, to):
        super().rename(name, to)
        self.interpose()

    def publish(self, draft, name):
        super().publish(draft, name)
        self.interpose()


def test_a_pin_is_kept_apart_from_the_checkpoint(root):
    store = store_in(root)
    store.pin(NAME)
    store.pin(NAME)
    assert store.pinned() == {NAME}
    assert store.committed() == [NAME]
    assert (root / "latest").read_text() == f"{NAME}\n"
    store.remove_partial()
    assert store.pinned() == {NAME}
    save(root, 10, state_of(LAYOUT, seed=1), LAYOUT)  # in its place
    assert store.pinned() == {NAME}
    store.unpin(NAME)
    store.unpin(NAME)
    assert store.pinned() == set()


def test_what_is_no_checkpoint_is_not_pinned(root):
    store = store_in(root)
    with pytest.raises(CheckpointError, match="step-00000099 is no checkpoint"):
        store.pin("step-00000099")
    assert store.pinned() == set()


def test_a_checkpoint_that_is_pinned_while_it_is_about_to_be_deleted_stays(root):
    def pinned():
        with pytest.raises(CheckpointError, match="was just deleted"):
            store_in(root).pin(NAME)  # it has lost its name
        shutil.copytree(root / f"{NAME}.0.tmp", root / NAME)
        store_in(root).pin(NAME)
        shutil.rmtree(root / NAME)

    CheckpointStore(Interposed(root, pinned)).delete(NAME)
    restore(root / NAME, LAYOUT)


def test_a_checkpoint_that_is_deleted_while_it_is_pinned_is_reported(root):
    def deleted():
        (root / NAME).rename(root / f"{NAME}.0.tmp")

    with pytest.raises(CheckpointError, match="was just deleted"):
        CheckpointStore(Interposed(root, deleted)).pin(NAME)
    assert store_in(root).pinned() == set()


@pytest.mark.parametrize("is_pinned", [False, True])
def test_a_crash_while_a_pinned_checkpoint_is_about_to_be_deleted_costs_nothing(root, is_pinned):
    store = store_in(root)
    if is_pinned:
        store.pin(NAME)
    (root / NAME).rename(root / f"{NAME}.0.tmp")
    store.remove_partial()
    assert store.committed() == [NAME] * is_pinned


def test_a_pin_whose_writing_was_interrupted_is_removed(root):
    store_in(root).storage.write_synced(names.pin_draft_name(NAME), "pin", [])
    store_in(root).remove_partial()
    assert sorted(path.name for path in root.iterdir()) == ["latest", NAME]
