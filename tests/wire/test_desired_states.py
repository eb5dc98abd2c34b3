"""Desired states arrive as they were sent, though what agents share is encoded once."""

from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.protocol import DesiredState, Probe, ResumePoint, Stage
from holdfast.wire.rpc import DesiredStateEncoder, DesiredStateMessage, load_desired_state

MEMBERS = [{}, {0: "a"}, {0: "a", 1: "b"}]
STARTS = [None, ResumePoint(step=5, donors={0: 0, 1: 0}), ResumePoint(step=5, donors={})]


def state(members, start, generation, rank):
    desired = DesiredState(
        generation=generation,
        stage=Stage.RUN,
        ranks=(rank,),
        members=members,
        addresses={rank: f"{host}:1\n" for rank, host in members.items()},
        resume_point=start,
        probes=(Probe(3, "b", "b:1"),),
    )
    return DesiredStateMessage(desired=desired, key="ab")


drawn = st.builds(
    state, st.sampled_from(MEMBERS), st.sampled_from(STARTS), st.integers(1, 3), st.integers(0, 9)
)


@given(st.lists(drawn, max_size=8))
def test_each_desired_state_arrives_as_it_was_sent(sent):
    encoder = DesiredStateEncoder()
    assert [load_desired_state(encoder.encode(each)) for each in sent] == sent
