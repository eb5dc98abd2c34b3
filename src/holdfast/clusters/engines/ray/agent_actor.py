"""The actor that runs one agent on a node of a Ray cluster. Ray knows of no worker and no step."""

from __future__ import annotations

import ray

from holdfast.clusters.engines.ray.agent_process import AgentProcess


class AgentActor:
    """Runs one agent."""

    def node(self) -> str:
        """The id of this actor's node."""
        return str(ray.get_runtime_context().get_node_id())

    def run(self, arguments: tuple[str, ...], token: str) -> tuple[int, str]:
        """Run an agent to its end.

        Args:
            arguments: Arguments of the command `holdfast`.
            token: For its standard input.

        Returns:
            Its exit status, and the end of what it has printed.
        """
        return AgentProcess(arguments, token).await_end()
