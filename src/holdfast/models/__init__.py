"""Built-in models: builds the network that a job names."""

from __future__ import annotations

from torch import nn

from holdfast.job.models import BertSpec, CnnSpec, Gpt2Spec, GptSpec, MlpSpec, ResnetSpec
from holdfast.models.gpt import Gpt as SmallGpt
from holdfast.models.resnet import BasicBlock, Bottleneck, ResNet
from holdfast.models.small import MultilayerPerceptron, SmallCnn


def build(
    spec: MlpSpec | CnnSpec | ResnetSpec, *, shape: tuple[int, int, int], classes: int
) -> nn.Module:
    """The model of a job, for images of `(channels, height, width)`."""
    match spec:
        case MlpSpec():
            inputs = shape[0] * shape[1] * shape[2]
            return MultilayerPerceptron(inputs, spec.hidden, classes, spec.dropout)
        case CnnSpec():
            return SmallCnn(shape[0], spec.width, classes, spec.dropout)
        case ResnetSpec():
            deep = spec.name == "resnet50"
            return ResNet(
                Bottleneck if deep else BasicBlock,
                (3, 4, 6, 3) if deep else (2, 2, 2, 2),
                channels=shape[0],
                width=spec.width,
                classes=classes,
                large=spec.stem == "large",
                gradient_checkpointing=spec.gradient_checkpointing,
            )


def build_language_model(spec: GptSpec | Gpt2Spec | BertSpec, *, context: int) -> nn.Module:
    """The language model of a job, with a context of `context` positions.

    It maps tokens, int64[n, context], to logits, float32[n, context, vocabulary].

    Raises:
        JobError: It needs a library that is not installed.
    """
    match spec:
        case GptSpec():
            return SmallGpt(
                vocabulary=256,
                context=context,
                **spec.model_dump(exclude={"name"}),
            )
        case Gpt2Spec() | BertSpec():
            from holdfast.models import huggingface  # slow to import, and may be missing

            return huggingface.build(spec, context=context)
