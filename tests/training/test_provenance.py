"""Promises of provenance: the truth, as plain data, without importing anything heavy."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from numerate.training import provenance
from numerate.training.provenance import changed_versions, command_line, git_state, versions


def test_everything_is_plain_data() -> None:
    found = provenance.provenance()
    assert set(found) == {"command", "git", "hardware", "versions", "times"}
    assert json.loads(json.dumps(found)) == found


def test_torch_is_not_imported_for_it() -> None:
    code = "import sys; from numerate.training import provenance as p; p.provenance(); print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (["/bin/python", "/venv/bin/numerate", "train", "a b"], "numerate train 'a b'"),
        (["python", "-X", "dev", "-m", "numerate", "list"], "numerate list"),
        (["python", "mine.py", "x=1"], "python mine.py x=1"),
        (["python", "mine.py", "\udcff"], "python mine.py '?'"),
    ],
)
def test_the_command_line_is_what_one_would_type_again(words: list[str], shown: str) -> None:
    assert command_line(words) == shown


def test_git_tells_the_commit_and_whether_anything_differs_from_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(*words: str) -> str:
        settings = ["-c", "user.name=A", "-c", "user.email=a@b.c", "-c", "commit.gpgsign=false"]
        done = subprocess.run(["git", *settings, *words], cwd=tmp_path, check=True, capture_output=True, text=True)
        return done.stdout.strip()

    monkeypatch.chdir(tmp_path)
    assert "here" not in git_state()
    run("init", "-q")
    assert git_state()["here"] == {"commit": None, "dirty": False}
    (tmp_path / "a").write_text("1")
    run("add", "a")
    run("commit", "-qm", "first")
    assert git_state()["here"] == {"commit": run("rev-parse", "HEAD"), "dirty": False}
    (tmp_path / "b").write_text("1")
    assert git_state()["here"]["dirty"] is True


def test_a_git_that_hangs_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slow = tmp_path / "git"
    slow.write_text("#!/bin/sh\nexec /bin/sleep 60\n")
    slow.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(provenance, "_GIT_TIMEOUT", 0.05)
    assert git_state() == {}


def test_changed_versions_are_named_with_both() -> None:
    then = {**versions(), "numpy": "0.1", "gone": "1.0"}
    assert changed_versions(then) == [f"numpy 0.1, now {versions()['numpy']}", "gone 1.0, now absent"]
    assert changed_versions(versions()) == []
