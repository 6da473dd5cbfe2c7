"""The cases on which the laws of methods are checked: methods, gradients, batches, comparisons."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mtlkit.config.registry import methods, option_names, takes_feature_dim
from mtlkit.config.spec import SpecLike
from mtlkit.errors import SpecError
from mtlkit.method.aggregator import GradientAggregator
from mtlkit.method.create import create_method
from mtlkit.method.method import Method
from mtlkit.testing.small_network import INPUTS, WIDTH, SmallNetwork

BATCH = 8
_KINDS = 4


@dataclass(frozen=True)
class MethodCase:
    """A method with its options, and what it is checked on; see :func:`mtlkit.testing.check_method`."""

    method: SpecLike | type[GradientAggregator]
    options: Mapping[str, Any]
    tasks: int
    seed: int
    examples: int
    device: torch.device
    dtype: torch.dtype

    def create(self, tasks: int | None = None, **more: Any) -> Method:
        """Create a method for ``tasks`` tasks."""
        return self._create(self.method, tasks or self.tasks, {**self.options, **more})

    def create_again(self, method: Method) -> Method:
        """Create a method from the config string of another; an unregistered class, from its options."""
        if isinstance(self.method, type) and not self._registered(self.method):
            return self._create(self.method, self.tasks, method.spec[0].options)
        return self._create(str(method), self.tasks, {})

    def network(
        self, method: Method | None = None, targets: Sequence[int] | None = None
    ) -> SmallNetwork:
        """Build a small network, with the same weights each time."""
        torch.manual_seed(self.seed)
        net = SmallNetwork(self.create() if method is None else method, targets)
        return net.to(device=self.device, dtype=self.dtype)

    def allows(self, tasks: int) -> bool:
        """Return whether the options fit ``tasks`` tasks; a list per task fits one number."""
        try:
            self.create(tasks)
        except SpecError:
            return False
        return True

    def takes_wrt(self) -> bool:
        """Return whether there is a merge with the option ``wrt``."""
        merge = self.create().merging
        return merge is not None and "wrt" in option_names(type(merge))

    def gradients(self, tasks: int | None = None) -> Iterator[Tensor]:
        """Yield (K, N) matrices: random, conflicting, of unequal norms too, linearly dependent."""
        count = tasks or self.tasks
        for example in range(self.examples):
            generator = torch.Generator().manual_seed(self.seed * 1009 + example)
            rows = torch.randn(count, 3 * count + 2, generator=generator, dtype=torch.float64)
            kind = example % _KINDS
            if kind in (1, 2) and count > 1:
                rows[1] = 0.3 * rows[1] - rows[0]
            if kind == 2:
                rows *= torch.logspace(0, 2, count, dtype=torch.float64)[:, None]
            if kind == 3 and count > 1:
                rows[-1] = rows[:-1].sum(dim=0)
            yield rows.to(self.device, self.dtype)

    def combine(self, method: Method, rows: Tensor) -> Tensor:
        """Merge without a network, with losses only where the merge needs them."""
        merge = method.merging
        if merge is None or not merge.uses_losses:
            return method.combine(rows)
        return method.combine(rows, torch.linspace(1, 2, len(rows)).to(rows))

    def batches(self, count: int) -> list[Tensor]:
        """Return inputs of the small network."""
        generator = torch.Generator().manual_seed(self.seed + 1)
        draws = [torch.randn(BATCH, INPUTS, generator=generator) for _ in range(count)]
        return [x.to(self.device, self.dtype) for x in draws]

    def require_same(
        self, found: Tensor, expected: Tensor, what: str, tolerance: float | None = None
    ) -> None:
        """Raise if two tensors differ by more than rounding, relative to the larger one."""
        default = 1e-6 if self.dtype == torch.float64 else 1e-3
        difference = float((found.double() - expected.double()).norm())
        size = max(float(found.double().norm()), float(expected.double().norm()))
        # False if the difference is NaN
        small = difference <= (default if tolerance is None else tolerance) * size
        require(small, f"{what}: difference {difference:.1e}, norm {size:.1e}")

    def _create(
        self, method: SpecLike | type[GradientAggregator], tasks: int, options: Mapping[str, Any]
    ) -> Method:
        if not isinstance(method, type):
            return create_method(method, tasks, feature_dim=WIDTH, **options).to(self.device)
        if self._registered(method):
            return create_method(method.name, tasks, feature_dim=WIDTH, **options).to(self.device)
        sized: dict[str, Any] = {"feature_dim": WIDTH} if takes_feature_dim(method) else {}
        made = method(tasks, **sized, **options)
        if not hasattr(made, "name"):  # the registry sets it otherwise
            vars(made)["name"] = method.__name__
        return Method([made]).to(self.device)

    @staticmethod
    def _registered(method: type[GradientAggregator]) -> bool:
        name = getattr(method, "name", "")
        return name in methods.names() and methods.get(name) is method


def require(condition: bool, message: str) -> None:
    """Raise AssertionError unless the condition holds, also under ``python -O``."""
    if not condition:
        raise AssertionError(message)


def require_equal_state(found: Mapping[str, Tensor], expected: Mapping[str, Tensor], what: str) -> None:
    """Raise unless two state dicts are equal bit for bit."""
    require(found.keys() == expected.keys(), f"{what}: the state has other names")
    for name, value in expected.items():
        if not torch.equal(found[name].nan_to_num(), value.nan_to_num()):
            values = f": {found[name].tolist()}, not {value.tolist()}" if value.numel() < 10 else ""
            raise AssertionError(f"{what}: {name} differs{values}")
