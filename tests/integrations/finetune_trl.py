"""Fine-tunes small models with TRL's trainers, as a user would."""

import json
from pathlib import Path

import torch
import transformers
from datasets import Dataset
from peft import LoraConfig
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from trl import DPOConfig, SFTConfig

import holdfast
from holdfast.integrations.trl import DPOTrainer, SFTTrainer


def tokenizer():
    special = {"<pad>": 0, "<eos>": 1, "<unk>": 2}
    words = special | {f"w{number}": number + 3 for number in range(40)}
    plain = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    plain.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(
        tokenizer_object=plain, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>"
    )


def model():
    size = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "vocab_size": 43}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2}
    return LlamaForCausalLM(LlamaConfig(**size, **heads, pad_token_id=0, eos_token_id=1))


def text(number):
    words = range(4 + number % 9)
    return " ".join(f"w{(number * 7 + at * (number % 5 + 1)) % 40}" for at in words)


def arguments(output):
    return {
        "output_dir": output,
        "per_device_train_batch_size": 2,
        "gradient_accumulation_steps": 2,
        "num_train_epochs": 1,
        "learning_rate": 1e-2,
        "logging_steps": 2,
        "max_length": 16,
        "report_to": [],
        "use_cpu": True,
        "bf16": False,
        "disable_tqdm": True,
        "save_strategy": "no",
    }


def sft(output, base=SFTTrainer):
    return base(
        model=model(),
        args=SFTConfig(**arguments(output)),
        train_dataset=Dataset.from_list([{"text": text(number)} for number in range(40)]),
        processing_class=tokenizer(),
        peft_config=LoraConfig(r=4, lora_alpha=8, target_modules=["q_proj", "v_proj"]),
    )


def dpo(output, base=DPOTrainer):
    rows = [
        {"prompt": text(number), "chosen": text(number + 1), "rejected": text(number + 2)}
        for number in range(40)
    ]
    return base(
        model=model(),
        ref_model=model(),
        args=DPOConfig(**arguments(output)),
        train_dataset=Dataset.from_list(rows),
        processing_class=tokenizer(),
    )


def main():
    """Trains; writes what came of it next to the library's files."""
    params = holdfast.session().job.params
    transformers.set_seed(0)
    torch.set_num_threads(1)
    trainer = {"sft": sft, "dpo": dpo}[params["kind"]](params["output"])
    result = trainer.train()
    if trainer.args.should_save:
        found = {"loss": result.training_loss, "history": trainer.state.log_history}
        Path(params["output"]).with_suffix(".json").write_text(json.dumps(found))
