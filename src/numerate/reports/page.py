"""The report of a run: one HTML file that needs nothing else, written from the records in the run's folder."""

from html import escape
from pathlib import Path

from numerate.errors import OperationalError, UserError
from numerate.evaluation.labels import METRICS, Metric
from numerate.reports import attention_maps, overview, sections
from numerate.reports.answers import answers
from numerate.reports.claims import no_claims
from numerate.reports.counts import by_count
from numerate.reports.drawing import facts, table
from numerate.reports.finding import REACHED, finding, outcome
from numerate.reports.grid import OOD, REGIONS, Region, bracket, percent, regions
from numerate.reports.groups import Group, by_parts, fairly, grouped, region_words, settings_words
from numerate.reports.language_page import run_body
from numerate.reports.measure_tables import measure_tables
from numerate.reports.records import Records, read
from numerate.reports.sheet import page


def write_page(run_folder: str | Path) -> Path:
    """Writes report.html into a run's folder and returns its path.

    It is a function of the records alone: the same records give the same bytes. Raises `UserError` when the folder is
    no run or must not be written to, `OperationalError` when its records are damaged or the disk is full.
    """
    run = read(run_folder)
    return write_text(run.folder / "report.html", run_page(run))


def run_page(run: Records) -> str:
    """The page of one run as text."""
    group = grouped([run])[0]
    if run.running:
        return _running_page(run)
    title, parts = run.label, by_parts([group])
    body = [
        f'<p class="over">numerate · a run · {escape(run.id)}</p><h1>{escape(title)}</h1>',
        sections.warning("; ".join(no_claims([group]))),
        sections.sentence(finding([group])),
        _facts(group, run),
        sections.heading("Accuracy per count", by_count([group])),
        sections.lengths([group]),
        sections.heading("The numbers", measure_tables([group]) if parts else ""),
        sections.heading("Regions", sections.region_table([group])),
        sections.heading("Numbers and texts in the answers", "" if parts else answers([group])),
        sections.heading("Checkpoints and placements", _other_evaluations(run, group.measure)),
        sections.heading("Run with other settings", _other_settings(run)),
        sections.heading("Training", sections.training([group])),
        sections.heading("Samples", sections.samples(run)),
        sections.heading("Attention and relations", attention_maps.section(run.folder)),
        sections.heading("To run it again", sections.reproduce([run])),
        sections.heading("Recipe", _details(sections.recipe(run))),
        sections.heading("Left out of this report", sections.warnings([run])),
    ]
    return page(f"{title}: report", "\n".join(part for part in body if part))


def _running_page(run: Records) -> str:
    """The page of one run on running text."""
    body = [
        f'<p class="over">numerate · a run · {escape(run.id)}</p><h1>{escape(run.label)}</h1>',
        *run_body(run),
        sections.heading("Attention and relations", attention_maps.section(run.folder)),
        sections.heading("To run it again", sections.reproduce([run])),
        sections.heading("Recipe", _details(sections.recipe(run))),
        sections.heading("Left out of this report", sections.warnings([run])),
    ]
    return page(f"{run.label}: report", "\n".join(part for part in body if part))


def fragment(run_folder: str | Path) -> str:
    """The finding and the main figure of a run for a notebook, in a frame of its own so that no style leaks out."""
    run = read(run_folder)
    group = grouped([run])[0]
    if run.running:
        inside = escape(page(run.label, "".join(run_body(run))))
        frame = 'style="width:100%;height:760px;border:0"'
        return f'<iframe title="{escape(run.label)}" srcdoc="{inside}" {frame}></iframe>'
    body = sections.sentence(finding([group])) + by_count([group]) + overview.maps_and_lengths([group])
    inside = escape(page(run.label, body))
    return f'<iframe title="{escape(run.label)}" srcdoc="{inside}" style="width:100%;height:760px;border:0"></iframe>'


