"""Train on a stream: samples come one after the other, each is used once per epoch.

python stream.py
"""

import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, IterableDataset

import holdfast

JOB = {"batch": 32, "shards": 4}


class Readings(IterableDataset):
    """What a sensor has recorded, from a file or a queue in real life.

    `state_dict` and `load_state_dict` are optional. With them, a resumed run continues here at
    once; without them, it reads the epoch from its start and discards what it has used.
    """

    def __init__(self, length):
        self.length, self.position = length, 0

    def __iter__(self):
        while self.position < self.length:
            self.position += 1
            x = torch.randn(8, generator=torch.Generator().manual_seed(self.position))
            noise = 0.01 * torch.randn(())  # drawn from a seed of the job, the same in every worker
            yield x, x[:4].sum() - x[4:].prod() + noise

    def state_dict(self):
        return {"position": self.position}

    def load_state_dict(self, state):
        self.position = state["position"]


def network():
    return torch.nn.Sequential(torch.nn.Linear(8, 64), torch.nn.GELU(), torch.nn.Linear(64, 1))


def main(session):
    model, _ = session.attach(network, lambda p: torch.optim.AdamW(p, lr=1e-2))
    for shard in session.shards(DataLoader(Readings(1000), batch_size=32), epochs=2):
        x, y = shard.batch
        session.backward(F.mse_loss(model(x).squeeze(1), y))


if __name__ == "__main__":
    print(holdfast.train(main, JOB | {"workers": 2}).loss)
