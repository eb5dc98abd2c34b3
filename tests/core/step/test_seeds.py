"""Seeds hang on their key and nothing else."""

from holdfast.core.step.seeds import seed_for


def test_seeds_are_fixed_for_ever():
    assert seed_for("model", 0, 1, 2) == 6058326822241366487


def test_neighbouring_keys_give_different_seeds():
    seeds = {seed_for("model", 0, step, shard) for step in range(100) for shard in range(8)}
    assert len(seeds) == 800
    assert all(0 <= seed < 2**63 for seed in seeds)
