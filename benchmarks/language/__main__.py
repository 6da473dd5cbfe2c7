"""Time and memory of a step of a small causal language model on four data sets, on the CPU.

Usage: PYTHONPATH=.venv/examples python -m benchmarks.language [--rounds N] [--json FILE]

The plain row is ``transformers.Trainer`` on the same samples as one data set. Times are ratios of the
CPU time of one thread in an interleaved run. Memory is what the tensors of a step take at their peak.
"""

from __future__ import annotations

import argparse
import itertools
import json
import logging
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import peft
import torch
import transformers
from torch.profiler import ProfilerActivity, profile

from benchmarks.speed.timing import interleave, ratio, set_threads, use_cpu_time
from mtlkit.integrations.huggingface import MultiTaskTrainer

TASKS = ("news", "code", "mail", "forum")
ROWS, LENGTH, VOCABULARY = 16, 64, 2048
PLAIN = "plain"
METHODS = (
    PLAIN,
    "sum",
    *("uw", "famo", "recap", "go4align"),
    *("pcgrad(wrt=parameters)", "upgrad(wrt=parameters)", "imtl_g(wrt=parameters)"),
)
SETTINGS = {
    "LoRA": {"lora": True},
    "LoRA, checkpointing": {"lora": True, "activation_checkpointing": True},
    "all weights": {},
}


def make_model(lora: bool) -> Any:
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=256,
        intermediate_size=1024,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=LENGTH,
    )
    model = transformers.LlamaForCausalLM(config)
    if not lora:
        return model
    adapters = peft.LoraConfig(r=8, target_modules="all-linear", task_type="CAUSAL_LM")
    return peft.get_peft_model(model, adapters)


def make_step(spec: str, lora: bool = False, **options: Any) -> Callable[[], None]:
    """Return one optimizer step of a Trainer, as a function."""
    tokens = torch.randint(VOCABULARY, (ROWS, LENGTH), generator=torch.Generator().manual_seed(0))
    samples = [{"input_ids": row.tolist(), "labels": row.tolist()} for row in tokens]
    arguments = transformers.TrainingArguments(
        output_dir=tempfile.mkdtemp(),
        per_device_train_batch_size=ROWS,
        use_cpu=True,
        report_to="none",
        disable_tqdm=True,
        dataloader_pin_memory=False,
        **options,
    )
    model = make_model(lora)
    if options.get("activation_checkpointing"):
        model.activation_checkpointing_enable()
    if spec == PLAIN:
        trainer = transformers.Trainer(model, arguments, train_dataset=samples)
    else:
        each = ROWS // len(TASKS)
        data = {task: samples[each * k : each * (k + 1)] for k, task in enumerate(TASKS)}
        trainer = MultiTaskTrainer(model, arguments, method=spec, train_dataset=data)
    optimizer = trainer.create_optimizer()
    batches = list(trainer.get_train_dataloader())

    def step() -> None:
        (batch,), number = trainer.get_batch_samples(iter(batches), 1, torch.device("cpu"))
        trainer.current_gradient_accumulation_steps = 1
        trainer.training_step(model, batch, number)
        optimizer.step()
        optimizer.zero_grad()

    return step


def peak_of(step: Callable[[], None]) -> float:
    """Return the peak of the memory of a step in MB, without weights and the optimizer's state."""
    step()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as record:
        step()
    events = [e for e in record.profiler.kineto_results.events() if e.name() == "[memory]"]
    events.sort(key=lambda event: event.start_ns())
    return max(itertools.accumulate(event.nbytes() for event in events)) / 2**20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--json", type=Path, help="also write the values to this file")
    given = parser.parse_args()
    warnings.filterwarnings("ignore", category=FutureWarning)
    logging.disable(logging.WARNING)
    use_cpu_time()
    set_threads(1)
    rows = []
    for setting, options in SETTINGS.items():
        steps = {spec: make_step(spec, **options) for spec in METHODS}
        peaks = {spec: peak_of(step) for spec, step in steps.items()}
        seconds = interleave(steps, given.rounds, warmup=1)
        for spec in METHODS:
            time, memory = ratio(seconds, spec, PLAIN), peaks[spec] / peaks[PLAIN]
            milliseconds = 1000 * min(seconds[spec])
            rows.append({"setting": setting, "method": spec, "time": time, "memory": memory})
            print(
                f"{setting:20s} {spec:26s} {time:5.2f} x {memory:5.2f} x"
                f" {milliseconds:8.0f} ms {peaks[spec]:8.0f} MB",
                flush=True,
            )
    if given.json:
        given.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
