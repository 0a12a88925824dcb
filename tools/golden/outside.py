"""Compares what a user sees here with what is seen at a commit: `make golden-outside BASE=<commit>`.

Both run the commands of `transcripts.py` in a folder of their own. Compared are exit status, output, the names of the
files that a command leaves, and the contents of those that are read by people or other programs: pages as text, tables,
rows, and the tensors of exports by name, shape and hash. Times, dates, paths and ids of runs are left out.
"""

import argparse
import csv
import hashlib
import os
import re
import runpy
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from difflib import unified_diff
from html.parser import HTMLParser
from pathlib import Path

from compare import TOP, base_tree
from transcripts import CASES, RENAMED

PATTERNS = {
    r"\d{4}-\d\d-\d\d[ T_]\d\d[:-]\d\d(?:[:-]\d\d)?(?:\.\d+)?(?: UTC|Z|\+00:00)?": "<date>",
    r"(?m)^(started|ended) \| <date>\n| \| (ended|<date>)$": "",  # in a line of its own where all runs ended at once
    r"[\d.,]+[kM]? (tokens|examples|steps)/s(?: \([\d.]+% of (?:limit|peak)\))?": r"<speed> \1",
    r"(?m)^(tokens/s|peak memory)\n.*": r"\1\n<speed>",
    r"(?m)^(?:share of limit|FLOPs utilization)\n.*": "FLOPs utilization\n<speed>",
    r"\b\d+:\d\d(?::\d\d)?( for | here| left)": r"<time>\1",
    r"\b[\d.,]+ (ms|s|seconds|minutes|min|h)\b": r"<time> \1",
    r"[\w-]+-\d+-[0-9a-f]{4}(?=\.jsonl)": "<worker>",
    r"(?m)^(seconds|worker): .*": r"\1: <time>",
}
"""What differs between two runs of the same code, and what stands for it."""

RUN_ID = r"\b[0-9a-f]{12}\b"


class PageText(HTMLParser):
    """The text of a page: a line for each block, cells of a table joined by bars; no markup, style or script."""

    APART = re.compile(r"h\d|p|li|tr|div|section|text|title|figcaption|summary|dt|dd|pre|option|label|br")

    def __init__(self) -> None:
        super().__init__()
        self.parts: list[str] = []
        self.hidden = 0

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.hidden += tag in ("style", "script")
        self.parts.append("\n" if self.APART.fullmatch(tag) else " | " if tag in ("td", "th") else "")

    def handle_endtag(self, tag: str) -> None:
        self.hidden -= tag in ("style", "script")
        self.parts.append("\n" if self.APART.fullmatch(tag) else "")

    def handle_data(self, data: str) -> None:
        if not self.hidden:
            self.parts.append(re.sub(r"\s+", " ", data))


def page_text(page: str) -> str:
    parser = PageText()
    parser.feed(page)
    lines = (re.sub(r" +", " ", line).strip(" |") for line in "".join(parser.parts).splitlines())
    return "\n".join(line for line in lines if line)


def tensors(file: Path) -> str:
    """Each tensor of a file of weights: its name, type, shape and hash."""
    from safetensors.numpy import load_file

    found = sorted(load_file(file).items())
    return "\n".join(f"{name} {t.dtype} {t.shape} {hashlib.sha256(t.tobytes()).hexdigest()[:16]}" for name, t in found)


def rows(file: Path) -> str:
    """A table with a line for each cell, since a line with a hundred cells is hard to compare."""
    with file.open(newline="") as lines:
        return "\n".join(f"{column}: {cell}" for row in csv.DictReader(lines) for column, cell in row.items())


READERS: dict[str, Callable[[Path], str]] = {
    ".html": lambda file: page_text(file.read_text()),
    ".safetensors": tensors,
    ".csv": rows,
    **dict.fromkeys((".md", ".tex", ".txt", ".json", ".jsonl", ".py"), Path.read_text),
}
"""What is compared of a file, by its kind; of others the name alone."""


def contents(file: Path, within_runs: bool) -> str:
    """What is compared of a file. In the folders of runs, which are numerate's own business, that is pages alone."""
    reader = READERS.get(file.suffix)
    return "" if reader is None or (within_runs and file.suffix != ".html") else reader(file)


def normalised(text: str, places: dict[str, str]) -> str:
    """A text without what differs between two runs of the same code. Ids of runs are numbered as they appear."""
    for place, name in places.items():
        text = text.replace(place, name)
    lines = [line for line in text.splitlines() if not re.search(r"^\d{4}-.* \d+/\d+ \((?!100)\d+ %\)", line)]
    text = "\n".join(lines)
    for pattern, instead in PATTERNS.items():
        text = re.sub(pattern, instead, text)
    seen: dict[str, str] = {}
    return re.sub(RUN_ID, lambda found: seen.setdefault(found[0], f"<id {len(seen) + 1}>"), text)


def replaced(text: str, words: dict[str, str]) -> str:
    """A text with other words, where they stand as whole words."""
    if not words:
        return text
    longest_first = "|".join(re.escape(word) for word in sorted(words, key=len, reverse=True))
    return re.sub(rf"(?<![\w.])(?:{longest_first})(?!\w)", lambda found: words[found[0]], text)


