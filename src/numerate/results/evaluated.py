"""What an evaluation found, as tables: its regions with all their metrics, named parts, strata, numbers by digits."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from numerate.results.headline import stratum_sizes
from numerate.results.rows import COLUMNS, LABEL_METRICS, LANGUAGE_METRICS, SCORE_PREFIX, axes
from numerate.results.summary import by_context, grid_axes, has_parts, of_map, of_strata, part_names, scores
from numerate.results.tables import Table, pivot
from numerate.results.words import REGION_NAMES, cell_name, is_share, joined

if TYPE_CHECKING:
    from pandas import DataFrame

ANSWERS = ("number_accuracy", "missing", "clipped", "mae", "log_mae", "log_r2", "bleu", "rougeL", "perplexity")
DIGITS = ("number_accuracy", "missing", "mae", "mape", "log_mae")
"""The metrics of numbers and texts that are shown, and those for each number of digits of the correct number."""


def evaluations(frame: "DataFrame") -> "dict[str, DataFrame]":
    """The cells of each checkpoint, choice of settings and position offset, titled by what differs between them."""
    found: dict[str, DataFrame] = {}
    settings = frame["settings"].fillna("as trained" if frame["settings"].notna().any() else "")
    several, keys = frame["position_offset"].nunique() > 1, ["checkpoint", "step", "position_offset", settings]
    for (name, step, offset, text), own in frame.groupby(keys, sort=False):
        title = f"{name} checkpoint, step {step}" if name in ("final", "best") else str(name)
        found[title + f", position offset {offset}" * several + f", {text}" * bool(text)] = own
    return found


def tables(frame: "DataFrame", meanings: Mapping[str, str]) -> list[Table]:
    """The tables of the cells of one run. `meanings` are those of the scores that the kind of evaluation adds."""
    if not len(frame):
        return []
    inside = by_context(of_map(frame))
    is_labelled = "accuracy" in inside and "nats" not in inside
    inside = inside.assign(settings=inside["settings"].fillna("as trained"))
    keys = ["checkpoint", "step", *["settings"] * bool(frame["settings"].notna().any())]
    keys += ["position_offset"] * (inside["position_offset"].nunique() > 1 and not is_labelled)
    order = inside["region"].map(lambda name: [*REGION_NAMES, name].index(name)).astype(int)
    inside = inside.iloc[(inside.groupby(keys, sort=False).ngroup() * 100 + order).argsort(kind="stable")]
    found, shown = [], _metrics(inside)
    if shown:
        count = inside["position_offset"].nunique()
        means = [f"Means over {count} position offsets."] * (is_labelled and count > 1)
        found.append(_table(inside, [*keys, "region"], shown, means + _notes(inside, shown, meanings)))
    if has_parts(inside) and "correct" in inside:
        (axis,), names = grid_axes(inside), part_names(inside)
        parts = inside.assign(**{axis: inside[axis].map(lambda size: names.get(int(size), str(size)))})
        found.append(_table(parts, [*keys, axis, "region"], ["exact_match"], []))
    if len(digits := by_digits(inside)):
        note = "By the number of digits that the correct number has before its decimal point."
        found.append(_table(digits, [*keys, "region", "digits_of_answer"], DIGITS, [note]))
    return [*found, *_strata(frame)]


def _metrics(frame: "DataFrame") -> list[str]:
    """The metrics that the cells have: of text, or exact match with those of labels, numbers and texts; own scores."""
    known = [name for name in frame if frame[name].notna().any()]
    if "nats" in known:
        return [name for name in LANGUAGE_METRICS if name in known]
    names = [*("exact_match", *LABEL_METRICS, *ANSWERS), *(name for name in known if name.startswith(SCORE_PREFIX))]
    return [name for name in names if name in known and (name != "clipped" or frame[name].any())]


def _table(frame: "DataFrame", keys: Sequence[str], metrics: Sequence[str], notes: Sequence[str]) -> Table:
    """The metrics of the cells of each value of the columns `keys`, with 95 % intervals and the scores of memorizing.
    Cells that may overlap with training are left out, unless there are no others."""
    import pandas

    size, several = "tokens" if "nats" in frame else "cells", []
    frame = frame.assign(questions=frame["tokens"]) if size == "tokens" else frame
    for name in metrics:
        found, title = scores(frame, keys, name), name.removeprefix(SCORE_PREFIX).replace("_", " ")
        unit = ", %" * (is_share(name) and bool((found["value"] <= 1).all()))
        known = found[found["baseline"].notna()]
        several.append(found.assign(column=title + unit))
        several.append(known.assign(value=known["baseline"], low=None, high=None, column=f"{title}: memorizing{unit}"))
    whole = pandas.concat([one for one in several if len(one)], ignore_index=True)
    whole["region"] = whole["region"].map(lambda name: REGION_NAMES.get(name, name))
    sizes = whole["questions" if size == "tokens" else "cells"].map("{:,}".format)
    whole[size] = sizes.groupby([whole[name] for name in keys], sort=False).transform("first")
    texts = pivot(whole, [*keys, size], "column").astype(str)
    return Table(texts.rename(columns=lambda name: name.replace("_", " ")), {}, notes, len(keys))


def _notes(frame: "DataFrame", metrics: Sequence[str], meanings: Mapping[str, str]) -> list[str]:
    """What the metrics mean, why scores do not count, and which cells may have been seen in training."""
    own = {f"{SCORE_PREFIX}{name}": meaning for name, meaning in meanings.items()}
    known = own | {name: COLUMNS[name].meaning for name in metrics if name in COLUMNS and name != "exact_match"}
    texts = [f"{name.removeprefix(SCORE_PREFIX).replace('_', ' ')}: {known[name]}" for name in metrics if name in known]
    notes = [f"{'; '.join(texts)}."] * bool(texts)
    notes += ["memorizing: of the trained positions, or always the same answer."] * ("accuracy" in metrics)
    notes += compared_as_text(frame)
    seen = frame[frame["overlaps_training"].astype(bool)].drop_duplicates(axes(frame))
    sizes, parts = seen[grid_axes(seen)].astype(int).to_dict("records"), seen.get("names", [None] * len(seen))
    if texts := [cell_name(one, "+", part) for one, part in zip(sizes, parts, strict=True)]:
        notes.append(f"too few questions to hold any out, so they may occur in training: {joined(texts, 12)}")
    if "non_causal_reason" in frame:
        notes += [f"not causal: {reason}" for reason in frame["non_causal_reason"].dropna().unique()]
    return notes


def compared_as_text(frame: "DataFrame") -> list[str]:
    """How many correct answers to freely generated ones are no numbers; nothing for other answers."""
    if "score.ended" not in frame:
        return []
    first = next(iter(evaluations(frame).values()))
    count = int(first["questions"].sum()) - sum((one.get("numbers") or {}).get("count", 0) for one in first["sums"])
    return [f"Correct answers that are no numbers, and are compared as text: {count:,}"] * (count > 0)


def by_digits(frame: "DataFrame") -> "DataFrame":
    """Cells of freely generated answers once for each number of digits of the correct number, `digits_of_answer`."""
    lists = [((sums or {}).get("numbers_by_digits") or {}).items() for sums in frame.get("sums", ())]
    rows = sorted((int(digits), i, numbers) for i, one in enumerate(lists) for digits, numbers in one)
    found = frame.iloc[[i for _, i, _ in rows]].drop(columns=[name for name in frame if name.startswith(SCORE_PREFIX)])
    return found.assign(
        digits_of_answer=[digits for digits, *_ in rows],
        questions=[numbers["count"] for *_, numbers in rows],
        correct=[numbers["correct"] for *_, numbers in rows],
        sums=[{"numbers": numbers, "count": numbers["count"], "correct": numbers["correct"]} for *_, numbers in rows],
    )


def _strata(frame: "DataFrame") -> list[Table]:
    """Exact match of the strata of each evaluation by size, the length of the longest operand."""
    import pandas

    if not len(of_strata(frame)):
        return []
    each = {title: stratum_sizes(own.assign(checkpoint=title)) for title, own in evaluations(frame).items()}
    found = pandas.concat([own.assign(evaluation=title) for title, own in each.items()])
    found = found.drop(columns="questions").rename(columns={"questions_of": "questions"})
    found = found.sort_values("size", kind="stable").assign(size=lambda own: own["size"].map("n = {:,}".format))
    note = "Strata: exact match in per cent on questions that random ones rarely are; n: the longest operand."
    return [Table(pivot(found, ["evaluation", "questions"], "size"), {}, [note], 2)]
