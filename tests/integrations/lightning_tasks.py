"""A script of Lightning, as it is, except for the import of the Trainer."""

import os
from pathlib import Path

import lightning.pytorch
import torch
import torch.nn.functional as F
from lightning.pytorch import Callback, LightningModule
from lightning.pytorch.callbacks import EarlyStopping, LearningRateMonitor, ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import holdfast
from holdfast import Session
from holdfast.integrations.lightning import Trainer


class Net(LightningModule):
    def __init__(self, dropout=0.0):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Dropout(dropout))
        self.head = nn.Linear(16, 3)

    def forward(self, x):
        return self.head(self.layers(x))

    def training_step(self, batch, _batch_idx):
        x, y = batch
        loss = F.cross_entropy(self(x), y)
        self.log("loss", loss, prog_bar=True, on_epoch=True)
        self.log("head", loss.detach() / 2)
        return loss

    def validation_step(self, batch, _batch_idx):
        x, y = batch
        self.log("val_loss", F.cross_entropy(self(x), y))

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=0.05)
        total = self.trainer.estimated_stepping_batches
        cycle = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.05, total_steps=total)
        return [optimizer], [{"scheduler": cycle, "interval": "step"}]


class Normalized(Net):
    """Follows a schedule that looks at the validation, and has buffers."""

    def __init__(self, dropout):
        super().__init__(dropout)
        self.layers.append(nn.BatchNorm1d(16))

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)
        plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, threshold=0.2)
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": plateau, "monitor": "val_loss"},
        }


class Average(Callback):
    """Keeps an average of the weights, and the sum of the losses."""

    def setup(self, trainer, pl_module, stage):
        self.model = torch.optim.swa_utils.AveragedModel(pl_module.head)
        self.losses = 0.0

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        if outputs:
            self.losses += outputs["loss"].item()
            self.model.update_parameters(pl_module.head)


def data(samples):
    generator = torch.Generator().manual_seed(5)
    x = torch.randn(samples, 8, generator=generator)
    return TensorDataset(x, x[:, :3].argmax(1))


def train(folder, trainer=Trainer, *, samples=96, accumulated=4, patience=9, net=None, **more):
    """Train as a script of Lightning does; returns the Trainer."""
    torch.manual_seed(1)
    net = net or Net()
    checkpoint = ModelCheckpoint(folder / "best", monitor="val_loss", save_last=True)
    stopping = EarlyStopping("val_loss", patience=patience, min_delta=more.pop("min_delta", 0.0))
    made = trainer(
        max_epochs=3,
        accumulate_grad_batches=accumulated,
        gradient_clip_val=0.5,
        callbacks=[checkpoint, stopping, LearningRateMonitor(), *more.pop("callbacks", [])],
        logger=CSVLogger(folder, flush_logs_every_n_steps=1),
        log_every_n_steps=1,
        enable_progress_bar=False,
        enable_model_summary=False,
        accelerator="cpu",
        devices=1,
    )
    read = data(samples)
    made.fit(net, DataLoader(read, 8, shuffle=more.get("shuffle")), DataLoader(read, 32))
    return made


def main():
    params = dict(holdfast.session().job.params)
    made = train(Path(params.pop("folder")), **params)
    print("ended", made.global_step, made.current_epoch)


def beside():
    """Train as the process of the library alone would, and then in the run."""
    folder = Path(holdfast.session().job.params["folder"])
    kept, Session.current = Session.current, None
    for name, kind in {"library": lightning.pytorch.Trainer, "ours": Trainer}.items():
        train(folder / f"{name}-{os.getpid()}", kind)
    Session.current = kept
    main()


def exact():
    """What a library alone would not repeat: dropout, shuffled samples, and more state."""
    params = holdfast.session().job.params
    callbacks = [Average()] if params.get("averages", True) else []
    options = {"samples": 90, "accumulated": 2, "shuffle": True, "callbacks": callbacks}
    train(Path(params["folder"]), net=Normalized(0.2), **options)
    print("losses", *(each.losses for each in callbacks))


class Manual(Net):
    automatic_optimization = False

    def optimizer_step(self, *args, **kwargs):
        super().optimizer_step(*args, **kwargs)


class Counting(Callback):
    def on_before_optimizer_step(self, trainer, pl_module, optimizer):
        """Count."""


class Several(Net):
    def configure_optimizers(self):
        return [torch.optim.SGD(part.parameters(), 0.1) for part in (self.layers, self.head)]


def refused():
    """Print what the Trainer refuses before anything is attached."""
    read = DataLoader(data(96), 8)
    given = [
        {"strategy": "fsdp"},
        {"strategy": "deepspeed"},
        {"precision": "16-mixed"},
        {"max_time": "00:01:00:00", "fast_dev_run": True, "limit_train_batches": 0.5},
        {"gradient_clip_val": 1.0, "gradient_clip_algorithm": "value"},
        {"reload_dataloaders_every_n_epochs": 1},
    ]
    for keys in given:
        _show(lambda keys=keys: Trainer(**keys))
    fits = [
        ([Net(), read], {"ckpt_path": "last"}, []),
        ([Manual(), read], {}, [Counting()]),
        ([nn.Linear(1, 1), read], {}, []),
        ([Net(), [read, read]], {}, []),
        ([Net(), DataLoader(data(96), batch_sampler=[[0]])], {}, []),
        ([Several(), read], {}, []),
    ]
    for args, keys, callbacks in fits:
        options = {"callbacks": callbacks, "logger": False, "enable_checkpointing": False}
        made = Trainer(**options)
        _show(lambda made=made, args=args, keys=keys: made.fit(*args, **keys))


def _show(call):
    try:
        call()
    except holdfast.JobError as error:
        print("refused:", error)
    else:
        print("accepted")


class Summing(Net):
    def training_step(self, batch, _batch_idx):
        loss = F.cross_entropy(self(batch[0]), batch[1])
        self.log("total", loss, reduce_fx="sum")
        return loss


class Nothing(Net):
    def training_step(self, *_):
        return None


class Reading(Net):
    def on_train_batch_start(self, batch, _batch_idx):
        batch[0].mean()


def refused_in_a_step():
    params = dict(holdfast.session().job.params)
    net = {"sum": Summing, "nothing": Nothing, "read": Reading}[params["net"]]()
    train(Path(params["folder"]), net=net)


def twice():
    made = train(Path(holdfast.session().job.params["folder"]))
    made.fit(Net(), DataLoader(data(96), 8))
