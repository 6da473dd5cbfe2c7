r"""Weights that depend on a preference: one training learns a whole front of trade-offs.

Every shared weight is :math:`\theta(\lambda) = \theta_0 + \sum_k \lambda_k \Delta_k`, where
:math:`\lambda` is how much each task counts. Training draws :math:`\lambda` for every batch, uniformly
from all preferences of sum one, and weighs the losses by it; after training the user chooses it.

Full :math:`\Delta_k` are Pareto Manifold Learning (Dimitriadis, Frossard and Fleuret, ICML 2023), and
those of low rank are Pareto Low-Rank Adapters (the same authors, ICLR 2025). Differences: the first
paper has K networks and no :math:`\theta_0`, which spans the same networks; neither paper's
regularization is here.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from mtlkit.config import Count
from mtlkit.config.registry import check_names, check_options
from mtlkit.config.spec import Part, SpecLike, parse_call
from mtlkit.engine.randomness import uniform
from mtlkit.errors import SpecError, UsageError, unknown_name

_LAYERS = (nn.Linear, nn.modules.conv._ConvNd)  # noqa: SLF001


class Preference(nn.Module):
    """Weight of each task: the chosen preference in eval mode, the last draw in training.

    The draws are hashes of a counter, which is saved. So all processes draw the same, and a resumed
    run continues with the next draw.
    """

    chosen: Tensor
    drawn: Tensor
    draws: Tensor

    def __init__(self, tasks: Sequence[str]) -> None:
        super().__init__()
        self.tasks = tuple(tasks)
        equal = torch.full((len(tasks),), 1 / len(tasks))
        self.register_buffer("chosen", equal)
        self.register_buffer("drawn", equal.clone(), persistent=False)
        self.register_buffer("draws", torch.randint(2**31, ()))  # each training starts elsewhere

    @property
    def current(self) -> Tensor:
        """The preference (K,) of the next forward pass, of sum one."""
        return self.drawn if self.training else self.chosen

    def set(self, preference: Mapping[str, float]) -> None:
        """Choose a preference; a task that is not named gets 0."""
        for task in preference:
            if task not in self.tasks:
                raise unknown_name("task in the preference", str(task), self.tasks)
        values = [float(preference.get(task, 0)) for task in self.tasks]
        total = sum(values)
        if not all(value >= 0 for value in values) or not 0 < total < math.inf:
            raise SpecError(
                "a preference is a number of 0 or more per task, at least one of them above 0, not "
                f"{dict(preference)}; for example {dict.fromkeys(self.tasks, 1)}"
            )
        # new tensors: a graph that waits for its backward pass keeps the old ones
        self.chosen = self.chosen.new_tensor([value / total for value in values])
        self.drawn = self.chosen.clone()

    def draw(self) -> Tensor:
        """Draw the preference of a training batch: Dirichlet, all preferences equally likely."""
        self.draws += 1
        exponential = -torch.log1p(-uniform(0, self.draws, len(self.tasks))) + 1e-12
        self.drawn = (exponential / exponential.sum()).to(self.chosen)
        return self.drawn


class _Delta(nn.Module):
    """The term that a preference adds to a weight; zero at first."""

    def __init__(self, preference: Preference) -> None:
        super().__init__()
        self._source = (preference,)  # a tuple, because it is the network's submodule

    @property
    def source(self) -> Preference:
        """The preference that the weight depends on."""
        return self._source[0]

    @property
    def preference(self) -> Tensor:
        """The preference (K,) of the next forward pass."""
        return self.source.current


class FullDelta(_Delta):
    """A difference of full size per task, one row each.

    Rows, since a tensor with an axis more than a kernel has no ``channels_last`` format.
    """

    def __init__(self, preference: Preference, weight: Tensor) -> None:
        super().__init__(preference)
        self.delta = nn.Parameter(weight.new_zeros(len(preference.tasks), weight.numel()))

    def forward(self, weight: Tensor) -> Tensor:
        """Return the weight at the preference."""
        return weight + (self.preference.to(self.delta) @ self.delta).view_as(weight)


class LowRankDelta(_Delta):
    """A difference of low rank per task: the product of two narrow matrices, one zero at first.

    The kernel of a convolution is a matrix with a row per output channel.
    """

    def __init__(self, preference: Preference, weight: Tensor, *, rank: Count = 4) -> None:
        super().__init__(preference)
        rows, columns = weight.flatten(1).shape
        rank = min(rank, rows, columns)
        self.up = nn.Parameter(weight.new_zeros(rows, len(preference.tasks), rank))
        self.down = nn.Parameter(weight.new_empty(len(preference.tasks), rank, columns))
        nn.init.uniform_(self.down, -1 / math.sqrt(columns), 1 / math.sqrt(columns))

    def forward(self, weight: Tensor) -> Tensor:
        """Return the weight at the preference."""
        up = self.up * self.preference.to(self.up)[:, None]
        return weight + (up.flatten(1) @ self.down.flatten(0, 1)).view_as(weight)


_KINDS: dict[str, Any] = {"full": FullDelta, "lora": LowRankDelta}


def add_preference(network: Any, spec: SpecLike) -> None:
    """Make the shared linear and convolutional layers of an architecture depend on a preference.

    Their biases get full differences, also with ``lora``. Norms and all other shared parameters are the
    same at every preference, and so are the heads.

    Args:
        network: the :class:`~mtlkit.Architecture`; its outputs are unchanged at first.
        spec: ``full``, or ``lora(rank=4)``.
    """
    part = parse_call(spec)
    if part.name not in _KINDS:
        raise unknown_name("preference", part.name, _KINDS)
    kind = _KINDS[part.name]
    if part.arguments:
        raise SpecError(f"options of a preference have names, as in lora(rank=4); given: {part}")
    check_names(kind, part.options, of=f"preference {part.name}")
    check_options(kind, part.options, of=f"preference {part.name}")
    if len(network.tasks) < 2:
        raise SpecError(f"a preference needs two tasks or more; the network has {len(network.tasks)}")
    shared = {id(parameter) for parameter in network.shared_parameters()}
    layers = [module for module in network.modules() if isinstance(module, _LAYERS)]
    found = [layer for layer in layers if id(layer.weight) in shared]
    if not found:
        raise SpecError(
            f"a preference needs shared linear or convolutional layers; {network.name} has none"
        )
    weights = [layer.weight for layer in found]
    if len({id(weight) for weight in weights}) < len(weights):
        raise SpecError(f"two layers of {network.name} share a weight; leave out preference")
    preference = Preference(network.tasks)
    for layer in found:
        bias = layer.bias
        delta = kind(preference, layer.weight, **part.options)
        parametrize.register_parametrization(layer, "weight", delta)
        if bias is not None:
            parametrize.register_parametrization(layer, "bias", FullDelta(preference, bias))
    network.preferences = preference
    network.set_method(network.method)  # groups of shared parameters include the new ones


def preference_of(network: nn.Module) -> Preference | None:
    """Return the preference that the weights of a network, or of a copy of it, depend on."""
    deltas = (module for module in network.modules() if isinstance(module, _Delta))
    return next((delta.source for delta in deltas), None)


def fold_preference(network: nn.Module) -> None:
    """Give the layers ordinary weights: those at the preference that is chosen."""
    for module in list(network.modules()):
        if parametrize.is_parametrized(module):
            for name, steps in list(module.parametrizations.items()):  # type: ignore[union-attr, operator]
                if any(isinstance(step, _Delta) for step in steps):
                    parametrize.remove_parametrizations(module, name, leave_parametrized=True)


class WithPreference:
    """The methods of an :class:`~mtlkit.Architecture` whose shared weights depend on a preference."""

    tasks: tuple[str, ...]
    spec: str
    preferences: Preference | None

    @property
    def preference(self) -> dict[str, float] | None:
        """Weight of each task, of sum one; None for a network made without ``preference``."""
        if self.preferences is None:
            return None
        return dict(zip(self.tasks, self.preferences.current.tolist(), strict=True))

    def set_preference(self, preference: Mapping[str, float]) -> None:
        """Choose how much each task counts, for a network made with ``preference``.

        Args:
            preference: numbers of zero or more by task; they are divided by their sum. A task that is
                not named counts nothing.

        >>> import mtlkit
        >>> net = mtlkit.create_architecture(
        ...     "hard_sharing(backbone=mlp(16, inputs=4))", ("seg", "depth"), preference="lora(rank=4)"
        ... )
        >>> net.set_preference({"seg": 3, "depth": 1})
        >>> net.preference
        {'seg': 0.75, 'depth': 0.25}
        """
        self._needed_preferences().set(preference)

    def draw_preference(self) -> Tensor:
        """Draw a preference for a training batch and return the factors of the losses, K times it (K,).

        The :class:`~mtlkit.Trainer` does this; in a loop of your own, call it before the forward pass
        and multiply the losses by the result.
        """
        return len(self.tasks) * self._needed_preferences().draw()

    def fold_preference(self) -> None:
        """Make this an ordinary network, with the weights at the preference chosen last."""
        preferences = self._needed_preferences()
        training = preferences.training
        preferences.eval()
        network: Any = self
        fold_preference(network)
        preferences.train(training)
        self.preferences = None
        if self.spec:
            part = parse_call(self.spec)
            options = {name: value for name, value in part.options.items() if name != "preference"}
            self.spec = str(Part(part.name, options, part.arguments))
        network.set_method(network.method)

    def _needed_preferences(self) -> Preference:
        if self.preferences is None:
            raise UsageError(
                "this network was made without preferences; make and train it with "
                "create_architecture(..., preference='lora(rank=4)')"
            )
        return self.preferences
