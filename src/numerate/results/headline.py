"""The headline of a page: what was trained and how far it reaches, never beyond what its cells and strata say.

How far a variant generalizes is read off the cells where all numbers are equally long, without gaps: to n if all
lengths out of distribution up to n have at least `REACHED`, clearly more than memorizing, and all strata up to n as
well. Seeds that did not converge in distribution do not count.
"""

from typing import TYPE_CHECKING, Any, NamedTuple

from numerate.results.rows import LANGUAGE_METRICS
from numerate.results.summary import (
    converged,
    default_metric,
    diagonal,
    grid_axes,
    has_parts,
    is_lower_better,
    of_map,
    of_strata,
    reported,
    summary,
)
from numerate.results.words import REGION_NAMES, capitalized, cell_name, joined, metric_name, percent, span, value_text

if TYPE_CHECKING:
    from pandas import DataFrame, Series

REACHED = 0.90
"""The score required at every length up to n to generalize to n."""

MAX_CLAUSES = 5
"""Variants that have a clause of their own."""

STRATA = {
    **{"nines": "99...9", "nine": "9", "one": "1", "power": "10...0", "number": "a", "half": "n/2"},
    **{"plus": "+", "minus": "-", "times": "x", "complement": "a + (10^n - a)", "carries": "longest carry chain"},
}
"""The parts of the names of strata in words: `nines_plus_one` is "99...9 + 1"."""


class Reach(NamedTuple):
    """How far a variant generalizes: the summary of the farthest length that it reaches, of the first length beyond
    training, and of the stratum that ends it; None where there is none."""

    farthest: "Series[Any] | None" = None
    first: "Series[Any] | None" = None
    stratum: "Series[Any] | None" = None


def reach(cells: "DataFrame") -> dict[str, Reach]:
    """How far each variant generalizes, by the reported cells of the seeds that count."""
    along, failed = diagonal(cells), stratum_sizes(cells)
    found = {str(name): Reach() for name in cells["variant"].unique()}
    trained = along[along["region"] == "in_distribution"].groupby("variant")["length"].max()
    along = along[~(along["length"] <= along["variant"].map(trained))]
    lengths = summary(along, by=["variant", "length"]).sort_values("length", kind="stable")
    failed = failed[failed["value"] < REACHED].sort_values(["size", "value"], kind="stable")
    for name, beyond in lengths.groupby("variant", sort=False):
        memorized = beyond["baseline"].fillna(-1)
        says_little = memorized >= REACHED  # memorizing alone reaches that
        clear = (memorized < 0) | ((memorized < 1) & (beyond["value"] - memorized >= 0.5 * (1 - memorized)))
        holds = (beyond["value"] >= REACHED) & (clear | says_little)
        reached, ends = beyond[holds.cumprod().astype(bool) & clear], failed[failed["variant"] == name].head(1)
        ends = ends[ends["size"] <= reached["length"].max()]
        reached = reached[~(reached["length"] >= ends["size"].min())].tail(1)
        first = beyond[~says_little] if not says_little.all() else beyond
        found[str(name)] = Reach(*(one.iloc[0] if len(one) else None for one in (reached, first, ends)))
    return found


def stratum_sizes(frame: "DataFrame") -> "DataFrame":
    """The summary of each stratum and size, the length of its longest operand, with its questions in words."""
    from pandas import DataFrame

    cells = of_strata(frame)
    if not len(cells):
        return DataFrame(columns=["variant", "size", "value", "questions_of"])
    axes = [axis for axis in grid_axes(frame) or ["first_digits", "second_digits"] if axis in cells]
    further = [name for name in ("longest_carry_chain",) if name in cells and name not in axes]
    cells = cells.assign(size=cells[axes].max(axis=1).astype(int))
    found = summary(cells, by=["variant", "stratum", *further, "size"], metric="exact_match")
    words = found["stratum"].map(lambda name: " ".join(STRATA.get(part, part) for part in name.split("_")))
    words = words.where(~found["stratum"].str.contains("_and_"), words + " digits")
    for name in further:
        words = words + (" " + found[name].astype("string")).fillna("")
    return found.assign(questions_of=words)


def headline(frame: "DataFrame", operator: str | None = None) -> str:
    """At most two sentences about the variants of a frame of one task. Of the quickstart:

    "With 1 to 5 digits in distribution, Abacus stays at 90 % or more up to 8+8 digits (90.5 % [85.6, 93.8] there);
    rotary falls to 0 % [0, 1.9] at 6+6 digits. One seed each; brackets: 95 % intervals over questions."
    """
    frame = reported(frame)
    cells, variants = of_map(frame), frame["variant"].nunique() if len(frame) else 0
    if not len(cells):
        return "Only strata have been evaluated." if variants else "Nothing has been evaluated yet."
    metric, opening = default_metric(cells), ""
    if metric in LANGUAGE_METRICS or has_parts(frame):
        clauses = _regions(frame, metric)
    else:
        trained = cells[cells["region"] == "in_distribution"]
        axes = grid_axes(frame)
        sizes = {
            " and ".join(dict.fromkeys(span(known.astype(int)) for axis in axes if len(known := own[axis].dropna())))
            for _, own in trained.groupby("variant")
        }
        text, unit = sizes.pop() if len(sizes) == 1 else "", axes[0].replace("_", " ")
        digits = f"{text} digit{'s' * (text != '1')}" if all(axis.endswith("digits") for axis in axes) else ""
        opening = f"With {digits or f'{unit} {text}'} in distribution, " * bool(text)
        clauses = _reaches(frame, operator)
    seeds = cells.groupby("variant")["run"].nunique()
    is_single = bool((seeds == 1).all())
    uncertainty = [f"scores are {metric_name(metric)}"] * (metric not in ("exact_match", *LANGUAGE_METRICS))
    uncertainty.append(("one seed" if is_single else f"medians of {span(seeds)} seeds") + " each" * (variants > 1))
    is_mixed = not is_single and 1 in {*seeds, *converged(frame).groupby("variant")["run"].nunique()}
    brackets = "95 % intervals over questions" if is_single else "lowest and highest seed"
    uncertainty.append(f"brackets: {brackets}{', of a single one 95 % intervals over questions' * is_mixed}")
    uncertainty += ["the best of many variants is partly the best by chance"] * (variants > MAX_CLAUSES)
    return f"{opening}{'; '.join(clauses)}. {capitalized('; '.join(uncertainty))}."


