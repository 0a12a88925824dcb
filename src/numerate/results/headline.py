"""The headline of a page: what was trained and how far it reaches, never beyond what its cells and strata say.

How far a variant generalizes is read off the cells where all numbers are equally long, without gaps: to n if all
lengths out of distribution up to n have at least `REACHED`, clearly more than memorizing, and all strata up to n as
well. Seeds that did not converge in distribution do not count.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from numerate.results.rows import LANGUAGE_METRICS
from numerate.results.summary import (
    converged,
    default_metric,
    diagonal,
    grid_axes,
    has_parts,
    of_map,
    of_strata,
    reported,
    summary,
)
from numerate.results.words import REGION_NAMES, cell_name, joined, metric_name, percent, span, value_text

if TYPE_CHECKING:
    from pandas import DataFrame, Series

REACHED = 0.90
"""The score required at every length up to n to generalize to n."""

MAX_CLAUSES = 5
"""Variants that have a clause of their own."""

STRATA = {
    "nines_plus_one": "99...9 + 1",
    "one_plus_nines": "1 + 99...9",
    "complement": "a + (10^n - a)",
    "nines_plus_nines": "99...9 + 99...9",
    "power_minus_one": "10...0 - 1",
    "power_minus_number": "10...0 - a",
    "power_minus_nines": "10...0 - 99...9",
    "nines_times_nine": "99...9 x 9",
    "nine_times_nines": "9 x 99...9",
    "nines_times_nines": "99...9 x 99...9",
    "one_and_n": "1 and n digits",
    "n_and_one": "n and 1 digits",
    "half_and_n": "n/2 and n digits",
    "n_and_half": "n and n/2 digits",
    "carries": "longest carry chain",
}
"""Strata in words."""


@dataclass(frozen=True)
class Reach:
    """How far a variant generalizes: the summary of the farthest length that it reaches, of the first length beyond
    training, and of the stratum that ends it; None where there is none."""

    farthest: "Series[Any] | None"
    first: "Series[Any] | None"
    stratum: "Series[Any] | None"


def reach(cells: "DataFrame") -> Reach:
    """How far one variant generalizes, by the reported cells of the seeds that count."""
    along = diagonal(cells)
    if not len(along) or has_parts(cells):
        return Reach(None, None, None)
    trained = along.loc[along["region"] == "in_distribution", "length"].max()
    beyond = summary(along[~(along["length"] <= trained)], by=["length"]).sort_values("length")
    says_little = beyond["baseline"] >= REACHED  # memorizing alone reaches that
    clear = beyond["baseline"].isna() | (beyond["value"] - beyond["baseline"] >= 0.5 * (1 - beyond["baseline"]))
    clear &= ~(beyond["baseline"] >= 1)
    holds = (beyond["value"] >= REACHED) & (clear | says_little)
    first = beyond[~says_little].head(1) if (~says_little).any() else beyond.head(1)
    reached = beyond[holds.cumprod().astype(bool)]
    reached, stratum = reached[clear[reached.index]], None
    if len(reached):
        failed = stratum_sizes(cells)
        failed = failed[failed["value"] < REACHED].sort_values(["size", "value"]).head(1)
        if len(failed) and failed["size"].iloc[0] <= reached["length"].iloc[-1]:
            stratum, reached = failed.iloc[0], reached[reached["length"] < failed["size"].iloc[0]]
    return Reach(reached.iloc[-1] if len(reached) else None, first.iloc[0] if len(first) else None, stratum)


def _counted(frame: "DataFrame") -> dict[str, "DataFrame"]:
    """Of each variant the reported cells of the seeds that converged; of all seeds if none did."""
    cells, kept = reported(frame), set(converged(frame)["run"])
    found = {}
    for name, own in cells.groupby("variant", sort=False):
        inside = own[own["run"].isin(kept)]
        found[str(name)] = inside if len(inside) else own
    return found


def stratum_sizes(frame: "DataFrame") -> "DataFrame":
    """The summary of each stratum and size, the length of its longest operand, with its questions in words."""
    from pandas import DataFrame

    cells = of_strata(frame)
    if not len(cells):
        return DataFrame({"size": [], "value": [], "variant": [], "questions_of": []})
    axes = [axis for axis in grid_axes(frame) or ["first_digits", "second_digits"] if axis in cells]
    further = [name for name in ("longest_carry_chain",) if name in cells and name not in axes]
    cells = cells.assign(size=cells[axes].max(axis=1).astype(int))
    found = summary(cells, by=["variant", "stratum", *further, "size"], metric="exact_match")
    words = found["stratum"].map(lambda name: STRATA.get(name, name.replace("_", " ")))
    for name in further:
        words = words + (" " + found[name].astype("string")).fillna("")
    return found.assign(questions_of=words)


def headline(frame: "DataFrame", operator: str | None = None) -> str:
    """At most two sentences about the variants of a frame of one task. Of the quickstart:

    "With 1 to 5 digits in distribution, Abacus stays at 90 % or more up to 8+8 digits (90.5 % [85.6, 93.8] there);
    rotary falls to 0 % [0, 1.9] at 6+6 digits. One seed each; brackets: 95 % intervals over questions."
    """
    variants = list(dict.fromkeys(frame["variant"])) if len(frame) else []
    cells = of_map(reported(frame))
    if not len(cells):
        return "Only strata have been evaluated." if variants else "Nothing has been evaluated yet."
    metric = default_metric(cells)
    if metric in LANGUAGE_METRICS or has_parts(frame):
        clauses, opening = _plain_clauses(frame, metric), ""
    else:
        trained = cells[cells["region"] == "in_distribution"]
        axes = grid_axes(frame)
        texts = {axis: span(trained[axis].dropna().astype(int)) for axis in axes if trained[axis].notna().any()}
        sizes = dict.fromkeys(texts.values())
        unit = "digits" if all(axis.endswith("digits") for axis in axes) else axes[0].replace("_", " ")
        opening = f"With {' and '.join(sizes)} {unit} in distribution, " if sizes and unit == "digits" else ""
        opening = f"With {unit} {' and '.join(sizes)} in distribution, " if sizes and unit != "digits" else opening
        counted = _counted(frame)
        if len(variants) > MAX_CLAUSES:
            clauses = [_many(frame, counted, operator)]
        else:
            clauses = [_clause(frame[frame["variant"] == name], own, name, operator) for name, own in counted.items()]
    seeds = cells.groupby("variant")["run"].nunique()
    each = " each" * (len(variants) > 1)
    what = "one seed" if (seeds == 1).all() else f"medians of {span(seeds)} seeds"
    brackets = "95 % intervals over questions" if (seeds == 1).all() else "lowest and highest seed"
    measure = "" if metric in ("exact_match", *LANGUAGE_METRICS) else f"scores are {metric_name(metric)}; "
    uncertainty = f"{measure}{what}{each}; brackets: {brackets}"
    chance = "; the best of many variants is partly the best by chance" * (len(variants) > MAX_CLAUSES)
    return f"{opening}{'; '.join(clauses)}. {uncertainty[0].upper()}{uncertainty[1:]}{chance}."


def _clause(frame: "DataFrame", counted: "DataFrame", name: str, operator: str | None) -> str:
    """What the headline says of one variant, whose seeds that count are `counted`."""
    if "non_causal_reason" in frame and (reasons := frame["non_causal_reason"].dropna()).any():
        return f"{name}: not comparable (non-causal): {reasons.iloc[0]}"
    regions = summary(frame).set_index("region")
    there = _score(regions.loc["in_distribution"]) + " in distribution" if "in_distribution" in regions.index else ""
    count, kept = frame["run"].nunique(), converged(frame)["run"].nunique()
    found, axes = reach(counted), grid_axes(frame)

    def at(row: "Series[Any]") -> str:
        return cell_name({axis: int(row["length"]) for axis in axes}, operator)

    if there and not kept:
        is_untrained = not frame["step"].any()
        first = f", {_score(found.first)} at {at(found.first)}" if found.first is not None else ""
        return f"{name} {'was not trained' if is_untrained else 'did not converge'} ({there}{first})"
    seeds = f", in the {kept} of {count} seeds that converged" * (kept < count)
    if found.first is None:
        return f"{name} converged ({there}{seeds}), nothing beyond was evaluated"
    limit = ""
    if found.stratum is not None:
        limit = f"{_score(found.stratum)} on {found.stratum['questions_of']} with n = {found.stratum['size']:,}"
    if found.farthest is None and limit:
        return f"{name} converged ({there}{seeds}) but has {limit}"
    if found.farthest is None:
        return f"{name} falls to {_score(found.first)} at {at(found.first)}{seeds}"
    then = f"; then {limit}" * bool(limit)
    least = percent(REACHED)
    return f"{name} stays at {least} % or more up to {at(found.farthest)} ({_score(found.farthest)} there{seeds}{then})"


def _score(row: "Series[Any]") -> str:
    text = value_text(row["metric"], row["value"], row["low"], row["high"]).replace(" [", " % [", 1)
    text = text if "%" in text else f"{text} %"
    return text if row["baseline"] != row["baseline"] else f"{text}, memorizing {percent(row['baseline'])} %"


def _many(frame: "DataFrame", counted: "dict[str, DataFrame]", operator: str | None) -> str:
    """The results of more variants than a sentence can name."""
    kept, counts = converged(frame).groupby("variant")["run"].nunique(), frame.groupby("variant")["run"].nunique()
    all_converged = sum(kept.get(name, 0) == counts[name] for name in counted)
    text = f"{all_converged} of {len(counted)} variants converged in every seed, and "
    reached = {name: reach(own).farthest for name, own in counted.items()}
    far = {name: int(row["length"]) for name, row in reached.items() if row is not None}
    if not far:
        return f"{text}none stays at {percent(REACHED)} % or more beyond training"
    longest = max(far.values())
    where = cell_name(dict.fromkeys(grid_axes(frame), longest), operator)
    best = joined([name for name in far if far[name] == longest], 3)
    return f"{text}{len(far)} stay at {percent(REACHED)} % or more beyond it, the farthest up to {where} ({best})"


def _plain_clauses(frame: "DataFrame", metric: str) -> list[str]:
    """The scores of parts and of text, region by region."""
    found, clauses = summary(frame), []
    if metric in LANGUAGE_METRICS:
        trained = found[found["region"] == "in_distribution"] if (found["region"] == "in_distribution").any() else found
        best = trained.sort_values("value", kind="stable").head(MAX_CLAUSES)
        texts = [
            f"{row['variant']} {value_text(metric, row['value'], row['low'], row['high'])}"
            for _, row in best.iterrows()
        ]
        lowest = f" (the lowest of {len(trained)})" * (len(trained) > MAX_CLAUSES)
        name = metric_name(metric)
        return [f"{name[0].upper()}{name[1:]}{lowest}: {joined(texts)}"]
    for region, inside in found.groupby("region", sort=False):
        best = inside.sort_values("value", ascending=False, kind="stable").head(MAX_CLAUSES)
        texts = [f"{row['variant']} {_score(row)}" for _, row in best.iterrows()]
        clauses.append(f"{metric_name(metric)} {REGION_NAMES.get(str(region), region)}: {joined(texts)}")
    return [clauses[0][0].upper() + clauses[0][1:], *clauses[1:]]
