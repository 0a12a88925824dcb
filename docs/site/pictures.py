"""The gallery of positional encodings: position ids of a sum, and what an encoding adds to embeddings or attention."""

import io
from collections.abc import Callable
from typing import Any

import matplotlib
import torch
from matplotlib.figure import Figure
from torch import Tensor

import numerate
from numerate import catalogue
from numerate.batch import StepContext, Tokens
from numerate.positions.position import AttentionBias, ContextualBias, Position, Rotation
from numerate.positions.position_ids import PositionIds
from numerate.vocabulary import DIGIT

matplotlib.use("agg")

SUM = "321+654=975"

POSITION_IDS = {
    "DigitIndex": "DigitIndex(max_offset=5)",
    "Coupled": "Coupled(max_offset=5)",
    "Shifted": "Shifted(max_shift=9,num_eval_offsets=1)",
    "RandomSubset": "RandomSubset(max_length=20)",
}
"""Settings that show what a scheme does, of those whose defaults do not."""

POSITIONS = {"ALiBi": ["ALiBi", "ALiBi(position_ids=Coupled)"], "T5Bias": ["T5Bias", "T5Bias(position_ids=Coupled)"]}
"""Encodings that are drawn with several settings."""

NUM_HEADS, HEAD_DIM, WIDTH = 4, 16, 32
THEMES = {"light": "#444444", "dark": "#dddddd"}


def files() -> dict[str, str | bytes]:
    """The page and its pictures, each for light and dark pages."""
    ids, positions = catalogue.parts_by_kind()["PositionIds"], catalogue.parts_by_kind()["Position"]
    found: dict[str, str | bytes] = {}

    def section(kind: str, name: str, specs: list[str]) -> str:
        lines = [f"### {name}", catalogue.part_summary(kind, name)]
        for number, text in enumerate(specs):
            spec = parse(kind, text)
            draw, caption = (ids_drawing(spec), "") if isinstance(spec, PositionIds) else position_drawing(spec)
            lines.append(f"`{text}`{caption}")
            for theme, color in THEMES.items():
                path = f"gallery/{name}-{number}-{theme}.svg"
                found[path] = svg(draw, color)
                lines.append(f"![{name}]({path.removeprefix('gallery/')}#only-{theme})")
        return "\n\n".join(lines)

    parts = [
        f"""# Positional encodings

A scheme of position ids computes a number for each token, a positional encoding uses it; they combine freely
([how](../positions.md)). The pictures are computed by the parts themselves, on `{SUM}`. Random weights are those of
initialization: a picture of them shows which pairs of tokens share a value, not what is learned.

## Position ids""",
        *(section("PositionIds", name, [POSITION_IDS.get(name, name)]) for name in ids),
        "## Encodings",
        "Of attention there are 4 heads: a row is a token that attends, a column one that it may attend to; what is "
        "blank comes later in the row. Red raises the attention score, blue lowers it, each head on its own scale.",
        *(section("Position", name, POSITIONS.get(name, [name])) for name in positions),
    ]
    return {"gallery/positions.md": "\n\n".join(parts), **found}


def parse(kind: str, text: str) -> Any:
    """A part as on the command line."""
    field = f"model.positions=[{f'Scalar(position_ids={text})' if kind == 'PositionIds' else text}]"
    (position,) = numerate.recipe("addition_abacus", field).model.positions
    return position.position_ids if kind == "PositionIds" else position


def assign(spec: PositionIds, step_context: StepContext) -> Tensor:
    """The position ids of the sum."""
    ids = torch.tensor([[ord(letter) for letter in SUM]])
    kinds = torch.tensor([[DIGIT if letter.isdigit() else 1 + DIGIT for letter in SUM]])
    return spec.assign(Tokens(ids, torch.tensor([len(SUM)]), torch.tensor([0])), kinds, step_context)


# Drawings: functions of a figure and a color of texts -----------------------------------------------------------------

