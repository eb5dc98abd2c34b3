"""Arena: one anonymous memory file that all processes of a host share.

    | job words | line of rank 0 | … | fault requests of rank 0 | … | mailboxes | section | …

The agent writes the job words, each worker its own line and mailboxes, and a fault injector the
fault requests. Every word has one writer, so none needs an atomic operation. The sections hold
tensors; they are laid out once the model is known.

A process takes part in one generation. Once the agent has announced a newer one, every wait here
ends with `Aborted`. The file is a memfd: it has no name, and the kernel frees it with the last
process that has it open. It is sparse, so memory that is never written costs nothing.
"""

from __future__ import annotations

import ctypes
import enum
import mmap
import os
import platform
import struct
from typing import Final, Self

from holdfast.arena.pages import HUGE_PAGE, map_file
from holdfast.errors import Aborted, HoldfastError
from holdfast.linux import futex

WORD: Final = 8
"""Bytes in a word (int64)."""
LINE: Final = 64
"""Words in a line: whole cache lines, so that no two workers write to the same cache line."""

ABORT_POLL_S: Final = 0.002
"""The longest time that a waiting worker takes to notice an abort, seconds."""

MAILBOX_BYTES: Final = 1 << 20
"""The largest payload that a worker can bring to `Group.gather`."""

_MAGIC: Final = 0x686F6C64666173  # "holdfas"


@enum.unique
class JobWord(enum.IntEnum):
    """Words about the whole job, written by the agent."""

    MAGIC = 0
    WORLD_SIZE = 1
    GENERATION = 2  # the newest one: every older generation is over
    STOP = 3  # 1: stop after the current step
    SAVE = 4  # a generation, and the number of the checkpoint that is requested in it
    RELEASED = 5  # a generation, and the number of its newest checkpoint that is staged no longer
    COMPARE = 6  # a generation whose members must compare their replicas


@enum.unique
class Word(enum.IntEnum):
    """Words of one worker's line, written by that worker."""

    ARRIVALS = 0  # barriers reached so far; the word that peers sleep on
    TAG_EVEN = 1  # tag and value of the newest even barrier, and of the newest odd one:
    TAG_ODD = 2  # two of each, because a peer may still be reading the previous ones
    VALUE_EVEN = 3
    VALUE_ODD = 4
    PHASE = 5
    COMMITTED = 6  # steps committed
    TOTAL_STEPS = 7
    EPOCH = 8
    LOSS = 9  # bits of a float64
    PHASE_SINCE = 10  # nanoseconds of the monotonic clock
    EPOCHS = 11  # of the run
    SAMPLES = 12  # committed in this attempt, by all workers
    REDUCED_STEP = 13  # steps committed once the reduced gradient in the root slot is applied
    MEASURING = 14  # 1 while user code measures a batch of an evaluation
    SHARDS = 15  # computed in the current step; 0 once all of its shards are
    PHASE_TIMES = 16  # the first of one word per phase: nanoseconds spent in it so far
    PLANNED = 28  # shards in the current plan
    OLDEST_LEFT = 29  # the oldest change whose progress is left; see `arena.intact_replicas`
    INTACT = 30  # steps committed in the worker's replica plus one; 0 while it changes
    LEFT_PROGRESS = 31  # the same for what else it leaves, or its newest change
    ACKNOWLEDGED = 32  # the first of one word per fault: how many, and the step of the last one
    ROUNDS = 63  # rounds of all-reduces begun so far; peers sleep on it, too


@enum.unique
class Phase(enum.IntEnum):
    """Activity of a worker."""

    STARTING = 0
    DATA = 1
    FORWARD = 2  # in user code
    BACKWARD = 3
    COLLECT = 4  # a shard's gradient, into its partial sum
    WAIT = 5  # for the other workers
    REDUCE = 6
    WAIT_REDUCE = 7  # for the others' parts of a reduction, or for the network
    OPTIMIZER = 8
    EVALUATE = 9
    CHECKPOINT = 10
    LEFT = 11  # its loop over shards has ended


