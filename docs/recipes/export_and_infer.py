"""Export trained weights and use them in plain PyTorch: the outputs are those of the trained model.

python export_and_infer.py
"""

import torch
import torch.nn.functional as F
from torch.utils.data import TensorDataset

import holdfast

generator = torch.Generator().manual_seed(0)
codes = torch.randn(3000, 2048, generator=generator).sign()  # of 3,000 classes
keep = torch.rand(3000, 2048, generator=generator) > 0.2
training, test = TensorDataset(codes, torch.arange(3000)), codes[:64] * keep[:64]

JOB = {"batch": 300, "shards": 4}


def network():
    return torch.nn.Linear(2048, 3000)


def main(session):
    model, _ = session.attach(network, lambda p: torch.optim.SGD(p, lr=1.0))
    for shard in session.shards(training, epochs=1):
        session.backward(F.cross_entropy(model(shard.x), shard.y))


def infer(path, inputs):  # where holdfast need not be installed
    model = torch.nn.Linear(2048, 3000)
    model.load_state_dict(torch.load(path, weights_only=True))
    with torch.no_grad():
        return model(inputs)


if __name__ == "__main__":
    result = holdfast.train(main, JOB | {"workers": 4})
    trained = network()
    result.load_into(trained)
    torch.save(result.state_dict(), "weights.pt")  # the same as: holdfast export RUN weights.pt
    outputs = infer("weights.pt", test)
    assert torch.equal(outputs, trained(test))
    print(f"{int((outputs.argmax(1) == torch.arange(64)).sum())} of 64 recognized")