Drawing = Callable[[Figure, str], None]


def ids_drawing(spec: PositionIds) -> Drawing:
    contexts = [StepContext.for_evaluation(), *(StepContext(seed=0, step=step) for step in range(3))]
    rows = [assign(spec, context)[0] for context in contexts]
    labels = ["evaluation", *(f"training, step {step}" for step in range(3))]
    if all(row.equal(rows[0]) for row in rows):
        rows, labels = rows[:1], ["always"]

    def draw(figure: Figure, color: str) -> None:
        figure.set_size_inches(6.4, 0.55 + 0.32 * len(rows))
        axes = figure.add_subplot()
        axes.imshow(
            torch.stack(rows).numpy(), cmap="Blues", aspect="auto", vmin=0, vmax=1.6 * max(float(r.max()) for r in rows)
        )
        for y, row in enumerate(rows):
            for x, value in enumerate(row.tolist()):
                axes.text(x, y, f"{value:.3g}", ha="center", va="center", color="black", fontsize=9)
        label_axes(axes, color, labels)

    return draw


def position_drawing(spec: Position) -> tuple[Drawing, str]:
    """The picture of an encoding, and what it shows."""
    torch.manual_seed(0)
    ids = assign(spec.position_ids, StepContext.for_evaluation())
    if (part := spec.build_input(WIDTH)) is not None:
        x = torch.zeros(1, len(SUM), WIDTH)
        values, caption = part(x, ids)[0].T[None], f": what is added to the embedding of each token, of width {WIDTH}"
        return matrix_drawing(values.detach(), causal=False), caption
    bias = spec.build_attention(NUM_HEADS, HEAD_DIM)
    queries, keys = torch.randn(2, 1, NUM_HEADS, len(SUM), HEAD_DIM)
    mask = torch.ones(1, 1, len(SUM), len(SUM), dtype=torch.bool).tril()
    if isinstance(bias, AttentionBias):
        values, caption = bias.compute_bias(ids, ids), ": the bias of attention scores"
    elif isinstance(bias, ContextualBias):
        for parameter in bias.parameters():
            torch.nn.init.normal_(parameter)
        values, caption = bias.compute_bias(queries, keys, mask), ": the bias for random queries and keys"
    else:
        assert isinstance(bias, Rotation)
        ones = torch.ones_like(queries)
        rotated = bias.rotate(ones, bias.compute_cos_sin(ids))
        values, caption = (rotated @ rotated.mT)[:, :1], ": scores of equal queries and keys; all heads have the same"
    return matrix_drawing(values[0].detach(), causal=True), caption


def matrix_drawing(matrices: Tensor, causal: bool) -> Drawing:
    def draw(figure: Figure, color: str) -> None:
        figure.set_size_inches(7.6 if causal and len(matrices) > 1 else 3.2, 2.3)
        hidden = torch.ones(matrices.shape[1:], dtype=torch.bool).triu(1) & causal
        shown = matrices.masked_fill(hidden, float("nan"))
        for number, matrix in enumerate(shown):
            high = float(matrix[~matrix.isnan()].abs().max())
            axes = figure.add_subplot(1, len(shown), number + 1)
            axes.imshow(matrix.numpy(), cmap="RdBu_r", vmin=-high, vmax=high, aspect="equal" if causal else "auto")
            label_axes(axes, color, list(SUM) if causal and number == 0 else [])

    return draw


def label_axes(axes: Any, color: str, row_labels: list[str]) -> None:
    axes.set_xticks(range(len(SUM)), list(SUM), color=color, fontsize=8)
    axes.set_yticks(range(len(row_labels)), row_labels, color=color, fontsize=8)
    axes.tick_params(length=0, top=True, labeltop=True, bottom=False, labelbottom=False)
    axes.spines[:].set_visible(False)


def svg(draw: Drawing, color: str) -> bytes:
    figure = Figure(layout="constrained")
    draw(figure, color)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None})
    return buffer.getvalue()
