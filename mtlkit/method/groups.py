"""Groups of shared parameters, each with a merge of its own."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Literal

from torch import Tensor, nn

from mtlkit.errors import SpecError

Members = nn.Module | Tensor | Iterable[Tensor | nn.Module]
Shared = Members | Mapping[str, Members] | None


@dataclass
class Groups:
    """Names of the groups, and the parameters of each; no parameters means all that are found."""

    by_name: dict[str, list[Tensor]] = field(default_factory=dict)

    @classmethod
    def of(cls, shared: Shared, groups: Literal["all", "layer", "tensor"]) -> Groups:
        """Group what a user gave as ``shared``."""
        if shared is None:
            return cls()
        if isinstance(shared, Mapping):
            if not shared or not all(isinstance(name, str) and name for name in shared):
                raise SpecError(f"groups of shared parameters need names; got {list(shared)!r}")
            return cls({name: _tensors(given) for name, given in shared.items()})
        tensors = _tensors(shared)
        if groups == "all":
            return cls({"": tensors})
        if isinstance(shared, nn.Module):
            names = [name for name, _ in shared.named_parameters()]
        elif groups == "tensor":
            names = [str(index) for index in range(len(tensors))]
        else:
            raise SpecError(
                "groups=layer needs the layers' names: pass shared=module, not a list of parameters, or "
                "a mapping from names to parameters"
            )
        return cls.of_names(zip(names, tensors, strict=True), groups)

    @classmethod
    def of_names(
        cls, named: Iterable[tuple[str, Tensor]], groups: Literal["all", "layer", "tensor"]
    ) -> Groups:
        """Group parameters by the names that modules give them: ``encoder.0.weight``."""
        found: dict[str, list[Tensor]] = {}
        for name, tensor in named:
            layer = name.rpartition(".")[0] or name
            found.setdefault(name if groups == "tensor" else layer, []).append(tensor)
        return cls(found)

    @property
    def names(self) -> list[str]:
        """Names of the groups; one empty name without groups."""
        return list(self.by_name) or [""]

    @property
    def tensors(self) -> list[Tensor] | None:
        """All shared parameters; None if they have not been named."""
        return [tensor for group in self.by_name.values() for tensor in group] or None

    @property
    def given(self) -> Any:
        """The argument of :meth:`of` that makes the same groups."""
        return self.tensors if self.names == [""] else self.by_name

    def places(self, tensors: Sequence[Tensor]) -> Mapping[str, Sequence[int]]:
        """Positions of each group's parameters in a list of parameters, in the order of the list.

        A parameter that several groups share, such as a tied weight, belongs to the first of them.
        """
        if self.names == [""]:
            return {"": range(len(tensors))}
        place = {id(tensor): index for index, tensor in enumerate(tensors)}
        return {
            name: sorted(place.pop(id(tensor)) for tensor in group if id(tensor) in place)
            for name, group in self.by_name.items()
        }


def _tensors(shared: Any) -> list[Tensor]:
    one = isinstance(shared, nn.Module) or not isinstance(shared, Iterable)
    members = [shared] if one or isinstance(shared, Tensor) else list(shared)
    found = [m.parameters() if isinstance(m, nn.Module) else [m] for m in members]
    tensors = list({id(tensor): tensor for tensor in chain(*found)}.values())  # tied ones count once
    wrong = next((item for item in tensors if not isinstance(item, Tensor)), None)
    if wrong is not None or not tensors:
        kind = type(shared).__name__
        if wrong is not shared:
            kind += f" of {type(wrong).__name__}" if tensors else " without any"
        raise SpecError(
            "shared must be a module, a list of modules or parameters, or a mapping of such groups, not "
            f"{kind}; for example shared=net.backbone or shared=net.backbone.parameters()"
        )
    return tensors
