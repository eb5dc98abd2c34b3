"""Objects: what holdfast needs of a store outside of the run directory, such as a bucket.

An object has a name with slashes and a content that is written as a whole. There is no renaming.
Listings are hints: a store may show a new object late, and one that is deleted for a while. So what
is expected is read by its name.
"""

from __future__ import annotations

from typing import Protocol


class Objects(Protocol):
    """Named objects below one URL.

    Every method raises PermissionError if the store refuses the request as such, and another
    OSError if it cannot be reached, or is full.

    Attributes:
        url: Location of the objects, for people.
    """

    url: str

    def put(self, name: str, data: bytes | memoryview, *, new: bool = False) -> bool:
        """Write an object durably.

        Args:
            name: Its name.
            data: Its content.
            new: True if an object of this name must not be replaced.

        Returns:
            Whether it was written; False only with `new`, if there is an object of this name.
        """

    def get(self, name: str) -> bytes:
        """The content of an object.

        Raises:
            FileNotFoundError: There is none of this name.
        """

    def size(self, name: str) -> int | None:
        """The size of an object in bytes; None if there is none of this name."""

    def children(self, folder: str) -> list[str]:
        """The first parts of all names below a folder, as a listing shows them; "" is the root."""

    def delete(self, name: str) -> None:
        """Delete an object, or all objects below a folder; it need not be there."""
