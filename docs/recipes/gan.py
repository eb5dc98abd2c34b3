"""Train a generator against a critic: two models, two optimizers, three critic steps for each
generator step (Arjovsky et al., "Wasserstein GAN", 2017).

    python gan.py
"""

import torch
from torch import nn
from torch.utils.data import TensorDataset

import holdfast

angles = torch.arange(960) * (2 * torch.pi / 8)
spread = 0.05 * torch.randn(960, 2, generator=torch.Generator().manual_seed(0))
data = TensorDataset(torch.stack([angles.cos(), angles.sin()], 1) + spread)  # eight clusters

JOB = {"batch": 64, "shards": 4}


def network(inputs, outputs):
    layers = nn.Linear(inputs, 48), nn.LeakyReLU(0.2), nn.Linear(48, 48), nn.LeakyReLU(0.2)
    return nn.Sequential(*layers, nn.Linear(48, outputs))


def rmsprop(model):
    return torch.optim.RMSprop(model.parameters(), lr=1e-3)


def main(session):
    generator, _ = session.attach(lambda: network(8, 2), rmsprop, name="generator")
    critic, _ = session.attach(lambda: network(2, 1), rmsprop, name="critic")

    def clip():
        with torch.no_grad():
            for parameter in critic.parameters():
                parameter.clamp_(-0.1, 0.1)

    session.on_commit(clip)
    for shard in session.shards(data, epochs=4):
        (real,) = shard.batch
        fake = generator(torch.randn(len(real), 8))
        if shard.step % 4 < 3:
            session.backward(critic(fake.detach()).mean() - critic(real).mean(), trains=critic)
        else:
            session.backward(-critic(fake).mean(), trains=generator)


if __name__ == "__main__":
    result = holdfast.train(main, JOB | {"workers": 2})
    generator = network(8, 2)
    result.load_into(generator, of="generator")
    print(generator(torch.randn(5, 8)))
