"""Heat maps of an evaluation in a terminal, by rich: in colors, or as numbers where there are none."""

import shutil
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from numerate.results.summary import default_metric, grid_axes
from numerate.results.words import axis_name, cell_percent, metric_name
from numerate.terminal import raw_stream

if TYPE_CHECKING:
    from pandas import DataFrame
    from rich.console import Console
    from rich.text import Text

RAMP = np.array([(32, 36, 47), (40, 65, 95), (42, 106, 128), (58, 154, 140), (143, 203, 124), (243, 236, 156)])
FRAME, CORNERS = "#ff7b72", " ╺╸━╻┏┓┳╹┗┛┻┃┣┫╋"
"""The colors of shares from 0 to 1, lighter all the way; the frame's, with its corners by their arms: 1 to the right, 2
to the left, 4 down, 8 up."""


def console_of(stream: Any) -> "Console":
    """What a stream shows, as rich finds out (TERM, COLORTERM, NO_COLOR, FORCE_COLOR, COLUMNS): 256 colors or more, or
    none; and 100 columns where these are unknown."""
    from rich.console import Console

    found = Console(file=raw_stream(stream))
    colors: Any = None if found.no_color else found.color_system and found.color_system.replace("standard", "256")
    return Console(color_system=colors, force_terminal=bool(colors), width=shutil.get_terminal_size((100, 24)).columns)


def maps_text(frame: "DataFrame", title: str, console: "Console") -> str:
    """The maps of one evaluation: per cents in the cells, and a frame around what was trained.

    The first axis runs down, the second across, and each value of further ones has a map of its own; cells of equal
    sizes that are alone in their row and column (`diagonal:101:160`) are a strip. Where numbers do not fit, cells are
    colors alone; where these do not fit either, every n-th row and column is shown, and the title says so.
    """
    names, metric, trained = grid_axes(frame), default_metric(frame), frame["region"] == "in_distribution"
    value = frame[metric].where(~trained).fillna(frame["accuracy"]) if metric == "ood_accuracy" else frame[metric]
    cells = frame.assign(value=value, trained=trained, strip=0)
    title += f", {metric_name(metric, is_trained=bool(trained.all()))}" * (metric != "exact_match")
    lines: list[Text] = []
    rows, is_alone = names[0] if len(names) > 1 else "strip", cells["value"] < 0
    if len(names) == 2:
        first, second = (cells.groupby(name)[name].transform("size") == 1 for name in names)
        is_alone = first & second & (cells[names[0]] == cells[names[1]])
        is_alone &= is_alone.sum() > 1
    for _, own in cells[~is_alone].groupby(names[2:] or ["strip"]):
        further = "".join(f", {axis_name(name)} {own[name].iloc[0]}" for name in names[2:])
        lines += _drawn(own, rows, names[:2][-1], title + further, console)
    lines += _drawn(cells[is_alone], "strip", names[0], f"{title}, equal sizes", console) if is_alone.any() else []
    with console.capture() as shown:
        for line in lines:
            console.print(line, soft_wrap=True)
    return shown.get()


def _drawn(cells: "DataFrame", down: str, across: str, title: str, console: "Console") -> "Iterator[Text]":
    from rich.text import Text

    values, inside = (cells.pivot(index=down, columns=across, values=name) for name in ("value", "trained"))
    has_color, is_strip = console.color_system is not None, down == "strip"
    margin, width = (1 if is_strip else 1 + len(str(values.index.max()))), max(4, 1 + len(str(values.columns.max())))
    room = console.width - margin - 2
    width = 2 if has_color and width * len(values.columns) > room >= 2 * len(values.columns) else width
    step = -(-width * len(values.columns) // max(room, width))
    values, trained = values.iloc[::step, ::step], inside.iloc[::step, ::step].to_numpy() == True  # noqa: E712
    yield Text(title + f", one of {step} rows and columns" * (step > 1), "bold")
    head = ""
    for i, size in enumerate(values.columns):
        is_labelled = width > 2 or ((i == 0 or (i + 1) % 5 == 0) and len(head) <= 2 * i)
        head = f"{head:<{width * i}}" + f"{size:>{width - 1}}" * is_labelled
    yield Text(" " * (margin + 1) + head)
    bars, rules = (abs(np.diff(np.pad(trained, 1).astype(int), axis=axis)) for axis in (1, 0))
    for i, rule in enumerate(rules):
        if rule.any():
            arms = rule[1:] + 2 * rule[:-1] + 4 * bars[i + 1] + 8 * bars[i]
            pieces = [CORNERS[arm] + " ━"[is_edge] * (width - 1) for arm, is_edge in zip(arms, rule[1:], strict=True)]
            yield Text(" " * margin + "".join(pieces).rstrip(), FRAME)
        if i == len(values):
            break
        is_labelled = not is_strip and (width > 2 or i == 0 or (i + 1) % 5 == 0)
        line, back = Text((str(values.index[i]) if is_labelled else "").rjust(margin)), ""
        for bar, share in zip(bars[i + 1], [*values.iloc[i], np.nan], strict=True):
            line.append("┃" if bar else " ", FRAME if bar else back)
            back = f"on {_color(share)}" if has_color and share >= 0 else ""
            text = cell_percent(share) if share >= 0 and width > 2 else ""
            line.append(text.rjust(width - 1), back and f"#{'000000' if share >= 0.5 else 'ffffff'} {back}")
        line.rstrip()
        yield line
    yield Text(" " * (margin + 1) + f"{axis_name(down)} (down), " * (not is_strip) + axis_name(across) + "\n")


def _color(share: float) -> str:
    return "#{:02x}{:02x}{:02x}".format(*(round(float(np.interp(5 * share, range(6), one))) for one in RAMP.T))


def legend_text(console: "Console") -> str:
    """What the colors and the frame of maps mean."""
    from rich.text import Text

    line = Text()
    for share in (0, 0.25, 0.5, 0.75, 1) if console.color_system else ():
        line.append(f" {100 * share:.0f} ", f"#{'000000' if share >= 0.5 else 'ffffff'} on {_color(share)}")
    with console.capture() as shown:
        console.print(Text.assemble(line, " % correct   ", ("┃ ┃", FRAME), " in distribution"), soft_wrap=True)
    return shown.get().strip()
