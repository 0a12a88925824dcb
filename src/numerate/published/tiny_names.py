"""The published Tiny Stories models by name: in the code of their results, in today's, and with its bugs fixed.

Altabaa and Lafferty (2024), arXiv v1 of https://arxiv.org/abs/2405.16727: 57 runs of 49 settings in the records of
https://github.com/Awni00/abstract_transformer (branch `paper`), with what they reached. Imports no torch by itself.
"""

from dataclasses import dataclass
from functools import cache
from typing import Any

CODE_VERSIONS = ("published", "current", "corrected")
"""The three codes; see `dual_attention_models`."""


@dataclass(frozen=True)
class PublishedRun:
    """A published configuration and its results.

    - `suffix`: symbols (`symbolic` or `position_relative`, none for the Transformer), then what differs from the
      default: `rca` or `disrca` for relational attention, `symmetric` relations, a `frozen` symbol library, a `cosine`
      schedule.
    - `num_runs`: number of runs, all of one seed. Of the longest: `last_step`, the iteration of its last evaluation
      (100,000 is the end), `loss` there (nats per token, on 100 batches) and `hours` (on an unnamed GPU).
    """

    hidden_size: int
    num_layers: int
    num_self_heads: int
    num_relational_heads: int
    suffix: str
    num_runs: int
    last_step: int
    loss: float
    hours: float

    @property
    def name(self) -> str:
        """`d64_l4_4+4_symbolic`, `d64_l4_8+0`."""
        heads = f"d{self.hidden_size}_l{self.num_layers}_{self.num_self_heads}+{self.num_relational_heads}"
        return f"{heads}_{self.suffix}" if self.suffix else heads

    @property
    def context_length(self) -> int:
        """Tokens: 512; 1,024 at width 512, inferred from the number of parameters."""
        return 1024 if self.hidden_size == 512 else 512

    @property
    def symbols(self) -> str | None:
        matches = [kind for kind in ("symbolic", "position_relative") if self.suffix.startswith(kind)]
        return matches[0] if matches else None

    def has_option(self, option: str) -> bool:
        """Whether `rca`, `disrca`, `symmetric`, `frozen` or `cosine` is in its suffix."""
        return option in self.suffix.split("_")

    @property
    def variant(self) -> str:
        return next((kind for kind in ("rca", "disrca") if self.has_option(kind)), "relational")

    @property
    def micro_batch_size(self) -> int:
        """Rows of one micro-batch, of which `gradient_accumulation_steps` make a step: always 131,072 tokens."""
        if self.hidden_size >= 512:
            return 16 if self.hidden_size == 512 else 32
        return 64 if (self.hidden_size, self.num_layers, self.num_relational_heads) == (128, 6, 4) else 128

    @property
    def gradient_accumulation_steps(self) -> int:
        return 131_072 // (self.context_length * self.micro_batch_size)

    @property
    def learning_rate(self) -> float:
        """The highest learning rate."""
        return 5e-4 if self.hidden_size >= 512 else 1e-3

    def model_arguments(self) -> dict[str, Any]:
        """The arguments of `published`, `current` and `corrected`."""
        return {
            "hidden_size": self.hidden_size,
            "num_layers": self.num_layers,
            "num_self_heads": self.num_self_heads,
            "num_relational_heads": self.num_relational_heads,
            "symbols": self.symbols,
            "symmetric": self.has_option("symmetric"),
            "variant": self.variant,
            "context_length": self.context_length,
            "trainable_symbols": not self.has_option("frozen"),
        }

    def summary(self) -> str:
        """A summary in one line."""
        option_names = {
            "rca": "RCA",
            "disrca": "DisRCA",
            "symmetric": "symmetric",
            "frozen": "frozen",
            "cosine": "cosine",
        }
        options = [
            (self.symbols or "").replace("_", "-"),
            *(option for word, option in option_names.items() if self.has_option(word)),
        ]
        kind = (
            f"dual attention ({', '.join(options)})"
            if self.num_relational_heads
            else "Transformer" + ", ".join(options)
        )
        heads = f"{self.num_self_heads}+{self.num_relational_heads} heads"
        step_note = "" if self.last_step == 100_000 else f" at step {self.last_step:,}"
        return f"{kind}, width {self.hidden_size}, {self.num_layers} layers, {heads}; {self.loss:.4f} nats{step_note}"