def write_text(path: Path, text: str) -> Path:
    """Writes a file whole: beside it first, then renamed over it."""
    beside = path.with_name(f".{path.name}.new")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        beside.write_text(text, encoding="utf-8")
        beside.replace(path)
    except PermissionError:
        raise UserError(
            f"{path}: no permission to write there; give another path or change the folder's rights"
        ) from None
    except OSError as error:
        beside.unlink(missing_ok=True)
        raise OperationalError(
            f"{path}: could not be written: {error.strerror}; the records themselves are untouched"
        ) from None
    return path


def _facts(group: Group, run: Records) -> str:
    pairs = {}
    found = group.regions[0] if group.regions else {}
    for name, words in region_words([group]).items():
        if name in found and not (name == OOD and len(found) > 3 and not found[name].cells):
            share = found[name].share
            interval = f'<span class="quiet">{bracket(share.low, share.high)}</span>'
            floor = found[name].floor
            beside = f' <span class="quiet">floor {percent(floor)} %</span>' if floor is not None else ""
            pairs[f"{words}, {_mean_words(group, name)}"] = f"{percent(share.value)} % {interval}{beside}"
    reach = outcome(group).reach
    if reach is not None:
        pairs[f"at least {percent(REACHED)} % up to"] = escape(outcome(group).words(reach))
    known = sections.provenance(run)
    pairs.update({name: escape(known[name]) for name in ("parameters", "steps", "examples") if name in known})
    return facts(pairs) if pairs else ""


def _mean_words(group: Group, name: str) -> str:
    """What the number of a region is: the mean of exact match, or a measure of labels."""
    if group.measure == "exact":
        return "mean"
    return METRICS["accuracy"] if (group.measure, name) == ("unseen", "in_distribution") else group.measure_words


def _other_evaluations(run: Records, measure: Metric) -> str:
    """One row per checkpoint, settings and placement, where more than one was evaluated; of labels and several
    placements the mean over these as well."""
    rows, several = [], len(run.settings()) > 1
    position_offsets: list[int | None] = [*run.position_offsets()]
    labelled = all(cell.labels is not None for cell in run.cells)
    position_offsets += [None] * (labelled and len(position_offsets) > 1)
    words = {name: text for name, text in region_words(grouped([run])).items() if _has(run, name)}
    for settings in run.settings():
        for checkpoint in run.checkpoints():
            for position_offset in position_offsets:
                cells = [cell.of(measure) for cell in fairly(run.select(checkpoint, position_offset, settings))]
                if cells:
                    found = regions(cells)
                    texts = [_share_text(found[name]) if name in found else "" for name in words]
                    where = (
                        f"mean of {len(run.position_offsets())}" if position_offset is None else str(position_offset)
                    )
                    how = [escape(settings_words(settings) or "as trained")] * several
                    rows.append([escape(checkpoint[0]), f"{checkpoint[1]:,}", *how, where, *texts])
    header = [
        "checkpoint",
        "step",
        *(["settings"] * several),
        "position_offset",
        *(f"{text}, %" for text in words.values()),
    ]
    numbers = [1, *range(2 + several, len(header))]
    if len(rows) < 2:
        return ""
    chosen = any(cell.checkpoint == "best" and cell.region == "ood_validation" for cell in run.cells)
    note = f"<figcaption>{CHOSEN}</figcaption>" if chosen else ""
    return table(header, rows, numbers=numbers) + note


CHOSEN = "The best checkpoint was chosen on OOD validation, which is therefore excluded from its results."


def _share_text(region: Region) -> str:
    floor = f" (floor {percent(region.floor)})" if region.floor is not None else ""
    return f"{percent(region.share.value)} {bracket(region.share.low, region.share.high)}{floor}"


def _has(run: Records, name: str) -> bool:
    """Whether the cells of a run have a region; of more than one OOD region there is a mean of all."""
    found = {cell.region for cell in run.cells}
    return name in found or (name == OOD and len(found & REGIONS.keys() - {"in_distribution"}) > 1)


def _other_settings(run: Records) -> str:
    """The maps and lengths of a run that was evaluated with other settings than it was trained with, beside its own."""
    groups = grouped([run])
    return overview.maps_and_lengths(groups) + sections.region_table(groups) if len(groups) > 1 else ""


def _details(body: str) -> str:
    return f"<details><summary>Every setting</summary>{body}</details>" if body else ""
