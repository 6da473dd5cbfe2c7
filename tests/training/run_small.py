"""Train the small problem as a program of its own, for tests that kill it or run several processes.

Usage: python -m tests.training.run_small '{"method": "pcgrad", "epochs": 2, "save": "final.pt"}'
"""

from __future__ import annotations

import json
import sys
import time
import warnings

import torch

from tests.training.small_problem import flat, make_loader, make_stream, make_trainer


def main(options: dict) -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    save = options.pop("save")
    data = options.pop("data", {})
    fit = options.pop("fit")
    validate = options.pop("validate", False)
    pause = options.pop("pause", 0.0)
    stream = options.pop("stream", False)
    trainer = make_trainer(**options)
    loader = make_stream(**data) if stream else make_loader(**data)
    if pause:
        trainer.model.register_forward_hook(lambda *_: time.sleep(pause))
    validation = make_loader(size=21, seed=1, shuffle=False) if validate else None
    result = trainer.fit(loader, validation, **fit)
    held_out = {"size": 21, "seed": 2}
    metrics = trainer.evaluate(
        make_stream(**held_out) if stream else make_loader(**held_out, shuffle=False)
    )
    if trainer.accelerator.is_main_process:
        torch.save({"parameters": flat(trainer.model), "step": result.step, "metrics": metrics}, save)
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
