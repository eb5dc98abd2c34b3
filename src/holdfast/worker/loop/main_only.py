"""MainOnly: user code that runs on one worker only, and changes nothing that workers have alike."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext

from holdfast.arena.memory import Phase
from holdfast.data.dataset import generators_kept
from holdfast.errors import JobError
from holdfast.worker.membership.member import Member

Call = Callable[[], object]


class MainOnly:
    """The functions of `session.main_only` on one worker.

    The first member of the generation runs them. What is called in `session.on_commit` runs once
    the step's state is complete, so that whatever the function changes in it is noticed.

    Args:
        member: The worker.
    """

    def __init__(self, member: Member) -> None:
        self._member = member
        self._deferred: list[Call] = []
        self._is_running = False

    def call(self, function: Call, *, after_commit: bool) -> None:
        """Run `function` if this worker is the one, now or after the commit hooks."""
        self._member.join_once()
        if self._member.group.member_index != 0 or self._member.standby.is_active:
            return
        if after_commit:
            self._deferred.append(function)
        else:
            self._run(function)

    def run_deferred(self) -> None:
        """Run what commit hooks have called."""
        deferred = self._deferred
        self._deferred = []
        for function in deferred:
            self._run(function)

    def refuse(self, call: str) -> None:
        """Raises: JobError: `session.call` is called in such a function."""
        if self._is_running:
            raise JobError(
                f"session.{call} was called in a session.main_only function, which the other "
                "workers do not run; call it outside of the function"
            )

    def _run(self, function: Call) -> None:
        """Run `function`, and undo what it draws, and what a forward pass changes in the model.

        Raises:
            JobError: It changes the state of the run.
        """
        if self._is_running:
            function()
            return
        member = self._member
        status = member.context.status
        view = member.joined.state.read_only_view() if member.has_joined else nullcontext()
        before = status.enter(Phase.FORWARD)
        self._is_running = True
        try:
            with generators_kept(), view, self._model_kept():
                function()
        finally:
            self._is_running = False
        status.enter(before)

    @contextmanager
    def _model_kept(self) -> Iterator[None]:
        """Refuse calls of a model within the context, if they would wait for the other workers."""
        member = self._member
        if not (member.job.parallel.is_cut and member.has_joined):
            yield
            return
        hook = member.joined.replica.model.register_forward_pre_hook(self._refuse_call)
        try:
            yield
        finally:
            hook.remove()

    def _refuse_call(self, *_: object) -> None:
        raise JobError(
            "the model was called in a session.main_only function, and with "
            f"{self._member.job.parallel.words} a forward pass needs all workers; use "
            "session.evaluate, or call the model on every worker"
        )
