"""Every test runs on one thread, off the network; and on every variant of what it names.

A test that takes `any_mixer` runs on every Mixer of the catalogue with its defaults, and on the further settings that
`variants.FURTHER` lists; `any_position_ids`, `any_position`, and so on alike, `any_part` on every class of every kind.
So a part is covered by the promises of its abstraction as soon as its folder's catalogue names it. `any_mixing` (a
mixer with positions) and `any_model` run on every part, and on other pairs of parts in each test of a file.
"""

import gc
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest

sys.path.append(str(Path(__file__).parent))

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
"""The modules whose shape annotations are checked at every call, unless CHECK_SHAPES=0."""

pytest.register_assert_rewrite("promises")

if os.environ.setdefault("CHECK_SHAPES", "1") != "0":
    from jaxtyping import install_import_hook

    install_import_hook([f"numerate.{name}" for name in CHECKED], "shapes.check")

hypothesis.settings.register_profile("everywhere", derandomize=True, deadline=None)
hypothesis.settings.load_profile("everywhere")
"""The same examples on every machine and however busy it is: a suite that is green stays so."""


def pytest_configure(config: pytest.Config) -> None:
    """One thread in every process that runs tests; that which hands them out to others (`-n 2`) needs no torch."""
    if hasattr(config, "workerinput") or not config.getoption("numprocesses", None):
        import torch

        torch.set_num_threads(1)


def pytest_collection_finish(session: pytest.Session) -> None:
    """What there is by now stays to the end: garbage is looked for elsewhere."""
    gc.collect()
    gc.freeze()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    marks = list(metafunc.definition.iter_markers("where"))
    assert {name for mark in marks for name in mark.kwargs} <= set(metafunc.fixturenames), metafunc.definition.nodeid
    for name in metafunc.fixturenames:
        if name.startswith("any_") or name == "each_mixing":
            import variants

            tests = [name for name in vars(metafunc.module) if name.startswith("test_")]
            found = variants.VARIANTS[name](tests.index(metafunc.function.__name__))
            for mark in marks:
                found = [part for part in found if name not in mark.kwargs or mark.kwargs[name](part)]
            metafunc.parametrize(name, found, ids=[variants.name_of(part) for part in found])


@pytest.fixture(scope="session", autouse=True)
def _configuration_of_nobody(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The files that tests name as parts are approved in a list of their own, not in the developer's."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NUMERATE_CONFIG", str(tmp_path_factory.mktemp("configuration")))
        yield


@pytest.fixture(autouse=True)
def _workers_are_forked(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Worker processes are forked from that of the test, where everything is imported, rather than started anew; but
    not in the tests of engines."""
    start = multiprocessing.get_context
    if "engines" not in request.path.parts and sys.platform == "linux":
        monkeypatch.setattr(
            multiprocessing, "get_context", lambda kind=None: start("fork" if kind == "spawn" else kind)
        )


@pytest.fixture(scope="session")
def vocabulary() -> Any:
    """The published one: four specials, ten digits, `+ - x =` and the space."""
    import promises

    return promises.VOCABULARY


@pytest.fixture(scope="session")
def make_tokens() -> Any:
    """make_tokens([5, 9, 1], seed=0): rows of these lengths with any ids, numbered from 1000 on."""
    import promises

    return promises.make_tokens


@pytest.fixture(scope="session")
def build() -> Any:
    """build(spec): the model in float64 and evaluation, so that only mistakes are larger than rounding."""
    import variants

    return variants.build


@pytest.fixture(scope="session")
def mix() -> Any:
    """mix((mixer, positions), width=8): the first of two layers, in float64 and evaluation."""
    import promises

    return promises.mix


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of cases and data beside the checkout; tests that need it are skipped where it is absent."""
    folder = Path(__file__).resolve().parents[2] / "shared"
    if not folder.is_dir():
        pytest.skip("the folder `shared` with published cases is not beside this checkout")
    return folder
