"""Train on a streamed data set of Hugging Face, shuffled through a buffer.

python hugging_face_stream.py
"""

import torch
import torch.nn.functional as F
from datasets import Dataset

import holdfast

JOB = {"batch": 32, "shards": 4}


def reviews():
    """In real life: `load_dataset(…, streaming=True)`."""
    good, bad = ("lovely fine great superb", "awful dull poor bad")
    texts = [f"a {word} film {n}" for n in range(80) for word in f"{good} {bad}".split()]
    labels = [int(text.split()[1] in good.split()) for text in texts]
    stream = Dataset.from_dict({"text": texts, "label": labels}).to_iterable_dataset(num_shards=4)
    return stream.shuffle(seed=1, buffer_size=100).map(encoded, remove_columns=["text"])


def encoded(row):
    text = row["text"].encode()[:24].ljust(24)
    return {"tokens": torch.tensor(list(text)), "label": row["label"]}


class Bag(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.head = torch.nn.Embedding(128, 32), torch.nn.Linear(24 * 32, 2)

    def forward(self, tokens):
        return self.head(self.embedding(tokens).flatten(1))


def main(session):
    model, _ = session.attach(Bag, lambda p: torch.optim.AdamW(p, lr=1e-3))
    for shard in session.shards(reviews(), steps=50):  # 20 steps an epoch: two and a half
        logits = model(shard.batch["tokens"])
        session.log(accuracy=(logits.argmax(1) == shard.batch["label"]).double().mean())
        session.backward(F.cross_entropy(logits, shard.batch["label"]))


if __name__ == "__main__":
    print(holdfast.train(main, JOB | {"workers": 2}).history["accuracy"][-1])