def renamed_since(base: dict[str, str], here: dict[str, str]) -> dict[str, str]:
    """What words of the base are called here; the base may have renamed some of them already."""
    return {base.get(old, old): new for old, new in here.items() if base.get(old, old) != new}


def renamed_in(tree: Path) -> dict[str, str]:
    """What words of the commit in a folder are called here."""
    table = tree / "tools/golden/transcripts.py"
    return renamed_since(runpy.run_path(str(table))["RENAMED"] if table.exists() else {}, RENAMED)


def prepare(folder: Path) -> None:
    """A folder with the files that commands read."""
    folder.mkdir()
    stories = [f"Story {number}: once upon a time there were {number} cats." for number in range(120)]
    (folder / "stories.txt").write_text("\n<|endoftext|>\n".join(stories[:90]))
    (folder / "held.txt").write_text("\n<|endoftext|>\n".join(stories[90:]))


def numerate(tree: Path, folder: Path, words: str) -> subprocess.CompletedProcess[str]:
    """One command with the code of a tree, in a folder which is also the home."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("NUMERATE_", "XDG_", "SLURM_"))}
    own = {"PYTHONPATH": tree / "src", "HOME": folder / ".cache", "COLUMNS": 400, "TZ": "UTC", "LC_ALL": "C.UTF-8"}
    own |= {"OMP_NUM_THREADS": 1, "NO_COLOR": 1, "GIT_DIR": os.devnull}  # runs record the commit of a work tree
    environment = kept | {name: str(value) for name, value in own.items()}
    command = [sys.executable, "-m", "numerate", *shlex.split(words)]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300)


def files_below(folder: Path) -> dict[Path, tuple[int, int]]:
    found = ((path, path.stat()) for path in folder.rglob("*") if path.is_file() and ".cache" not in path.parts)
    return {path: (state.st_mtime_ns, state.st_size) for path, state in found}


def transcripts(tree: Path, folder: Path, cases: dict[str, str]) -> Iterator[tuple[str, str]]:
    """What comes of each command with the code of a tree, by the command as it is called here."""
    prepare(folder)
    places = {str(folder): "<folder>", str(tree): "<tree>", sys.executable: "<python>"}
    before = files_below(folder)
    for number, (label, words) in enumerate(cases.items()):
        print(f"{number + 1}/{len(cases)} {words}", file=sys.stderr)
        done = numerate(tree, folder, words)
        after = files_below(folder)
        files = [path for path in after if after[path] != before.get(path)]
        files.sort(key=lambda path: (re.sub(RUN_ID, "", str(path)), after[path][0]))
        told = [f"exit status {done.returncode}", done.stdout, "-- stderr", done.stderr]
        for path in files:
            name = path.relative_to(folder)
            told += [f"-- {name}", contents(path, within_runs="runs" in name.parts)]
        before = after
        yield label, normalised("\n".join(told), places)


def numbers_alone(text: str) -> str:
    """The exit status and the numbers of a transcript, for changes that reword what stands around them."""
    return "\n".join(re.findall(r"(?<![\w.])-?\d+(?:[.,]\d+)*(?:e-?\d+)?", text))


def differences(base: dict[str, str], here: dict[str, str], words: dict[str, str]) -> dict[str, str]:
    """Unified differences of the transcripts that differ, by command, with the base in today's words."""
    found = {}
    for label in base | here:
        then, now = base.get(label, ""), here.get(label, "")
        if (today := replaced(then, words)) != then:  # longer words make columns wider
            then, now = (re.sub(r"-{2,}", "--", re.sub(r" {2,}", "  ", text)) for text in (today, now))
        if lines := list(unified_diff(then.splitlines(), now.splitlines(), "base", "here", n=1, lineterm="")):
            found[label] = "\n".join(lines) + "\n"
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("base", help="the commit to compare with")
    parser.add_argument("--numbers", action="store_true", help="compare exit statuses and numbers, not words")
    parser.add_argument("--keep", type=Path, help="a folder for all that was recorded, one file per command")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="golden-") as name:
        place = Path(name)
        tree = base_tree(given.base, place / "tree")
        words = renamed_in(tree)
        old = {new: old for old, new in words.items()}
        base = dict(transcripts(tree, place / "base", {case: replaced(case, old) for case in CASES}))
        here = dict(transcripts(TOP, place / "here", {case: case for case in CASES}))
        for side, texts in {"base": base, "here": here}.items() if given.keep else ():
            shutil.rmtree(given.keep / side, ignore_errors=True)
            (given.keep / side).mkdir(parents=True)
            for number, (label, text) in enumerate(texts.items()):
                short = re.sub(r"\W+", "-", label)[:60]
                (given.keep / side / f"{number:03} {short}.txt").write_text(text)
    if given.numbers:
        base, here = ({label: numbers_alone(text) for label, text in side.items()} for side in (base, here))
    differ = differences(base, here, words)
    for label, text in differ.items():
        print(f"numerate {label}\n{text}")
    print(f"{len(here)} commands, {len(differ)} differ from {given.base}")
    return 1 if differ else 0


if __name__ == "__main__":
    raise SystemExit(main())
