"""Train on texts of different lengths: a DataLoader pads them, and the loss counts tokens.

python padded_text.py
"""

import torch
import torch.nn.functional as F
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader

import holdfast

WORDS = ["the", "quick", "brown", "fox", "jumps", "over", "a", "lazy", "dog", "while", "it", "naps"]
PAD = 0

JOB = {"batch": 24, "shards": 6, "clip_norm": 1.0}


class Sentences(torch.utils.data.Dataset):
    """Sentences of 2 to 9 words, as bytes."""

    def __len__(self):
        return 240

    def __getitem__(self, index):
        chosen = torch.randint(len(WORDS), (2 + index % 8,), generator=self.generator(index))
        return torch.tensor(list(" ".join(WORDS[word] for word in chosen).encode()))

    def generator(self, index):
        return torch.Generator().manual_seed(index)


def padded(texts):
    tokens = pad_sequence(texts, batch_first=True, padding_value=PAD)
    return {"tokens": tokens[:, :-1], "next": tokens[:, 1:]}


class Reader(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = torch.nn.Embedding(128, 24, padding_idx=PAD)
        self.recurrent = torch.nn.GRU(24, 48, batch_first=True)
        self.head = torch.nn.Linear(48, 128)

    def forward(self, tokens):
        return self.head(self.recurrent(self.embedding(tokens))[0])


def main(session):
    model, _ = session.attach(Reader, lambda p: torch.optim.AdamW(p, lr=5e-3))
    loader = DataLoader(Sentences(), batch_size=24, shuffle=True, collate_fn=padded)
    for shard in session.shards(loader, epochs=4):
        logits, targets = model(shard.batch["tokens"]), shard.batch["next"]
        loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=PAD)
        session.backward(loss, weight=int((targets != PAD).sum()))  # its share of the step's tokens


if __name__ == "__main__":
    print(holdfast.train(main, JOB | {"workers": 2}).loss)
