"""Tiny models of Hugging Face with random weights, and data for them; nothing is downloaded."""

from __future__ import annotations

from typing import Any

import peft
import torch
import transformers
from torch import nn
from torch.nn import functional

import mtlkit
from mtlkit.integrations.huggingface import MultiTaskTrainer

VOCABULARY, WIDTH = 24, 16
TASKS = ("copy", "count")


def causal_model(lora: bool = False, **options: Any) -> Any:
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=WIDTH,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=32,
        pad_token_id=0,
        **options,
    )
    model = transformers.LlamaForCausalLM(config)
    if not lora:
        return model
    adapters = peft.LoraConfig(r=2, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")
    adapted = peft.get_peft_model(model, adapters)
    generator = torch.Generator().manual_seed(1)
    for name, parameter in adapted.named_parameters():  # else half of them have no gradient at first
        if "lora_B" in name:
            parameter.data = 0.1 * torch.randn(parameter.shape, generator=generator)
    return adapted


def texts(task: str, size: int, seed: int = 0) -> list[dict[str, list[int]]]:
    """Sequences of different lengths; the prompt of ``count`` is not learned."""
    generator = torch.Generator().manual_seed(seed + 100 * TASKS.index(task))
    samples = []
    for _ in range(size):
        length = int(torch.randint(3, 9, (), generator=generator))
        if task == "copy":
            tokens = torch.randint(1, VOCABULARY, (length,), generator=generator).tolist()
            samples.append({"input_ids": tokens + tokens, "labels": tokens + tokens})
        else:
            start = int(torch.randint(1, VOCABULARY - 10, (), generator=generator))
            tokens = list(range(start, start + length))
            samples.append({"input_ids": tokens, "labels": [-100, -100, *tokens[2:]]})
    return samples


def datasets(copy: int = 24, count: int = 8, seed: int = 0) -> dict[str, Any]:
    return {"copy": texts("copy", copy, seed), "count": texts("count", count, seed)}


class TwoHeads(nn.Module):
    """A BERT that answers two questions; its forward returns the losses by task."""

    def __init__(self, spec: str | None = None) -> None:
        super().__init__()
        torch.manual_seed(0)
        config = transformers.BertConfig(
            vocab_size=VOCABULARY,
            hidden_size=WIDTH,
            num_hidden_layers=1,
            num_attention_heads=2,
            intermediate_size=32,
            max_position_embeddings=16,
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
        )
        self.bert = transformers.BertModel(config, add_pooling_layer=False)
        self.kind, self.size = nn.Linear(WIDTH, 4), nn.Linear(WIDTH, 1)
        if spec is not None:
            self.method = mtlkit.create_method(spec, ("kind", "size"), feature_dim=WIDTH)

    def forward(self, input_ids, kind=None, size=None):
        z = self.bert(input_ids=input_ids).last_hidden_state[:, 0]
        views = self.method(z) if hasattr(self, "method") else (z, z)
        logits = self.kind(views[0])
        if kind is None:
            return {"logits": logits}
        losses = {
            "kind": functional.cross_entropy(logits, kind),
            "size": functional.mse_loss(self.size(views[1])[:, 0], size),
        }
        return {"losses": losses, "logits": logits}


def sentences(size: int = 32, seed: int = 0) -> list[dict[str, Any]]:
    tokens = torch.randint(1, VOCABULARY, (size, 6), generator=torch.Generator().manual_seed(seed))
    return [
        {"input_ids": row, "kind": row[0] % 4, "size": row[1:].float().mean() / VOCABULARY}
        for row in tokens
    ]


def arguments(folder: Any, **options: Any) -> transformers.TrainingArguments:
    chosen: dict[str, Any] = {
        "output_dir": str(folder),
        "max_steps": 4,
        "per_device_train_batch_size": 8,
        "learning_rate": 1e-2,
        "use_cpu": True,
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
        "dataloader_pin_memory": False,
        **options,
    }
    return transformers.TrainingArguments(**chosen)


def make_trainer(model: Any, folder: Any, method: Any = None, **options: Any) -> MultiTaskTrainer:
    """A Trainer that prints nothing; options that it does not know are training arguments."""
    own = (
        "train_dataset",
        "eval_dataset",
        "tasks",
        "mixing",
        "optimizers",
        "compute_metrics",
        "callbacks",
    )
    given = {name: options.pop(name) for name in own if name in options}
    trainer = MultiTaskTrainer(model, arguments(folder, **options), method=method, **given)
    trainer.remove_callback(transformers.PrinterCallback)
    return trainer


def weights_of(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: p.detach().clone() for name, p in model.named_parameters() if p.requires_grad}
