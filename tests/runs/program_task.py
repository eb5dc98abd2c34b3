"""A task that is a program: it reads its own command line."""

import argparse
from functools import partial

import torch
import torch.nn.functional as F
from stepping_tasks import data

import holdfast


def train(rate):
    session = holdfast.session()
    model, _ = session.attach(partial(torch.nn.Linear, 8, 3), partial(torch.optim.SGD, lr=rate))
    for shard in session.shards(data(), epochs=1):
        session.backward(F.cross_entropy(model(shard.batch[0]), shard.batch[1]))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--rate", type=float, required=True)
    options = parser.parse_args()
    print("rate", options.rate)
    train(options.rate)