RUNS = (
    PublishedRun(64, 4, 8, 0, "", 1, 100_000, 1.77519, 2.8),
    PublishedRun(64, 4, 6, 2, "symbolic", 1, 100_000, 1.73977, 8.68),
    PublishedRun(64, 4, 6, 2, "symbolic_symmetric", 2, 100_000, 1.7458, 8.67),
    PublishedRun(64, 4, 6, 2, "position_relative", 1, 100_000, 1.76773, 9.36),
    PublishedRun(64, 4, 6, 2, "position_relative_symmetric", 2, 100_000, 1.77708, 9.35),
    PublishedRun(64, 4, 6, 2, "symbolic_rca", 1, 100_000, 1.76078, 3.66),
    PublishedRun(64, 4, 4, 4, "symbolic", 1, 100_000, 1.72939, 12.73),
    PublishedRun(64, 4, 4, 4, "symbolic_symmetric", 1, 100_000, 1.74402, 12.76),
    PublishedRun(64, 4, 4, 4, "position_relative", 1, 100_000, 1.76442, 13.52),
    PublishedRun(64, 4, 4, 4, "position_relative_symmetric", 1, 100_000, 1.78538, 13.47),
    PublishedRun(64, 4, 4, 4, "symbolic_rca", 1, 100_000, 1.76049, 4.21),
    PublishedRun(64, 5, 8, 0, "", 1, 100_000, 1.72984, 2.98),
    PublishedRun(64, 5, 6, 2, "symbolic", 1, 100_000, 1.69215, 10.31),
    PublishedRun(64, 5, 6, 2, "symbolic_symmetric", 1, 100_000, 1.70354, 10.27),
    PublishedRun(64, 5, 6, 2, "symbolic_symmetric_frozen", 2, 100_000, 1.71339, 10.29),
    PublishedRun(64, 5, 6, 2, "position_relative_symmetric", 1, 96_000, 1.73201, 5.24),
    PublishedRun(64, 5, 6, 2, "symbolic_rca", 1, 100_000, 1.71665, 4.05),
    PublishedRun(64, 5, 4, 4, "symbolic", 1, 100_000, 1.69185, 15.42),
    PublishedRun(64, 5, 4, 4, "symbolic_symmetric", 1, 100_000, 1.6985, 15.41),
    PublishedRun(64, 5, 4, 4, "symbolic_rca", 1, 100_000, 1.72028, 4.73),
    PublishedRun(64, 6, 8, 0, "", 2, 100_000, 1.69194, 3.17),
    PublishedRun(64, 6, 6, 2, "symbolic", 1, 100_000, 1.66307, 11.95),
    PublishedRun(64, 6, 6, 2, "symbolic_symmetric", 2, 100_000, 1.66895, 11.89),
    PublishedRun(64, 6, 6, 2, "position_relative_symmetric", 1, 100_000, 1.69058, 13.23),
    PublishedRun(64, 6, 6, 2, "symbolic_rca", 1, 100_000, 1.68567, 4.47),
    PublishedRun(64, 6, 4, 4, "symbolic", 1, 100_000, 1.65585, 18.13),
    PublishedRun(64, 6, 4, 4, "symbolic_symmetric", 1, 100_000, 1.66873, 18.09),
    PublishedRun(64, 6, 4, 4, "position_relative", 1, 100_000, 1.68532, 19.0),
    PublishedRun(64, 6, 4, 4, "position_relative_symmetric", 1, 100_000, 1.70424, 18.94),
    PublishedRun(64, 6, 4, 4, "symbolic_rca", 1, 100_000, 1.68729, 5.27),
    PublishedRun(128, 4, 8, 0, "", 2, 100_000, 1.4308, 3.09),
    PublishedRun(128, 4, 6, 2, "symbolic", 1, 100_000, 1.41201, 10.17),
    PublishedRun(128, 4, 6, 2, "symbolic_symmetric", 1, 100_000, 1.41525, 10.16),
    PublishedRun(128, 4, 4, 4, "symbolic", 1, 100_000, 1.41129, 14.93),
    PublishedRun(128, 4, 4, 4, "symbolic_symmetric", 1, 100_000, 1.41796, 14.93),
    PublishedRun(128, 6, 8, 0, "", 2, 100_000, 1.35294, 3.61),
    PublishedRun(128, 6, 6, 2, "symbolic", 1, 100_000, 1.33963, 14.16),
    PublishedRun(128, 6, 6, 2, "symbolic_symmetric", 2, 100_000, 1.34616, 14.21),
    PublishedRun(128, 6, 4, 4, "symbolic", 1, 100_000, 1.33734, 21.53),
    PublishedRun(128, 6, 4, 4, "symbolic_symmetric", 1, 100_000, 1.34565, 21.46),
    PublishedRun(144, 6, 8, 0, "", 1, 100_000, 1.30747, 4.29),
    PublishedRun(512, 8, 8, 0, "cosine", 1, 100_000, 0.85219, 10.64),
    PublishedRun(512, 8, 6, 2, "symbolic_symmetric", 1, 68_000, 0.91238, 43.82),
    PublishedRun(512, 8, 6, 2, "position_relative_cosine", 1, 16_000, 0.99413, 14.47),
    PublishedRun(512, 8, 6, 2, "position_relative_disrca_cosine", 1, 44_000, 0.91587, 15.12),
    PublishedRun(512, 8, 6, 2, "position_relative_symmetric_cosine", 1, 52_000, 0.90124, 46.12),
    PublishedRun(512, 8, 6, 2, "position_relative_symmetric", 1, 100_000, 0.90285, 41.54),
    PublishedRun(768, 8, 8, 4, "symbolic_symmetric", 1, 32_000, 0.92257, 21.42),
    PublishedRun(768, 8, 8, 4, "position_relative_symmetric", 1, 60_000, 0.8998, 22.08),
)


@cache
def presets() -> dict[str, Any]:
    """All models by name: `tiny_`, the code, and the name of the run.

    >>> mixer = presets()["tiny_published_d64_l4_4+4_symbolic"].mixer
    >>> mixer.num_self_heads, mixer.num_relational_heads, mixer.relation_dim
    (4, 4, 16)
    """
    from numerate.published.dual_attention_models import PRESETS

    runs = [run for run in RUNS if not run.has_option("cosine") or run.name.removesuffix("_cosine") not in _run_names()]
    return {
        f"tiny_{version}_{run.name.removesuffix('_cosine')}": PRESETS[version](**run.model_arguments())
        for version in CODE_VERSIONS
        for run in runs
    }


@cache
def _run_names() -> frozenset[str]:
    return frozenset(run.name for run in RUNS)


def matching_transformer(run: PublishedRun) -> PublishedRun | None:
    """The published Transformer of the same width and depth that finished, with known hours."""
    matches = [
        other
        for other in RUNS
        if not other.num_relational_heads
        and (other.hidden_size, other.num_layers) == (run.hidden_size, run.num_layers)
        and other.last_step == 100_000
    ]
    return matches[0] if matches else None
