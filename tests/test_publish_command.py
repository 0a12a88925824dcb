"""Promises of `numerate publish`, against a stand-in of the interface of the Hugging Face Hub."""

import base64
import json
import re
import shutil
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from numerate.api import load, train
from numerate.cli import main
from small_runs import small

pytest.importorskip("huggingface_hub")

RECIPE = small("training.steps=2 evaluation.grid=1:2x1:2 evaluation.examples_per_cell=4 name=adder")


class Hub(ThreadingHTTPServer):
    """Answers the requests of an upload; keeps what was committed, by repository and file, and all requests."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.requests: list[tuple[str, str, Any]] = []
        self.files: dict[str, dict[str, bytes]] = {}
        self.status = 200

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class Handler(BaseHTTPRequestHandler):
    server: Hub

    def do_POST(self) -> None:
        text = self.rfile.read(int(self.headers["Content-Length"])).decode()
        lines = [json.loads(line) for line in text.splitlines()]
        self.server.requests.append((self.path, self.headers["Authorization"], lines))
        answer: dict[str, Any] = {}
        if self.path.endswith("/repos/create"):
            kind = f"{lines[0]['type']}s/" if "type" in lines[0] and lines[0]["type"] != "model" else ""
            answer = {"url": f"{self.server.address}/{kind}{lines[0]['organization']}/{lines[0]['name']}"}
        elif "/preupload/" in self.path:
            answer = {"files": [{**file, "uploadMode": "regular", "shouldIgnore": False} for file in lines[0]["files"]]}
        elif "/commit/" in self.path:
            repository = self.path.removeprefix("/api/").partition("/commit/")[0]
            self.server.files[repository] = {
                line["value"]["path"]: base64.b64decode(line["value"]["content"])
                for line in lines
                if line["key"] == "file"
            }
            answer = {"commitUrl": f"{self.server.address}/{repository}/commit/1", "commitOid": "1"}
        content = json.dumps(answer).encode()
        self.send_response(self.server.status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    server = Hub()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", server.address)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr("huggingface_hub.hf_api.HfApi.endpoint", server.address, raising=False)
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of runs with one evaluated run."""
    folder = tmp_path_factory.mktemp("published")
    train(RECIPE, runs_dir=folder).evaluate()
    return folder