def _reaches(frame: "DataFrame", operator: str | None) -> list[str]:
    """How far each variant generalizes; of more than a sentence can name, how many and which the farthest."""
    kept, axes, least = converged(frame), grid_axes(frame), percent(REACHED)
    num_kept, num_seeds = (cells.groupby("variant")["run"].nunique() for cells in (kept, frame))
    counts = frame["run"].isin(kept["run"]) | ~frame["variant"].isin(kept["variant"])  # of all seeds if none converged
    found = reach(frame[counts])

    def at(length: float) -> str:
        return cell_name(dict.fromkeys(axes, int(length)), operator)

    if len(found) > MAX_CLAUSES:
        all_kept = sum(num_kept.get(name, 0) == num_seeds[name] for name in found)
        far = {name: one.farthest["length"] for name, one in found.items() if one.farthest is not None}
        text = f"{all_kept} of {len(found)} variants converged in every seed, and"
        if not far:
            return [f"{text} none stays at {least} % or more beyond training"]
        best = joined([name for name in far if far[name] == max(far.values())], 3)
        where = f"the farthest up to {at(max(far.values()))} ({best})"
        return [f"{text} {len(far)} stay at {least} % or more beyond it, {where}"]
    trained = summary(frame)
    trained = trained[trained["region"] == "in_distribution"].set_index("variant")
    reasons = frame.groupby("variant")["non_causal_reason"].first() if "non_causal_reason" in frame else {}
    clauses = []
    for name, (farthest, first, stratum) in found.items():
        there = f"{_value(trained.loc[name])} in distribution" if name in trained.index else ""
        seeds = f", in the {num_kept.get(name, 0)} of {num_seeds[name]} seeds that converged"
        seeds = seeds if num_kept.get(name, 0) < num_seeds[name] else ""
        limit = stratum is not None and f"{_value(stratum)} on {stratum['questions_of']} with n = {stratum['size']:,}"
        if isinstance(reason := reasons.get(name), str):
            text = f": not comparable (non-causal): {reason}"
        elif there and name not in num_kept:
            is_trained = frame.loc[frame["variant"] == name, "step"].any()
            then = "" if first is None else f", {_value(first)} at {at(first['length'])}"
            text = f" {'did not converge' if is_trained else 'was not trained'} ({there}{then})"
        elif first is None or (farthest is None and limit):
            but = f" but has {limit}" if limit else ", nothing beyond was evaluated"
            text = f" converged ({there}{seeds}){but}" if there else ": only strata or smaller sizes were evaluated"
        elif farthest is None:
            text = f" falls to {_value(first)} at {at(first['length'])}{seeds}"
        else:
            then = f"; then {limit}" if limit else ""
            best = f"{_value(farthest)} there{seeds}{then}"
            text = f" stays at {least} % or more up to {at(farthest['length'])} ({best})"
        clauses.append(f"{name}{text}")
    return clauses


def _value(row: "Series[Any]") -> str:
    text = value_text(row["metric"], row["value"], row["low"], row["high"])
    if row["metric"] in LANGUAGE_METRICS:
        return text
    value, bracket, interval = text.partition(" [")
    memorizing = f", memorizing {percent(row['baseline'])} %" * bool(row["baseline"] == row["baseline"])
    return f"{value} %{bracket}{interval}{memorizing}"


def _regions(frame: "DataFrame", metric: str) -> list[str]:
    """The scores of parts region by region, and of text with the contexts of training."""
    found, clauses, is_loss = summary(frame), [], is_lower_better(metric)
    trained = found[found["region"] == "in_distribution"]
    for region, inside in (trained if is_loss and len(trained) else found).groupby("region", sort=False):
        best = inside.sort_values("value", ascending=is_loss, kind="stable").head(MAX_CLAUSES)
        where = "" if is_loss and len(trained) else f" {REGION_NAMES.get(str(region), region)}"
        few = f" (the best of {len(inside)})" * (len(inside) > MAX_CLAUSES)
        texts = [f"{row['variant']} {_value(row)}" for _, row in best.iterrows()]
        clauses.append(f"{metric_name(metric)}{where}{few}: {joined(texts)}")
    return [capitalized(clauses[0]), *clauses[1:]]
