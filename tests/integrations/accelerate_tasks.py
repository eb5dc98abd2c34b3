"""A script of Accelerate, as it is, except for the import and the range."""

import os
from pathlib import Path

import accelerate
import torch
import torch.nn.functional as F
from accelerate.state import AcceleratorState
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import holdfast
from holdfast import Session
from holdfast.integrations.accelerate import Accelerator


def data(samples):
    generator = torch.Generator().manual_seed(5)
    x = torch.randn(samples, 8, generator=generator)
    return TensorDataset(x, x[:, :3].argmax(1))


def build(dropout, samples, **loader):
    torch.manual_seed(1)
    layers = nn.Linear(8, 16), nn.BatchNorm1d(16) if dropout else nn.Tanh(), nn.Dropout(dropout)
    model = nn.Sequential(*layers, nn.Linear(16, 3))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2, gamma=0.8)
    read = data(samples)
    loaders = DataLoader(read, 8, **loader), DataLoader(read, 32)
    return model, optimizer, scheduler, *loaders


def train(folder, kind=Accelerator, *, accumulated=4, samples=96, dropout=0.0, **loader):
    folder.mkdir(exist_ok=True)
    accelerator = kind(cpu=True, gradient_accumulation_steps=accumulated)
    built = build(dropout, samples, **loader)
    model, optimizer, scheduler, batches, tested = accelerator.prepare(*built)
    for epoch in range(getattr(accelerator, "first_epoch", 0), 3):
        model.train()
        for x, y in batches:
            with accelerator.accumulate(model):
                accelerator.backward(F.cross_entropy(model(x), y))
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 0.5)
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
        model.eval()
        with torch.no_grad():
            scores = accelerator.gather_for_metrics(
                [F.cross_entropy(model(x), y) for x, y in tested]
            )
        if accelerator.is_main_process:
            with (folder / "losses.txt").open("a") as file:
                file.write(f"{epoch} {sum(scores):.6f}\n")
    accelerator.save(accelerator.unwrap_model(model).state_dict(), folder / "model.pt")
    accelerator.end_training()


def main():
    params = dict(holdfast.session().job.params)
    train(Path(params.pop("folder")), **params)


def beside():
    """Train as the process of the library alone would, and then in the run."""
    folder = Path(holdfast.session().job.params["folder"])
    folder.mkdir(exist_ok=True)
    kept, Session.current = Session.current, None
    for name, kind in {"library": accelerate.Accelerator, "ours": Accelerator}.items():
        train(folder / f"{name}-{os.getpid()}", kind)
    Session.current = kept
    AcceleratorState._reset_state(reset_partial_state=True)
    main()


def refused():
    """Print what is refused before the loop and in it."""
    accelerator = Accelerator(cpu=True)
    built = build(0.0, 96)
    _show(lambda: accelerator.prepare(built[0]))
    _show(lambda: accelerator.save_state("folder"))
    _show(lambda: Accelerator(cpu=True, fsdp_plugin=object()))
    _show(lambda: accelerator.first_epoch)
    other = build(0.0, 96)
    plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(other[1])
    _show(lambda: accelerator.prepare(*other[:2], plateau, other[3]))
    model, optimizer, scheduler, batches, _ = accelerator.prepare(*built)
    _show(lambda: next(iter(batches)))
    for _ in range(accelerator.first_epoch, 1):
        for x, y in batches:
            accelerator.backward(F.cross_entropy(model(x), y))
            _show(lambda x=x: accelerator.gather(x))
            _show(lambda: accelerator.clip_grad_norm_(model.parameters(), 2.0))
            _show(lambda: next(iter(batches)))
        _show(scheduler.step)
        _show(optimizer.step)
    accelerator.end_training()


def _show(call):
    try:
        call()
    except holdfast.JobError as error:
        print("refused:", error)
    else:
        print("accepted")