@pytest.fixture
def runs(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    shutil.copytree(trained, tmp_path / "runs")
    monkeypatch.chdir(tmp_path)
    return tmp_path / "runs"


def publish(words: str) -> int:
    return main(["publish", *words.split()])


def published(hub: Hub, repository: str = "models/ada/adder") -> dict[str, bytes]:
    return hub.files.get(repository, {})


def test_a_run_is_uploaded_as_a_model_with_recipe_records_report_and_card(runs: Path, hub: Hub) -> None:
    assert publish("latest hub:ada/adder license=apache-2.0 --yes") == 0
    files = published(hub)
    assert {"model.safetensors", "config.json", "tokenizer.json", "recipe.yaml", "evaluation.jsonl", "report.html"} < {
        *files
    }
    assert {token for _, token, _ in hub.requests} == {"Bearer hf_secret"}
    card = files["README.md"].decode()
    assert card.startswith("---\nlicense: apache-2.0\n")
    assert 'from_pretrained("ada/adder"' in card
    assert re.search(r"\| in distribution \| [\d.]+ \[[\d., ]+\] \| \d+ \|", card)
    assert "| task.digits | 1:3 |" in card


def test_the_uploaded_folder_is_a_run_again(runs: Path, hub: Hub, tmp_path: Path) -> None:
    assert publish("latest hub:ada/adder license=mit --yes") == 0
    folder = tmp_path / "downloaded"
    folder.mkdir()
    for name, content in published(hub).items():
        (folder / name).write_bytes(content)
    assert main(["import", str(folder), "name=again"]) == 0
    assert load("again").ask("1+2=").prediction == load("adder").ask("1+2=").prediction


def test_the_results_of_a_study_are_uploaded_as_a_dataset(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["run", "quickstart", "preset=debug", "executor=InProcess"]) == 0
    assert publish("results quickstart-debug hub:ada/results license=cc-by-4.0 --yes") == 0
    files = published(hub, "datasets/ada/results")
    assert [*files] == ["README.md", "cells.csv", "report.html", "runs.csv"]
    assert files["runs.csv"].count(b"\n") == 3  # two recipes and a header
    card = files["README.md"].decode()
    assert "license: cc-by-4.0" in card
    assert re.search(r"\| in distribution \| rotary \|", card)


def test_a_dry_run_shows_files_and_card_and_needs_neither_token_nor_network(
    runs: Path, hub: Hub, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("HF_TOKEN")
    assert publish("latest hub:ada/adder license=mit --dry-run") == 0
    output = capsys.readouterr().out
    assert "model.safetensors" in output
    assert "license: mit" in output
    assert output.endswith("Nothing was uploaded (--dry-run).\n")
    assert not hub.requests


@pytest.mark.parametrize(("answer", "sent"), [("y", True), ("yes", True), ("n", False), ("", False)])
def test_nothing_is_sent_without_a_yes(
    runs: Path, hub: Hub, monkeypatch: pytest.MonkeyPatch, answer: str, sent: bool
) -> None:
    questions: list[str] = []

    def ask(question: str) -> str:
        questions.append(question)
        return answer

    monkeypatch.setattr(sys.stdin, "isatty", lambda: True)
    monkeypatch.setattr("builtins.input", ask)
    assert publish("latest hub:ada/adder license=mit private=true") == 0
    assert re.fullmatch(r"Upload \d+ files, [\d.]+ \wB, to the private model ada/adder\? \[y/N\] ", questions[0])
    assert bool(hub.requests) == sent


@pytest.mark.parametrize(
    ("words", "error"),
    [
        ("latest hub:ada/adder", "license: the value is missing"),
        ("latest ada/adder license=mit", "must have the form hub:USER/NAME"),
        ("latest hub:ada/adder license=mit", "nobody can confirm the upload here; --yes"),
        ("nowhere hub:ada/adder license=mit", "no run"),
        ("results nowhere hub:ada/adder license=mit", "nowhere"),
        ("latest hub:ada/a--b license=mit --yes", "a--b"),
    ],
)
def test_what_cannot_be_published_is_refused(
    runs: Path, hub: Hub, words: str, error: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert publish(words) == 2
    assert error in " ".join(capsys.readouterr().err.split())
    assert not published(hub)


def test_a_run_without_results_is_not_published(runs: Path, hub: Hub, capsys: pytest.CaptureFixture[str]) -> None:
    for file in runs.glob("*/*/evaluation.jsonl"):
        file.unlink()
    assert publish("latest hub:ada/adder license=mit --yes") == 2
    assert "evaluate it first: numerate evaluate" in " ".join(capsys.readouterr().err.split())


def test_without_a_token_the_error_says_how_to_get_one(
    runs: Path, hub: Hub, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("huggingface_hub.get_token", lambda: None)
    assert publish("latest hub:ada/adder license=mit --yes") == 2
    assert "hf auth login" in capsys.readouterr().err


def test_a_refusal_of_the_hub_is_one_sentence(runs: Path, hub: Hub, capsys: pytest.CaptureFixture[str]) -> None:
    hub.status = 403
    assert publish("latest hub:ada/adder license=mit --yes") == 1
    error = " ".join(capsys.readouterr().err.split())
    assert error.startswith("numerate: publish: ada/adder was not uploaded: ")
    assert "403" in error


def test_a_hub_that_cannot_be_reached_is_one_sentence(
    runs: Path, hub: Hub, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr("huggingface_hub.hf_api.HfApi.endpoint", "http://127.0.0.1:9", raising=False)
    assert publish("latest hub:ada/adder license=mit --yes") == 1
    assert "ada/adder was not uploaded: " in " ".join(capsys.readouterr().err.split())