class Arena:
    """A mapping of the shared memory in this process.

    Args:
        fd: The file.

    Attributes:
        generation: The generation that this process takes part in; 0 before its first one.
    """

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.generation = 0
        self._map = mmap.mmap(fd, _header_bytes(_read_word(fd, JobWord.WORLD_SIZE)))
        self._bytes = memoryview(self._map)
        self._words = self._bytes.cast("q")
        self._address = ctypes.addressof(ctypes.c_char.from_buffer(self._map))
        assert self._words[JobWord.MAGIC] == _MAGIC, f"fd {fd} is not an arena"

    @classmethod
    def create(cls, world_size: int) -> Self:
        """A new arena with lines for `world_size` workers and no sections.

        Raises:
            HoldfastError: The CPU may show one core's stores to another out of order, or files must
                be smaller.
        """
        if platform.machine() != "x86_64":
            raise HoldfastError(
                f"shared memory between workers needs an x86-64 CPU, not {platform.machine()}"
            )
        fd = os.memfd_create("holdfast-arena", os.MFD_CLOEXEC)
        # All words are zero: no generation, nothing requested, no barrier reached.
        _extend(fd, _header_bytes(world_size))
        os.pwrite(fd, struct.pack("2q", _MAGIC, world_size), 0)
        return cls(fd)

    @property
    def world_size(self) -> int:
        return self._words[JobWord.WORLD_SIZE]

    def __getitem__(self, at: tuple[int, int]) -> int:
        rank, word = at
        return self._words[LINE * (rank + 1) + word]

    def __setitem__(self, at: tuple[int, int], value: int) -> None:
        rank, word = at
        self._words[LINE * (rank + 1) + word] = value

    def line(self, rank: int) -> memoryview:
        """The line of `rank`; see `arena.worker_status`."""
        first = LINE * (rank + 1)
        return self._words[first : first + LINE]

    def mailbox(self, rank: int, barrier: int) -> memoryview:
        """The mailbox of `rank` at its barrier of that number. A worker has two, which it uses in
        turn, because a peer may still be reading the other one.
        """
        # Mailboxes follow the line of the job, one line a worker, and one line of fault requests a
        # worker.
        start = WORD * LINE * (2 * self.world_size + 1)
        start += MAILBOX_BYTES * (2 * rank + (barrier & 1))
        return self._bytes[start : start + MAILBOX_BYTES]

    def fault_requests(self, rank: int) -> memoryview:
        """The words in which faults are requested from `rank`; see `arena.fault_requests`."""
        first = LINE * (self.world_size + 1 + rank)
        return self._words[first : first + LINE]

    @property
    def stop_requested(self) -> bool:
        return self._words[JobWord.STOP] != 0

    def request_stop(self) -> None:
        """Request that the workers stop after the current step."""
        self._words[JobWord.STOP] = 1

    @property
    def save_requested(self) -> int:
        """The number of the checkpoint requested in this process's generation; 0 for none."""
        return self._number_in(JobWord.SAVE) or 0

    def request_save(self, generation: int, number: int) -> None:
        """Request a checkpoint after the current step.

        Args:
            generation: The generation that writes it.
            number: The number of the checkpoint in that generation, from 1.
        """
        self._words[JobWord.SAVE] = generation << 32 | number

    @property
    def released(self) -> int | None:
        """The number of the newest checkpoint of this process's generation whose memory is free
        again, as that of all before it; None while one of an older generation is being written.
        """
        return self._number_in(JobWord.RELEASED)

    def release(self, generation: int, number: int) -> None:
        """Free the memory in which checkpoints up to this one were staged; see `arena.staging`.

        Args:
            generation: The generation that staged it.
            number: The number of the checkpoint in that generation; 0 for none.
        """
        self._words[JobWord.RELEASED] = generation << 32 | number

    @property
    def comparison_requested(self) -> bool:
        """True if the members of this process's generation must compare their replicas."""
        return self._words[JobWord.COMPARE] == self.generation != 0

    def request_comparison(self, generation: int) -> None:
        """Request that the members of a generation compare their replicas after this step."""
        self._words[JobWord.COMPARE] = generation

    def _number_in(self, word: JobWord) -> int | None:
        generation, number = divmod(self._words[word], 1 << 32)
        return number if generation == self.generation else None

    @property
    def newest_generation(self) -> int:
        return self._words[JobWord.GENERATION]

    def announce(self, generation: int) -> None:
        """End all generations before this one, and wake every worker that waits."""
        # The word first, then the wakes: a worker that wakes must see that its generation is over.
        self._words[JobWord.GENERATION] = max(generation, self.newest_generation)
        for rank in range(self.world_size):
            futex.wake(self._address_of(rank))

    def check_abort(self) -> None:
        """Raises: Aborted: The generation of this process is over."""
        # The word only rises, so an abort that was missed is seen at the next check.
        if self._words[JobWord.GENERATION] > self.generation:
            raise Aborted(f"generation {self.generation} is over")

    @property
    def reduced_step(self) -> int:
        """Steps committed once the reduced gradient in the root slot is applied; 0 if there is
        none.
        """
        # One worker that has passed the last barrier of the reduction is enough: the root slot is
        # whole.
        return max(self[rank, Word.REDUCED_STEP] for rank in range(self.world_size))

    def clear_reduced_step(self) -> None:
        """Note that the root slot holds no reduced gradient. For the agent, while all workers are
        halted.
        """
        for rank in range(self.world_size):
            self[rank, Word.REDUCED_STEP] = 0

    def intact_step(self, rank: int) -> int | None:
        """The steps committed in what a lost worker of a rank has left, None if it was lost in an
        update; see `arena.intact_replicas`.
        """
        # Equal words: the replica is whole, and the progress next to it belongs to the same step.
        intact = self[rank, Word.INTACT]
        return intact - 1 if intact and intact == self[rank, Word.LEFT_PROGRESS] else None

    def forget_replicas(self) -> None:
        """Forget which replicas are complete: what lost workers have left belongs to steps that
        will be computed again, or is not trusted.

        Where workers call it, all members do, before a barrier.
        """
        for rank in range(self.world_size):
            self[rank, Word.INTACT] = self[rank, Word.LEFT_PROGRESS] = 0

    def enter_generation(self, rank: int, generation: int) -> None:
        """Take part in a generation, as `rank`.

        The count of barriers starts above that of every older generation.
        """
        # Counts of older generations are smaller, so no barrier of this one takes them for
        # arrivals.
        self.generation = generation
        self[rank, Word.ROUNDS] = self[rank, Word.ARRIVALS] = generation << 32

    def arrive(self, rank: int, count: int | None = None) -> int:
        """Count one more barrier reached by `rank`, or `count` in all, and wake its peers; returns
        the count.
        """
        count = count or self[rank, Word.ARRIVALS] + 1
        # By now all that the worker brings to this barrier is written; see `Group`.
        self[rank, Word.ARRIVALS] = count
        futex.wake(self._address_of(rank))
        return count

    def begin_round(self, rank: int) -> int:
        """Count one more round of an all-reduce begun by `rank`, and wake its peers; returns the
        count.
        """
        count = self[rank, Word.ROUNDS] + 1
        # By now all that peers read in this round is written; see `arrive`.
        self[rank, Word.ROUNDS] = count
        futex.wake(self._address_of(rank, Word.ROUNDS))
        return count

    def sleep_until_above(self, rank: int, word: Word, seen: int, timeout_s: float) -> None:
        """Sleep until a count of `rank`, arrivals or rounds, passes `seen`, at most `timeout_s`."""
        futex.wait(self._address_of(rank, word), seen, timeout_s)

    def close(self) -> None:
        """Close the file; mappings of it stay valid."""
        os.close(self.fd)

    def _address_of(self, rank: int, word: Word = Word.ARRIVALS) -> int:
        # The low half of the word: x86-64 is little-endian.
        # A futex is 32 bits, and that half changes with every barrier, or every round.
        return self._address + WORD * (LINE * (rank + 1) + word)

    def map_sections(self, size_bytes: int) -> memoryview:
        """Grow the file to hold sections of `size_bytes`, and map them.

        Every worker passes the same size. The mapping begins on a huge page.

        Raises:
            HoldfastError: Files must be smaller.
        """
        # Workers call this in any order: the file only grows, and a page that was never written
        # reads as zeros.
        start = self.sections_start
        _extend(self.fd, max(start + size_bytes, os.fstat(self.fd).st_size))
        return map_file(self.fd, size_bytes, start)

    def map_privately(self, offset: int, size_bytes: int) -> memoryview:
        """Map part of the sections so that only this process sees what it writes there.

        Args:
            offset: Start of the part in the sections, a multiple of HUGE_PAGE.
            size_bytes: Its size.
        """
        return map_file(self.fd, size_bytes, self.sections_start + offset, private=True)

    @property
    def sections_start(self) -> int:
        """Offset of the sections in the file, bytes."""
        return -(-_header_bytes(self.world_size) // HUGE_PAGE) * HUGE_PAGE


def word_of(value: float) -> int:
    """The word with the bits of a float64."""
    return int(struct.unpack("q", struct.pack("d", value))[0])


def float_of(word: int) -> float:
    """The float64 with the bits of a word."""
    return float(struct.unpack("d", struct.pack("q", word))[0])


def _header_bytes(world_size: int) -> int:
    return WORD * LINE * (2 * world_size + 1) + 2 * MAILBOX_BYTES * world_size


def _extend(fd: int, size_bytes: int) -> None:
    try:
        os.ftruncate(fd, size_bytes)
    except OSError as error:
        raise HoldfastError(
            f"{size_bytes:,} bytes of memory that workers share: {error.strerror}; the limit of "
            "file sizes counts for it, so raise that (ulimit -f unlimited)"
        ) from None


def _read_word(fd: int, word: JobWord) -> int:
    return int(struct.unpack("q", os.pread(fd, WORD, WORD * word))[0])
