"""Every test runs on one thread, off the network, with shapes checked; and on every variant of what it names.

A test that takes `any_mixer` runs on every Mixer of the catalogue with its defaults, and on the further settings that
`variants.FURTHER` lists; `any_position_ids`, `any_position`, and so on alike, `any_part` on every class of every kind.
So a part is covered by the promises of its abstraction as soon as its folder's catalogue names it. `any_mixing` (a
mixer with positions) and `any_model` run on every part, and on other pairs of parts in each test of a file.
"""

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

sys.path.append(str(Path(__file__).parent))

from shape_checks import check_shapes

for name, value in {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}.items():
    os.environ.setdefault(name, value)
for name in (
    "NUMERATE_RUNS",
    "NUMERATE_DATA",
    "NUMERATE_CACHE",
    "WANDB_PROJECT",
    "WANDB_ENTITY",
):  # the developer's own must not change what is tested
    os.environ.pop(name, None)

if threading.current_thread() is threading.main_thread():
    # Under nohup, or in the background of a script, signals are ignored, and by whatever a test starts as well: unless
    # there is a handler, which a process that is started does not inherit. A hang-up still does nothing to the tests.
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN:
        signal.signal(signal.SIGHUP, lambda number, frame: None)

CHECKED = (
    "batch",
    "positions",
    "mixers",
    "architectures",
    "models",
    "text.models",
    "losses",
    "kernels",
    "published.dual_attention_models",
    "published.dual_attention_weights",
    "published.tiny_names",
    "evaluation.evaluator",
    "evaluation.evaluation_data",
    "evaluation.exact_match",
    "evaluation.generate",
    "evaluation.sampling",
    "evaluation.samples",
)
"""The rooms whose shape annotations are checked at every call. It must be said before any of them is imported."""

check_shapes([f"numerate.{room}" for room in CHECKED])

import hypothesis  # noqa: E402
import torch  # noqa: E402

import variants  # noqa: E402
from numerate.batch import Model, Tokens  # noqa: E402
from numerate.mixers.mixer import Context, Mixer, TokenMixer  # noqa: E402
from numerate.positions.position import Position  # noqa: E402
from numerate.vocabulary import PAD, Vocabulary  # noqa: E402

torch.set_num_threads(1)

hypothesis.settings.register_profile("everywhere", derandomize=True, deadline=None)
hypothesis.settings.load_profile("everywhere")
"""The same examples on every machine and however busy it is: a suite that is green stays so."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    for name in metafunc.fixturenames:
        if name in variants.VARIANTS:
            tests = [name for name in vars(metafunc.module) if name.startswith("test_")]
            found = variants.VARIANTS[name](tests.index(metafunc.function.__name__))
            for mark in metafunc.definition.iter_markers("where"):
                found = [part for part in found if name not in mark.kwargs or mark.kwargs[name](part)]
            metafunc.parametrize(name, found, ids=[variants.name_of(part) for part in found])


@pytest.fixture(scope="session", autouse=True)
def _configuration_of_nobody(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The files that tests name as parts are approved in a list of their own, not in the developer's."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NUMERATE_CONFIG", str(tmp_path_factory.mktemp("configuration")))
        yield


@pytest.fixture(scope="session")
def vocabulary() -> Vocabulary:
    """The published one: four specials, ten digits, `+ - x =` and the space."""
    return Vocabulary.with_digits(["+", "-", "x", "=", " "])


@pytest.fixture(scope="session")
def make_tokens() -> Callable[..., Tokens]:
    """make_tokens([5, 9, 1], seed=0): rows of these lengths with any ids, numbered from 1000 on."""

    def make(lengths: Sequence[int], seed: int = 0, width: int | None = None) -> Tokens:
        generator = torch.Generator().manual_seed(seed)
        time = max(lengths) if width is None else width
        ids = torch.randint(1, 19, (len(lengths), time), generator=generator)
        sizes = torch.tensor(lengths)
        ids[torch.arange(time) >= sizes[:, None]] = PAD
        return Tokens(ids, sizes, torch.arange(1000, 1000 + len(lengths)))

    return make


@pytest.fixture(scope="session")
def build(vocabulary: Vocabulary) -> Callable[..., Model]:
    """build(spec): the model in float64 and evaluation, so that only mistakes are larger than rounding."""

    def make(spec: Any, seed: int = 0) -> Model:
        model: Model = spec.build(vocabulary, seed).double().eval()
        return model

    return make


class Mixing:
    """A layer's mixer with the places that its positions would get, read at once or token by token."""

    def __init__(self, part: TokenMixer, positions: Sequence[Position]) -> None:
        self.part, self.count = part, len(positions)

    def context(self, lengths: torch.Tensor, time: int, **more: Any) -> Context:
        return Context(lengths, tuple(torch.arange(time)[None] for _ in range(self.count)), **more)

    def at_once(self, x: torch.Tensor, lengths: torch.Tensor | None = None, **more: Any) -> torch.Tensor:
        rows, time, _ = x.shape
        sizes = torch.full((rows,), time) if lengths is None else lengths
        return self.part(x, self.context(sizes, time, **more))

    def token_by_token(self, x: torch.Tensor, prompts: Sequence[int], more: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Reads each row's prompt, then `more` further tokens of it; what came of the prompt and of the tokens."""
        rows = torch.arange(x.shape[0])
        lengths = torch.tensor(prompts)
        longest, capacity = max(prompts), max(prompts) + more
        first, state = self.part.prefill(x[:, :longest], self.context(lengths, longest, capacity=capacity))
        said = []
        for step in range(more):
            index = lengths + step
            context = self.context(
                index + 1, longest + step + 1, cache_position=index, cached_length=longest + step + 1
            )
            out, state = self.part.step(x[rows, index][:, None], context, state)
            said.append(out[:, 0])
        return first, torch.stack(said, dim=1)


@pytest.fixture
def mix() -> Callable[..., Mixing]:
    """mix((mixer, positions), width=8): the first of two layers, in float64 and evaluation."""

    def make(mixing: tuple[Mixer, tuple[Position, ...]], width: int = 16) -> Mixing:
        mixer, positions = mixing
        with torch.random.fork_rng(devices=()):
            torch.manual_seed(3)
            part = mixer.build(width, 0, 2, positions).double().eval()
        return Mixing(part, positions)

    return make


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of cases and data beside the checkout; tests that need it are skipped where it is absent."""
    folder = Path(__file__).resolve().parents[2] / "shared"
    if not folder.is_dir():
        pytest.skip("the folder `shared` with published cases is not beside this checkout")
    return folder
