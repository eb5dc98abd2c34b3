"""Train a small vision transformer: parameter groups, warm-up and cosine, an average, bfloat16.

python vision_transformer.py
"""

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn
from torch.optim.lr_scheduler import CosineAnnealingLR, LinearLR, SequentialLR
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import TensorDataset

import holdfast

digits = load_digits()
x = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
training = TensorDataset(x[:1500], torch.tensor(digits.target[:1500]))

JOB = {"batch": 100, "shards": 4, "clip_norm": 1.0, "precision": "bf16"}


class VisionTransformer(nn.Module):
    def __init__(self, width=32, layers=2):
        super().__init__()
        self.patches = nn.Conv2d(1, width, kernel_size=2, stride=2)
        self.position = nn.Parameter(0.02 * torch.randn(16, width))
        block = nn.TransformerEncoderLayer(width, 4, 4 * width, batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(block, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, 10)

    def forward(self, images):
        tokens = self.patches(images).flatten(2).transpose(1, 2) + self.position
        return self.head(self.blocks(tokens).mean(1))


def optimizer(model):
    named = dict(model.named_parameters())
    decayed = [p for name, p in named.items() if p.ndim > 1 and name != "position"]
    others = [p for name, p in named.items() if p.ndim == 1 or name == "position"]
    groups = [{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=3e-3)


def warmup_and_cosine(optimizer, total_steps):
    parts = LinearLR(optimizer, 0.1, total_iters=5), CosineAnnealingLR(optimizer, total_steps - 5)
    return SequentialLR(optimizer, list(parts), [5])


def main(session):
    model, _ = session.attach(VisionTransformer, optimizer, schedule=warmup_and_cosine)
    average = session.register("average", AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn()))
    session.on_commit(lambda: average.update_parameters(model))
    for shard in session.shards(training, epochs=2):
        session.backward(F.cross_entropy(model(shard.x), shard.y))


if __name__ == "__main__":
    result = holdfast.train(main, JOB | {"workers": 2})
    result.load_into(AveragedModel(VisionTransformer()), of="average")
