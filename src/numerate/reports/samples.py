"""Questions with the predictions of models, wrong characters marked; and texts generated during training."""

from collections.abc import Mapping, Sequence
from difflib import SequenceMatcher
from typing import Any

from markupsafe import Markup, escape

from numerate.reports.content import Block, Content, Folded, Note
from numerate.reports.grid import cell_label
from numerate.reports.groups import Group
from numerate.reports.limits import groups_to_draw
from numerate.reports.records import Records
from numerate.reports.table import TextTable

MAX_SAMPLES = 40
MAX_GROUPS = 4
"""Groups side by side."""


MAX_STEPS, MAX_TEXTS_PER_STEP = 6, 8
"""Maximum number of steps with generated texts, and of texts per step."""


def samples_content(groups: Sequence[Group]) -> Content:
    """The samples of one run; of several groups their predictions on shared questions, or each by itself."""
    if len(groups) == 1:
        return run_samples(groups[0].runs[0])
    shown = groups_to_draw(groups, MAX_GROUPS)
    known = [{sample["question"]: sample for sample in group.runs[0].samples} for group in shown]
    shared = [question for question in known[0] if all(question in samples for samples in known)]
    if not shared:
        each = [(group.label, run_samples(group.runs[0])) for group in shown]
        return [Folded(label, content) for label, content in each if content]
    rows = [
        [*_question(known[0][question], shown[0].operator), *(_marked(samples[question]) for samples in known)]
        for question in shared[:MAX_SAMPLES]
    ]
    header = ["cell", "question", "target", *(group.label for group in shown)]
    return [TextTable(header, rows, monospace=range(1, len(header)))]


def run_samples(run: Records) -> Content:
    """The samples of one run with its input and output."""
    rows = [
        [*_question(sample, run.operator), _marked(sample), sample.get("model_text") or ""]
        for sample in run.samples[:MAX_SAMPLES]
    ]
    header = ["cell", "question", "target", "prediction", "model input and output"]
    found: list[Block] = [TextTable(header, rows, monospace=range(1, len(header)))] if rows else []
    if len(run.samples) > MAX_SAMPLES:
        found.append(Note(f"{len(run.samples) - MAX_SAMPLES} more in samples.jsonl."))
    return found


def _question(sample: Mapping[str, Any], operator: str | None) -> list[str]:
    label = cell_label(sample.get("cell") or {}, operator, sample["names"])
    return [label, sample["question"], sample.get("correct_answer") or ""]


def _marked(sample: Mapping[str, Any]) -> Markup:
    """The prediction with a tick or a cross, readable without color, and marked where it differs from the answer."""
    prediction = sample["prediction"]
    if sample.get("correct"):
        return Markup('<span class="right">✓</span> {}').format(prediction)
    parts = [Markup('<span class="wrong">✗</span> '), Markup("<mark>(empty)</mark>") * (not prediction)]
    matcher = SequenceMatcher(None, sample.get("correct_answer") or "", prediction, autojunk=False)
    for kind, _, _, start, end in matcher.get_opcodes():
        template = Markup("{}" if kind == "equal" else "<mark>{}</mark>" if end > start else "")
        parts.append(template.format(prediction[start:end]))
    return Markup("").join(parts)


def texts_content(groups: Sequence[Group]) -> Content:
    """Texts generated at some steps of training, and at the end; of several groups those of one run of each."""
    if len(groups) > 1:
        each = [(group, texts_content([group])) for group in groups]
        return [Folded(group.label, content) for group, content in each if content]
    lines = groups[0].runs[0].generated_texts
    steps = sorted({int(line.get("step") or 0) for line in lines})
    last = len(steps) - 1
    kept = sorted({steps[round(i * last / (MAX_STEPS - 1))] for i in range(MAX_STEPS)}) if steps else []
    content: list[Block] = []
    for step in reversed(kept):
        own = [line for line in lines if int(line.get("step") or 0) == step][:MAX_TEXTS_PER_STEP]
        rows = [[line.get("prompt") or "(the beginning of a document)", _lines(line.get("text") or "")] for line in own]
        content.append(Folded(f"step {step:,}", [TextTable(["prompt", "text"], rows, monospace=[0])], step == kept[-1]))
    return content


def _lines(text: object) -> Markup:
    return Markup("<br>").join(map(escape, str(text).split("\n")))
