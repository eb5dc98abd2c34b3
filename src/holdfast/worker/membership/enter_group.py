"""Enter group: how a worker takes part in a generation, connected to its other hosts."""

from __future__ import annotations

from functools import partial

from holdfast.collectives.connections import Listener
from holdfast.collectives.group import Group
from holdfast.collectives.network import GroupHosts, Network
from holdfast.wire.messages import ResumeMessage
from holdfast.worker.agent_link import AgentLink


def enter_group(
    group: Group,
    agent: AgentLink,
    listener: Listener | None,
    resume: ResumeMessage,
    *,
    has_mesh: bool = False,
) -> None:
    """Take part in a generation.

    Args:
        group: Group of this worker.
        agent: Hears of hosts that cannot be reached.
        listener: Listener for workers of other hosts; None if there are none.
        resume: Says who takes part.
        has_mesh: True to connect every worker with all of other hosts.

    Raises:
        Aborted: The generation is over.
        HoldfastError: Connecting takes too long.
    """
    # Connections belong to one generation: those of the last one go first.
    if group.network is not None:
        group.network.close()
    if not resume.hosts:
        group.enter(resume.generation, resume.members)
        return
    assert listener is not None, "a run on several hosts without an interface"
    hosts = GroupHosts(
        ranks=resume.hosts, addresses=resume.addresses, key=bytes.fromhex(resume.key)
    )
    report = partial(agent.report_peer, resume.generation)
    network = Network(hosts, group.rank, group.deadline, report)
    # Before connecting: an abort of this generation must end that wait.
    group.enter(resume.generation, resume.members, network)
    network.connect(listener, resume.generation, has_mesh=has_mesh)
