"""For every law, a method that breaks it and no other one."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn

from mtlkit import GradientAggregator
from mtlkit.engine.gram import cosine_matrix, norms_of, safe_divide


class ChangesTheGramMatrix(GradientAggregator):
    def weigh(self, gram, state):
        weights = torch.ones_like(gram[0])
        gram.mul_(2)
        return weights, state


class ByPosition(GradientAggregator):
    def weigh(self, gram, state):
        return torch.arange(1.0, len(gram) + 1).to(gram), state


class ComparesWithOne(GradientAggregator):
    def weigh(self, gram, state):
        relative = norms_of(gram) / (norms_of(gram) + 1)
        return safe_divide(relative, relative.mean()), state


class TwiceTheSum(GradientAggregator):
    def weigh(self, gram, state):
        return 2 * torch.ones_like(gram[0]), state


class DividesByZero(GradientAggregator):
    def weigh(self, gram, state):
        norms = norms_of(gram)
        return norms.mean() / norms, state


class LikesDifference(GradientAggregator):
    def weigh(self, gram, state):
        ones = torch.ones_like(gram[0])
        return ones if len(gram) == 1 else ones * (1 - cosine_matrix(gram).min()), state


class CountsEveryStep(GradientAggregator):
    def __init__(self, tasks, **common):
        super().__init__(tasks, **common)
        self.register_buffer("steps", torch.zeros((), dtype=torch.long))

    def weigh(self, gram, state):
        self.steps += 1
        return torch.ones_like(gram[0]), state


class CastsItsState(GradientAggregator):
    def __init__(self, tasks, **common):
        super().__init__(tasks, **common)
        self.add_state("norms", 0.0)

    def weigh(self, gram, state):
        return torch.ones_like(gram[0]), state.replace(norms=norms_of(gram))

    def _apply(self, fn, recurse=True):
        return nn.Module._apply(self, fn, recurse)


class ChangesItsOption(GradientAggregator):
    def __init__(self, tasks, *, power: float = 1.0, **common):
        super().__init__(tasks, **common)
        self.power = power + 1

    def weigh(self, gram, state):
        return torch.ones_like(gram[0]), state


class _ChangesGradients(GradientAggregator):
    """Merges twice the gradients that arrive at the features, for one value of ``wrt``."""

    breaks = "features"

    def fork(self, features, *held):
        return [features] * len(self.tasks)

    def pull_back(self, grads, *held):
        factor = 2 if self.wrt == self.breaks else 1
        return {task: [factor * g for g in leaves] for task, leaves in grads.items()}

    def weigh(self, gram, state):
        return torch.ones_like(gram[0]), state


class ChangesFeatureGradients(_ChangesGradients):
    pass


class ChangesParameterGradients(_ChangesGradients):
    breaks = "parameters"


class CountsAllTasks(GradientAggregator):
    def weigh(self, gram, state):
        return torch.ones_like(gram[0]) * len(self.tasks) / len(gram), state


class ForgetsWhenSaved(GradientAggregator):
    def __init__(self, tasks, **common):
        super().__init__(tasks, **common)
        self.add_state("steps", 0, per="all")
        self._non_persistent_buffers_set.add("steps")

    def weigh(self, gram, state):
        weights = torch.ones_like(gram[0]) * torch.where(state.steps > 3, 2, 1)
        return weights, state.replace(steps=state.steps + 1)


class CountsEvaluations(GradientAggregator):
    def __init__(self, tasks, **common):
        super().__init__(tasks, **common)
        self.register_buffer("evaluations", torch.zeros((), dtype=torch.long))

    def held(self):
        self.evaluations += not self.training
        return ()

    def fork(self, features, *held):
        return [features] * len(self.tasks)


class HoldsAFunction(GradientAggregator):
    def __init__(self, tasks, **common):
        super().__init__(tasks, **common)
        self.function = lambda gram: torch.ones_like(gram[0])

    def weigh(self, gram, state):
        return self.function(gram), state


class NeverLearns(GradientAggregator):
    def __init__(self, tasks, **common):
        super().__init__(tasks, **common)
        self.logits = nn.Parameter(torch.zeros(()))

    def weigh(self, gram, state):
        return torch.ones_like(gram[0]) * self.logits.detach().exp().to(gram.dtype), state


class SeesTheCompiler(GradientAggregator):
    def weigh_losses(self, losses, state):
        return torch.ones_like(losses) * (1 + torch.compiler.is_compiling()), state


class ReadsItsRank(GradientAggregator):
    def weigh(self, gram, state):
        rank = dist.get_rank() if dist.is_initialized() else 0
        return torch.ones_like(gram[0]) + rank, state


BROKEN = {
    "hooks": ChangesTheGramMatrix,
    "permutation": ByPosition,
    "scale": ComparesWithOne,
    "single_task": TwiceTheSum,
    "zero_rows": DividesByZero,
    "identical_rows": LikesDifference,
    "nonfinite": CountsEveryStep,
    "half_precision": CastsItsState,
    "spec": ChangesItsOption,
    "junction": ChangesFeatureGradients,
    "wrt_parameters": ChangesParameterGradients,
    "absent_task": CountsAllTasks,
    "owned_parameters": NeverLearns,
    "state_dict": ForgetsWhenSaved,
    "evaluation": CountsEvaluations,
    "copies": HoldsAFunction,
    "compiled": SeesTheCompiler,
    "distributed": ReadsItsRank,
}

KEPT_BY_THE_ENGINE = {"gram_path", "no_fork", "accumulation", "heads", "scaled_loss", "no_labels"}
"""Laws that a part cannot break, because its hooks are pure functions of what they are given."""
