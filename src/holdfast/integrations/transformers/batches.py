"""Batches of a Trainer: its samples in its order, as a run reads them, and what its loop sees.

A micro-batch of the Trainer is a shard. Its loop gets an empty one for each: the workers read their
shards themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, MutableMapping
from typing import Any, Final

import torch
from torch.utils.data import DataLoader, Dataset

from holdfast.integrations.width import Width

ITEMS: Final = "num_items_in_batch"
"""Name of the count of items, such as tokens, in a micro-batch."""


class Placeholders(Dataset[int]):
    """Stands for the micro-batches of an epoch.

    Args:
        count: Their number.
    """

    def __init__(self, count: int) -> None:
        self._count = count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, at: int) -> int:
        return at


def _nothing(_: object) -> dict[str, Any]:
    return {}


def placeholders(width: Width, samples: int) -> DataLoader[int]:
    """Placeholders that the Trainer's loop iterates over in an epoch of so many samples."""
    count = width.micro_batches(samples)
    return DataLoader(Placeholders(count), batch_size=1, collate_fn=_nothing)


class CountedCollate:
    """The Trainer's collator, which also counts the items of a micro-batch, if the loss is a mean
    over them.

    Args:
        collate: The collator.
        count: The Trainer's function for the items of micro-batches; gives None if there are none.
    """

    def __init__(
        self,
        collate: Callable[[list[Any]], Any],
        count: Callable[[list[Any], torch.device], torch.Tensor | int | None],
    ) -> None:
        self._collate = collate
        self._count = count

    def __call__(self, samples: list[Any]) -> Any:
        batch = self._collate(samples)
        items = self._count([batch], torch.device("cpu")) if isinstance(batch, Mapping) else None
        if items is not None and isinstance(batch, MutableMapping):
            batch[ITEMS] = int(items)
        return batch


def as_read(
    library: DataLoader[Any],
    width: Width,
    count: Callable[[list[Any], torch.device], torch.Tensor | int | None],
) -> DataLoader[Any]:
    """The samples of the Trainer's own loader in its order, in batches of a step."""
    batches: Any = library.batch_sampler
    return DataLoader(
        library.dataset,
        batch_size=width.batch,
        sampler=width.kept(batches.sampler, drops_last=batches.drop_last),
        collate_fn=CountedCollate(library.collate_fn, count),
        num_workers=library.num_workers,
        pin_memory=library.pin_memory and torch.cuda.is_available(),
    )
