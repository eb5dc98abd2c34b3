"""Fine-tunes a small language model with Hugging Face's Trainer, as a user would."""

import json
import os
from pathlib import Path

import torch
import transformers
from transformers import EarlyStoppingCallback, GPT2Config, GPT2LMHeadModel, TrainingArguments

import holdfast
from holdfast.integrations.transformers import Trainer


class Texts(torch.utils.data.Dataset):
    def __init__(self, size, seed):
        generator = torch.Generator().manual_seed(seed)
        self.ids = torch.randint(0, 50, (size, 12), generator=generator)

    def __len__(self):
        return len(self.ids)

    def __getitem__(self, at):
        labels = self.ids[at].clone()
        labels[: at % 4] = -100
        return {"input_ids": self.ids[at], "labels": labels}


class Ending(transformers.TrainerCallback):
    """Dies in the middle of what it does after a step, once; and counts, as callbacks do."""

    def __init__(self):
        self.seen = 0

    def on_step_end(self, args, state, control, **_):
        self.seen += 1
        mark = Path(os.environ.get("MARK", ""))
        dies = state.global_step == 6 and state.is_world_process_zero and mark.name
        if dies and not mark.exists():
            mark.touch()
            os._exit(3)


def arguments(output, **given):
    given = {"max_grad_norm": 0.5, "num_train_epochs": 2, **given}
    return TrainingArguments(
        output_dir=output,
        per_device_train_batch_size=4,
        gradient_accumulation_steps=3,
        learning_rate=5e-3,
        warmup_steps=2,
        logging_steps=2,
        eval_strategy="steps",
        eval_steps=3,
        save_strategy="steps",
        save_steps=3,
        save_total_limit=2,
        load_best_model_at_end=True,
        metric_for_best_model="loss",
        report_to=[],
        disable_tqdm=True,
        **{"use_cpu": True, **given},
    )


def trainer_of(kind, output, **given):
    """A trainer; `given` are further arguments of the library."""
    transformers.set_seed(0)
    size = {"n_embd": 16, "n_layer": 1, "n_head": 2, "vocab_size": 50, "n_positions": 12}
    drops = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0)
    return kind(
        model=GPT2LMHeadModel(GPT2Config(**size, **drops)),
        args=arguments(output, **given),
        train_dataset=Texts(100, 1),
        eval_dataset=Texts(20, 2),
        callbacks=[Ending(), EarlyStoppingCallback(early_stopping_patience=4)],
    )


def main():
    """Trains; writes what came of it next to the library's files."""
    params = holdfast.session().job.params
    os.environ["MARK"] = params.get("mark", "")
    output = Path(params["output"])
    given = params.get("given", {})
    trainer = trainer_of(Trainer, output, **given)
    result = trainer.train(**params.get("train", {}))
    if trainer.args.should_save:
        found = {
            "loss": result.training_loss,
            "history": trainer.state.log_history,
            "best": trainer.state.best_model_checkpoint,
            "seen": trainer.callback_handler.callbacks[1].seen,
        }
        output.with_suffix(".json").write_text(json.dumps(found))
    if params.get("twice"):
        trainer.train()
