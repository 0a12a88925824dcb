"""Strict loading of a file's tensors: each is used, or equal to one that is, or the file is refused."""

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor, nn

from numerate.errors import UserError


class StrictWeights:
    """The tensors of a file, none of which may remain unused.

    `where` starts error messages. `normalize_name` maps several names of one tensor to a common name.

    >>> file = StrictWeights({"a.weight": torch.ones(2), "b.weight": torch.ones(2)}, "weights")
    >>> file.take(["a.weight", "b.weight"], "head.weight")
    tensor([1., 1.])
    >>> file.check_all_used()

    Raises `UserError` if two tensors that are one in the model differ.
    """

    def __init__(
        self,
        tensors: Mapping[str, Tensor],
        where: str,
        *,
        normalize_name: Callable[[str], str] = str,
    ) -> None:
        self.where, self.used_names = where, set[str]()
        self.tensors: dict[str, Tensor] = {}
        names: dict[str, str] = {}
        for name, tensor in tensors.items():
            first = names.setdefault(normalize_name(name), name)
            self._check_equal((first, tensors[first]), (name, tensor))
            self.tensors[normalize_name(name)] = tensor

    def take(self, names: Sequence[str], model_name: str) -> Tensor:
        """The tensor under any of these names, which share one tensor in the model; `model_name` is its name there.

        Raises `UserError` if there is none, or if tensors under two of the names differ.
        """
        present = [name for name in names if name in self.tensors]
        if not present:
            source = names[0] if names[0] == model_name else f"{names[0]}, which {model_name} is read from"
            raise UserError(f"{self.where}: has no {source}; is it of another model?")
        for name in present[1:]:
            self._check_equal((present[0], self.tensors[present[0]]), (name, self.tensors[name]))
        self.used_names.update(present)
        return self.tensors[present[0]]

    def check_all_used(self) -> None:
        """Raises `UserError` with the names of unused tensors."""
        unused = sorted(self.tensors.keys() - self.used_names)
        if unused:
            more = f" and {len(unused) - 3} more" if len(unused) > 3 else ""
            raise UserError(
                f"{self.where}: the model does not have {', '.join(unused[:3])}{more}; is it of another model?"
            )

    def _check_equal(self, one: tuple[str, Tensor], other: tuple[str, Tensor]) -> None:
        if one[1] is not other[1] and not _equal(one[1], other[1]):
            raise UserError(
                f"{self.where}: {other[0]} differs from {one[0]}, and the model has one tensor for both; is it of "
                "another model?"
            )


def _equal(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors are equal, including entries that are not finite; on the meta device, whether shapes are."""
    return one.shape == other.shape and (one.is_meta or torch.allclose(one, other, rtol=0.0, atol=0.0, equal_nan=True))


def match_state_dict(model: nn.Module, tensors: Mapping[str, Tensor], where: str) -> dict[str, Tensor]:
    """A state dict for `model.load_state_dict` from tensors by the names of the model.

    For a tensor with several names in the model one is enough. Raises `UserError` for tensors that are missing,
    unexpected or of another shape, and for two that differ and are shared in the model.
    """
    file, names = StrictWeights(tensors, where), dict[int, list[str]]()
    state = model.state_dict(keep_vars=True)
    for name, tensor in state.items():
        names.setdefault(id(tensor), []).append(name)
    state_dict = {name: file.take(names[id(tensor)], name) for name, tensor in state.items()}
    file.check_all_used()
    for name, tensor in state.items():
        shapes = [tuple(one.shape) for one in (state_dict[name], tensor)]
        if shapes[0] != shapes[1]:
            raise UserError(f"{where}: {name} has the shape {shapes[0]}, the model's is {shapes[1]}")
    return state_dict
