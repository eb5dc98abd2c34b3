"""Links: what an all-reduce is written against: ranges of one vector, read by others in rounds.

Each member has a vector of equal length. Element i of one only ever meets element i of another, so
a message is a range of elements: it is added to the receiver's range, or replaces it.

    round      each member says which of its ranges others read, and which of theirs it takes
    last one   the vectors are equal, and no member reads another's any more

A range that was sent does not change until it is replaced by a result, which contains what was
sent: so no member overwrites what another still reads, and a round needs no second meeting.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Protocol

Ranges = Mapping[int, range]
"""Elements by member; a member is a position from 0."""


class Links(Protocol):
    """The links of one member to the others, and its vector.

    Attributes:
        member: This member.
        hosts: The members of each host; together they are all.
    """

    member: int
    hosts: Sequence[Sequence[int]]

    def exchange(self, sends: Ranges, receives: Ranges, *, add: bool) -> None:
        """Take part in one round, of which all members have as many.

        Args:
            sends: Elements that others take, by who takes them.
            receives: Elements to take, by whose they are.
            add: True to add them in the order of `receives`; False to replace the own ones.

        Raises:
            Aborted: The generation is over.
            HoldfastError: It took too long.
        """
        ...

    def finish(self) -> None:
        """Wait until no other member reads this vector any more.

        Raises:
            Aborted: The generation is over.
            HoldfastError: It took too long.
        """
        ...


Algorithm = Callable[[Links, Sequence[int], range], None]
"""Adds a range of elements over some members, in place. Members that are not among these take part
in as many rounds."""


def skip(links: Links, num_rounds: int) -> None:
    """Take part in rounds in which this member neither sends nor receives."""
    for _ in range(num_rounds):
        links.exchange({}, {}, add=False)


def pieces(elements: range, most: int) -> Iterator[slice]:
    """The slices of a range, of `most` elements each, but the last one."""
    for start in range(elements.start, elements.stop, most):
        yield slice(start, min(start + most, elements.stop))


def parts(elements: range, count: int) -> list[range]:
    """Cut a range into `count` ranges whose lengths differ by one at most."""
    first, length = elements.start, len(elements)
    borders = [first + length * index // count for index in range(count + 1)]
    return [range(borders[index], borders[index + 1]) for index in range(count)]
