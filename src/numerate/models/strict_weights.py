"""Strict loading of a file's tensors: each is used, or equal to one that is, or the file is refused."""

import re
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor, nn

from numerate.errors import UserError

Settings = Sequence[tuple[str, str]]
"""Which setting of a recipe a tensor belongs to: a regular expression over names, and the setting as it is typed."""

OURS: Settings = (
    (r"^head\.weight$", "model.tie_word_embeddings=false"),
    (r"\.symbols\.symbols$", "model.mixer.symbols.sharing=own"),
    (r"\.symbols\.", "model.mixer.symbols.sharing=library or own"),
)
"""The settings for tensors by the names of a `Decoder`."""


class StrictWeights:
    """The tensors of a file, none of which may remain unused.

    `where` starts error messages. `plain` maps several names of one tensor to a common name.

    >>> file = StrictWeights({"a.weight": torch.ones(2), "b.weight": torch.ones(2)}, "weights")
    >>> file.take(["a.weight", "b.weight"], "head.weight")
    tensor([1., 1.])
    >>> file.finish()

    Raises `UserError` where two tensors that are one in the model differ.
    """

    def __init__(
        self,
        tensors: Mapping[str, Tensor],
        where: str,
        *,
        settings: Settings = OURS,
        plain: Callable[[str], str] = str,
    ) -> None:
        self.where, self.settings, self.used = where, settings, set[str]()
        self.tensors: dict[str, Tensor] = {}
        names: dict[str, str] = {}
        for name, tensor in tensors.items():
            first = names.setdefault(plain(name), name)
            self._refuse_difference((first, tensors[first]), (name, tensor))
            self.tensors[plain(name)] = tensor

    def take(self, names: Sequence[str], use: str) -> Tensor:
        """The tensor under any of these names, which share one tensor in the model; `use` is its name there.

        Raises `UserError` where there is none, or where those under two of the names differ.
        """
        found = [name for name in names if name in self.tensors]
        if not found:
            source = names[0] if names[0] == use else f"{names[0]}, which {use} is read from"
            raise UserError(f"{self.where}: has no {source}; is it of another model?")
        for name in found[1:]:
            self._refuse_difference((found[0], self.tensors[found[0]]), (name, self.tensors[name]))
        self.used.update(found)
        return self.tensors[found[0]]

    def finish(self) -> None:
        """Raises `UserError` with the names of unused tensors."""
        left = sorted(self.tensors.keys() - self.used)
        if left:
            more = f" and {len(left) - 3} more" if len(left) > 3 else ""
            raise UserError(
                f"{self.where}: the model does not have {', '.join(left[:3])}{more}{self._remedy(left[:1])}"
            )

    def _refuse_difference(self, one: tuple[str, Tensor], other: tuple[str, Tensor]) -> None:
        if one[1] is not other[1] and not _equal(one[1], other[1]):
            raise UserError(
                f"{self.where}: {other[0]} differs from {one[0]}, and the model has one tensor for both"
                f"{self._remedy([other[0], one[0]])}"
            )

    def _remedy(self, names: Sequence[str]) -> str:
        found = (setting for pattern, setting in self.settings if any(re.search(pattern, name) for name in names))
        setting = next(found, None)
        return "; is it of another model?" if setting is None else f"; {setting} would take it"


def _equal(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors are alike, also where they are not finite."""
    return one.shape == other.shape and torch.allclose(one, other, rtol=0.0, atol=0.0, equal_nan=True)


def weights_of(model: nn.Module, tensors: Mapping[str, Tensor], where: str) -> dict[str, Tensor]:
    """A state dict for `model.load_state_dict` from tensors by the names of the model.

    For a tensor with several names in the model one is enough. Raises `UserError` for tensors that are missing,
    unexpected or of another shape, and for two that differ and are shared in the model.
    """
    file, names = StrictWeights(tensors, where), dict[int, list[str]]()
    state = model.state_dict(keep_vars=True)
    for name, tensor in state.items():
        names.setdefault(id(tensor), []).append(name)
    found = {name: file.take(names[id(tensor)], name) for name, tensor in state.items()}
    file.finish()
    for name, tensor in state.items():
        shapes = [tuple(one.shape) for one in (found[name], tensor)]
        if shapes[0] != shapes[1]:
            raise UserError(f"{where}: {name} has the shape {shapes[0]}, the model's is {shapes[1]}")
    return found
