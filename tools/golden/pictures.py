"""Pictures of pages here beside those of a commit, light and dark, to be looked at.

    python tools/golden/pictures.py BASE FOLDER [--browser PATH]

Each is FOLDER/<page>-<theme>.png, with the base on the left. Wants Chromium or Chrome; takes about three minutes.
"""

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from compare import TOP, base_tree
from outside import numerate, prepare, renamed_in, replaced
from PIL import Image
from transcripts import COUNTING, LANGUAGE

PAGES = {
    "quickstart": (
        "runs/quickstart/report.html",
        "run quickstart training.steps=400 evaluation.examples_per_cell=20 workers=1",
    ),
    "quickstart-run": ("runs/addition_abacus/*/report.html",),
    "study": ("runs/counting_mod10_lstm/report.html", f"run {COUNTING} model.hidden_size=8,32 seeds=3 workers=1"),
    "counting": ("runs/counting_mod10_lstm/*/report.html",),
    "language": (
        "runs/tiny_stories_laptop_dual-debug/*/report.html",
        "data tokenise stories.txt out=stories tokenizer=characters",
        "data tokenise held.txt out=held tokenizer=characters",
        f"train tiny_stories_laptop_dual {LANGUAGE} preset=debug training.steps=100 training.evaluate_every=20",
        "evaluate latest grid=16+32+64",
        "report latest",
    ),
}
"""Where each page is (the first of these), and the commands that make it; names of files do not change, words may."""

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome", "headless_shell")
THEMES = {"light": 1, "dark": 0}
WIDTH, HIGHEST = 1100, 16_000


def browse(browser: str, *options: str) -> str:
    """Calls the browser without a window. Returns what it prints."""
    command = [browser, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", *options]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=120).stdout


def height(browser: str, page: Path, place: Path) -> int:
    """How many pixels a page is high: a script in a copy of it writes that into the page, which is printed."""
    script = "<script>document.documentElement.dataset.height = document.documentElement.scrollHeight</script>"
    copy = place / "measured.html"
    copy.write_text(page.read_text() + script)
    found = re.search(r'data-height="(\d+)"', browse(browser, f"--window-size={WIDTH},800", "--dump-dom", str(copy)))
    return min(int(found[1]), HIGHEST) if found else HIGHEST


def picture(browser: str, page: Path, theme: str, place: Path) -> Image.Image:
    size = f"--window-size={WIDTH},{height(browser, page, place)}"
    shot = place / "shot.png"
    browse(browser, f"--blink-settings=preferredColorScheme={THEMES[theme]}", size, f"--screenshot={shot}", str(page))
    return Image.open(shot).copy()


def side_by_side(left: Image.Image, right: Image.Image) -> Image.Image:
    both = Image.new("RGB", (left.width + right.width + 8, max(left.height, right.height)), "red")
    both.paste(left, (0, 0))
    both.paste(right, (left.width + 8, 0))
    return both


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("base", help="the commit to compare with")
    parser.add_argument("out", type=Path, help="the folder for the pictures")
    parser.add_argument("--browser", help="the program; by default the first Chromium or Chrome of the path")
    given = parser.parse_args()
    browser = given.browser or next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        print(f"pictures: no browser is there ({', '.join(BROWSERS)}); --browser PATH names one", file=sys.stderr)
        return 2
    given.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="golden-") as name:
        place = Path(name)
        tree = base_tree(given.base, place / "tree")
        old = {new: old for old, new in renamed_in(tree).items()}
        sides = {place / "base": (tree, old), place / "here": (TOP, {})}
        for folder, (code, words) in sides.items():
            prepare(folder)
            for _, *commands in PAGES.values():
                for command in commands:
                    print(f"{folder.name}: numerate {command}", file=sys.stderr)
                    done = numerate(code, folder, replaced(command, words))
                    if done.returncode:
                        print(done.stderr, file=sys.stderr)
        for label, (where, *_) in PAGES.items():
            pages = [sorted(folder.glob(where))[:1] for folder in sides]
            if not all(pages):
                print(
                    f"{label}: {' and '.join(f.name for f, p in zip(sides, pages, strict=True) if not p)} has no page"
                )
                continue
            for theme in THEMES:
                left, right = (picture(browser, page, theme, place) for (page,) in pages)
                side_by_side(left, right).save(given.out / f"{label}-{theme}.png")
                print(given.out / f"{label}-{theme}.png")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
