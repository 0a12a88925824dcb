"""Promises of fetching: what came is whole and the right file, or it is not there, and nothing is fetched twice."""

import gzip
import hashlib
import io
import json
import os
import shutil
import tarfile
import threading
import warnings
import zipfile
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from numerate.cli import main
from numerate.errors import OperationalError, UserError
from numerate.tasks import GSM8K
from numerate.text.data import archives, datasets, fetching
from numerate.text.data.datasets import DATASETS, Dataset, RemoteFile

CONTENT = bytes(range(256)) * 2000
SHA256 = hashlib.sha256(CONTENT).hexdigest()


class Server(ThreadingHTTPServer):
    """Files at addresses, with range requests, and any failures on the way."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Answers)
        self.files: dict[str, bytes] = {}
        self.requests: list[str] = []
        self.ends_after: list[int] = []  # of each of the next answers, how many bytes come before the line breaks
        self.ranges = True
        self.status: list[int] = []
        self.tag = '"one"'

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class Answers(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        server, wanted = self.server, self.headers.get("Range")
        server.requests.append(wanted or "all")
        if server.status:
            return self.send_error(server.status.pop(0))
        content = server.files.get(self.path)
        if content is None:
            return self.send_error(404)
        begin = 0
        same = self.headers.get("If-Range") in (None, server.tag)
        if wanted and server.ranges and same:
            begin = int(wanted.removeprefix("bytes=").removesuffix("-"))
            if begin >= len(content):
                return self.send_error(416)
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {begin}-{len(content) - 1}/{len(content)}")
        else:
            self.send_response(200)
        self.send_header("Content-Length", str(len(content) - begin))
        self.send_header("ETag", server.tag)
        self.end_headers()
        end = begin + server.ends_after.pop(0) if server.ends_after else len(content)
        self.wfile.write(content[begin:end])
        self.close_connection = True
        return None

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as found:
        thread = threading.Thread(target=found.serve_forever, args=(0.01,))
        thread.start()
        yield found
        found.shutdown()
        thread.join()


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's data folder, and no proxy on the way."""
    monkeypatch.setenv("NUMERATE_DATA", str(tmp_path / "data"))
    for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path / "data"


def of(*files: RemoteFile) -> Dataset:
    return Dataset("thing", "thing", "a thing", "MIT", "https://example.org", files)


def pinned(server: Server, content: bytes = CONTENT, **changed: Any) -> Dataset:
    server.files["/f"] = content
    settings = {"size": len(CONTENT), "sha256": SHA256} | changed
    return of(RemoteFile("f.bin", f"{server.address}/f", **settings))


def fetched(found: Dataset, **more: Any) -> list[str]:
    return fetching.fetch(found, retry_delay=0.0, **more)


def left(place: Path) -> set[str]:
    """What is in the folder, beside the record and the lock."""
    there = {path.relative_to(place / "thing").as_posix() for path in (place / "thing").rglob("*") if path.is_file()}
    return there - {".lock", "fetched.json"}


def test_a_file_comes_whole_and_is_compared_with_what_is_pinned(server: Server, place: Path) -> None:
    on_progress: list[tuple[str, int, int | None]] = []
    lines = fetched(pinned(server), on_progress=lambda *update: on_progress.append(update))
    assert (place / "thing/f.bin").read_bytes() == CONTENT
    assert lines == [f"{place}/thing/f.bin: 512.0 kB, sha256 {SHA256[:16]} (matches the pinned hash)"]
    assert left(place) == {"f.bin"}
    assert on_progress[-1] == ("f.bin", len(CONTENT), len(CONTENT))


def test_what_is_there_is_not_fetched_again(server: Server, place: Path) -> None:
    fetched(pinned(server))
    assert fetched(pinned(server))[0].startswith(f"{place}/thing/f.bin: is there, from {server.address}")
    (place / "thing/fetched.json").unlink()
    assert "is there" in fetched(pinned(server))[0], "its sha256 is the pinned one, whoever has put it there"
    assert server.requests == ["all"]


@pytest.mark.parametrize(
    ("faults", "requests"),
    [
        ({"ends_after": [1000, 2000, 0, 5]}, ["all", "bytes=1000-", "bytes=3000-", "bytes=3000-", "bytes=3005-"]),
        ({"ends_after": [100_000], "ranges": False}, ["all", "bytes=100000-"]),
        ({"status": [503, 500]}, ["all"] * 3),
    ],
    ids=["connections end early", "no ranges", "busy"],
)
def test_what_fails_on_the_way_is_tried_again_from_where_it_ended(
    server: Server, place: Path, faults: dict[str, Any], requests: list[str]
) -> None:
    found = pinned(server)
    vars(server).update(faults)
    fetched(found)
    assert (place / "thing/f.bin").read_bytes() == CONTENT
    assert server.requests == requests


def test_a_missing_file_is_not_tried_again(server: Server, place: Path) -> None:
    with pytest.raises(OperationalError, match=r"/none: the server answers 404"):
        fetched(of(RemoteFile("other", f"{server.address}/none")))
    assert server.requests == ["all"]


def test_what_was_cut_in_half_is_never_whole_and_the_same_command_goes_on(server: Server, place: Path) -> None:
    found = pinned(server)
    server.ends_after = [100_000, 0, 0, 0, 0]
    with pytest.raises(OperationalError, match=r"/f: the connection ended after 100\.0 kB of 512\.0 kB; 100\.0 kB are"):
        fetched(found)
    assert not (place / "thing/f.bin").exists()
    assert not fetching.is_fetched(found)
    server.requests, server.ends_after = [], []
    fetched(found)
    assert server.requests == ["bytes=100000-"]
    assert (place / "thing/f.bin").read_bytes() == CONTENT
    assert left(place) == {"f.bin"}


@pytest.mark.parametrize("tags", [('"one"', '"two"'), ("", "")], ids=["another", "none"])
def test_the_rest_of_another_version_or_of_one_that_nothing_tells_is_not_taken(
    server: Server, place: Path, tags: tuple[str, str]
) -> None:
    """Without ETag and Last-Modified nothing tells it, nor of the copy of a mirror that was killed."""
    found = pinned(server, size=None, sha256=None)
    server.tag, server.ends_after = tags[0], [100_000, 0, 0, 0, 0]
    with pytest.raises(OperationalError):
        fetched(found)
    server.tag, server.files["/f"], server.ends_after = tags[1], b"new" * 70_000, []
    fetched(found)
    assert (place / "thing/f.bin").read_bytes() == b"new" * 70_000


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (CONTENT[:-1] + b"?", "what came has sha256 [0-9a-f]{64}, the pinned one is"),
        (b"no!", "the server has 3 bytes instead of 512,000"),
    ],
)
def test_another_checksum_or_size_is_refused_and_nothing_is_kept(
    wrong: bytes, message: str, server: Server, place: Path
) -> None:
    with pytest.raises(OperationalError, match=message):
        fetched(pinned(server, wrong))
    assert left(place) == set()


def test_without_a_pin_the_first_fetch_is_noted_and_held_against_later_ones(server: Server, place: Path) -> None:
    found = pinned(server, size=None, sha256=None)
    assert fetched(found)[0].endswith(f"sha256 {SHA256[:16]} (recorded; no hash is pinned)")
    noted = json.loads((place / "thing/fetched.json").read_text())["f.bin"]
    assert noted == {"url": f"{server.address}/f", "bytes": len(CONTENT), "sha256": SHA256}
    (place / "thing/f.bin").unlink()
    server.files["/f"] = b"other" * 10
    with pytest.raises(OperationalError, match=r"what came before \(see fetched\.json, which may be removed\) is"):
        fetched(found)
    assert left(place) == set()


def test_no_network_is_reported_with_the_other_way(place: Path) -> None:
    with pytest.raises(OperationalError, match=r"127\.0\.0\.1:9/f: cannot be reached .*Use --from DIR to copy"):
        fetched(of(RemoteFile("f.bin", "http://127.0.0.1:9/f")))
    assert left(place) == set()


def edited(file: Path) -> None:
    """One character more by one, and nothing else of it: neither its size nor its time."""
    time, content = file.stat().st_mtime_ns, file.read_bytes()
    file.write_bytes(content[:-2] + bytes([content[-2] + 1]) + content[-1:])
    os.utime(file, ns=(time, time))


@pytest.mark.parametrize("changed", [{}, {"size": None, "sha256": None}])
def test_a_file_that_was_edited_since_is_not_there(server: Server, place: Path, changed: dict[str, Any]) -> None:
    """Nor is a file of somebody else."""
    found = pinned(server, **changed)
    fetched(found)
    edited(place / "thing/f.bin")
    if changed:
        (place / "thing/fetched.json").unlink()
    with pytest.raises(UserError, match=r"f\.bin: exists and is not the downloaded file; move it away"):
        fetched(found)
    assert (place / "thing/f.bin").read_bytes()[:-2] == CONTENT[:-2]
    (place / "thing/f.bin").rename(place / "mine.bin")
    fetched(found)
    assert (place / "thing/f.bin").read_bytes() == CONTENT


def test_questions_that_were_edited_since_they_were_fetched_are_refused(server: Server, place: Path) -> None:
    names = ("train.jsonl", "test.jsonl")
    for name in names:
        lines = [json.dumps({"question": f"{name} {n}?", "answer": f"#### {n}"}) for n in range(20)]
        server.files[f"/{name}"] = "".join(f"{line}\n" for line in lines).encode()
    gsm8k = Dataset("gsm8k", "gsm8k", "", "", "", tuple(RemoteFile(name, f"{server.address}/{name}") for name in names))
    fetched(gsm8k)
    assert len(GSM8K().splits.test) == 20
    file = place / "gsm8k/test.jsonl"
    file.write_text(file.read_text().replace("#### 7", "#### 8"))
    with pytest.raises(UserError, match=r"test\.jsonl: differs from the downloaded file .* move it away"):
        _ = GSM8K().splits
    shutil.copytree(place / "gsm8k", place / "mine", ignore=shutil.ignore_patterns("fetched.json"))
    assert len(GSM8K(data_dir=str(place / "mine")).splits.test) == 20


def test_two_processes_do_not_fetch_into_one_folder(server: Server, place: Path) -> None:
    import fcntl

    (place / "thing").mkdir(parents=True)
    with open(place / "thing/.lock", "ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(UserError, match="another process is downloading it"):
            fetched(pinned(server))


# Archives ------------------------------------------------------------------------------------------------------------


def zipped(*members: tuple[str, bytes]) -> bytes:
    held = io.BytesIO()
    with zipfile.ZipFile(held, "w", zipfile.ZIP_DEFLATED) as archive, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a name that comes twice
        for name, content in members:
            archive.writestr(name, content)
    return held.getvalue()


def targz(*members: tuple[tarfile.TarInfo | str, bytes]) -> bytes:
    held = io.BytesIO()
    with tarfile.open(fileobj=held, mode="w:gz") as archive:
        for member, content in members:
            info = tarfile.TarInfo(member) if isinstance(member, str) else member
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return held.getvalue()


def linked(kind: bytes, name: str = "x/a.txt") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, "/etc/passwd"
    return info


MEMBERS = {"train-easy/a.txt": b"1 + 1\n2\n", "train-easy/b.txt": b"x" * 500_000, "interpolate/a.txt": b"2 + 2\n4\n"}
LEADING_ELSEWHERE = dict.fromkeys(["../../out.txt", "train-easy/../../out.txt", ".hidden"], b"evil")
TAR = targz(
    *((f"v1.0/{name}", content) for name, content in (MEMBERS | LEADING_ELSEWHERE).items()),
    (linked(tarfile.SYMTYPE, "v1.0/train-easy/link.txt"), b""),
)


def archived(server: Server) -> Dataset:
    server.files["/t"] = TAR
    sha256 = hashlib.sha256(TAR).hexdigest()
    return of(RemoteFile("t.tar.gz", f"{server.address}/t", len(TAR), sha256, "tar", ("train-easy", "interpolate")))


def test_an_archive_is_unpacked_without_its_first_folder_and_goes(server: Server, place: Path) -> None:
    found = archived(server)
    fetched(found)
    assert left(place) == set(MEMBERS), "and nothing that leads elsewhere"
    assert all((place / "thing" / name).read_bytes() == content for name, content in MEMBERS.items())
    assert not (place / "out.txt").exists()
    assert fetching.is_fetched(found)
    fetched(found)
    assert server.requests == ["all"]
    edited(place / "thing/interpolate/a.txt")
    with pytest.raises(UserError, match=r"interpolate/a\.txt: exists and is not the downloaded file"):
        fetched(found)


def torn_size(content: bytes) -> bytes:
    """A zip that says of its members that they are small: the two sizes unpacked are 10."""
    torn = bytearray(content)
    for header, offset in ((b"PK\x03\x04", 22), (b"PK\x01\x02", 24)):
        start = torn.index(header) + offset
        torn[start : start + 4] = (10).to_bytes(4, "little")
    return bytes(torn)


BOMB = b"0" * 3_000_000


@pytest.mark.parametrize(
    ("unpack", "content"),
    [
        ("zip", zipped(("x/b.txt", b"0"), ("x/a.txt", BOMB))),
        ("tar", targz(("x/a.txt", BOMB))),
        ("gz", gzip.compress(BOMB)),
    ],
    ids=["zip", "tar", "gz"],
)
def test_an_archive_larger_than_100_mb_and_20_times_its_size_is_refused_while_it_is_read(
    server: Server, place: Path, unpack: Any, content: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert (archives.MIN_SIZE_LIMIT, archives.MAX_UNPACK_RATIO) == (100_000_000, 20)
    monkeypatch.setattr(archives, "MIN_SIZE_LIMIT", 2_000_000)
    server.files["/a"] = content
    found = of(RemoteFile("a", f"{server.address}/a", archive_format=unpack, members=("a.txt",)))
    with pytest.raises(OperationalError, match=r"has more than 2\.0 MB unpacked, more than expected for text; "):
        fetched(found)
    assert left(place) == {"a"}, "nothing of it but itself"
    monkeypatch.setattr(archives, "MAX_UNPACK_RATIO", 4_000_000 / len(content))
    (line,) = fetched(found)
    assert line.startswith(f"{place}/thing/a.txt: 3.0 MB, out of a, whose sha256 ")
    assert left(place) == {"a.txt"}
    assert (place / "thing/a.txt").read_bytes() == BOMB
    assert server.requests == ["all"]


def sparse() -> tarfile.TarInfo:
    info = tarfile.TarInfo("x/a.txt")
    info.pax_headers = {"GNU.sparse.map": "0,0", "GNU.sparse.size": str(1 << 40), "GNU.sparse.numblocks": "0"}
    return info


def zip_link() -> bytes:
    held = io.BytesIO()
    with zipfile.ZipFile(held, "w") as archive:
        info = zipfile.ZipInfo("x/a.txt")
        info.external_attr = 0o120777 << 16
        archive.writestr(info, "/etc/passwd")
    return held.getvalue()


@pytest.mark.parametrize(
    ("unpack", "content", "message"),
    [
        ("zip", torn_size(zipped(("x/a.txt", b"0" * 5000))), "cannot be unpacked"),
        ("tar", targz(("x/a.txt", b"0" * 5000))[:60], r"cannot be unpacked .* was removed; run the same command to"),
        ("zip", zipped(("x/b.txt", b"1")), r"has no a\.txt"),
        ("zip", zipped(("x/a.txt", b"1"), ("y/a.txt", b"2")), r"it has a\.txt twice"),
        ("zip", zip_link(), r"has no a\.txt"),
        ("tar", targz((sparse(), b"")), r"has no a\.txt"),
        ("tar", targz((linked(tarfile.SYMTYPE), b"")), r"has no a\.txt"),
        ("tar", targz((linked(tarfile.LNKTYPE), b"")), r"has no a\.txt"),
    ],
    ids=["size", "torn", "another", "twice", "link in a zip", "sparse", "symbolic link", "hard link"],
)
def test_what_an_archive_says_of_itself_is_not_believed_and_links_do_not_come(
    server: Server, place: Path, unpack: Any, content: bytes, message: str
) -> None:
    server.files["/a"] = content
    with pytest.raises(OperationalError, match=message):
        fetched(of(RemoteFile("a", f"{server.address}/a", archive_format=unpack, members=("a.txt",))))
    assert not list((place / "thing").glob("*.part"))
    assert ("a" in left(place)) == message.startswith("has no")


def test_nothing_comes_from_an_archive_but_what_is_expected(server: Server, place: Path) -> None:
    others = ("fetched.json", "LICENSE", "a.zip", "../b.txt", "a.txt.part", ".lock")
    members = [(f"x/{name}", b"theirs") for name in others] + [("x/a.txt", b"1"), ("fetched.json", b"{}")]
    server.files |= {"/z": zipped(*members), "/t": targz(*members)}
    for at, unpack in (("z", "zip"), ("t", "tar")):
        fetched(of(RemoteFile("a.zip", f"{server.address}/{at}", archive_format=unpack, members=("a.txt",))))  # type: ignore[arg-type]
        assert left(place) == {"a.txt"}
        assert json.loads((place / "thing/fetched.json").read_text())["a.zip"]["files"] == {"a.txt": 1}
        (place / "thing/a.txt").unlink()
    server.files["/f"] = zipped(("x/held/fetched.json", b"theirs"), ("x/held/b.txt", b"2"))
    fetched(of(RemoteFile("f.zip", f"{server.address}/f", archive_format="zip", members=("held",))))
    assert left(place) == {"held/b.txt"}


# From a folder -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("folder", ["thing", "."], ids=["of all datasets", "of the dataset itself"])
def test_a_mirror_gives_the_same_files_checked_alike(server: Server, place: Path, tmp_path: Path, folder: str) -> None:
    mirror = tmp_path / "mirror"
    (mirror / folder).mkdir(parents=True)
    missing = rf"^--from: {mirror}/thing/f\.bin does not exist; DIR must be thing/ with .*, or the folder that contains"
    with pytest.raises(UserError, match=missing):
        fetched(pinned(server), mirror=mirror)
    (mirror / folder / "f.bin").write_bytes(CONTENT[:-1] + b"?")
    with pytest.raises(OperationalError, match=r"f\.bin: what came .* the pinned one is"):
        fetched(pinned(server), mirror=mirror)
    assert left(place) == set()
    (mirror / folder / "f.bin").write_bytes(CONTENT)
    assert "matches the pinned hash" in fetched(pinned(server), mirror=mirror)[0]
    assert (place / "thing/f.bin").read_bytes() == CONTENT
    assert server.requests == []


# The command ---------------------------------------------------------------------------------------------------------


def test_the_command_lists_and_fetches_and_shows_the_licence(
    server: Server, place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(datasets, "DATASETS", {"thing": pinned(server)})
    assert main(["data", "fetch"]) == 0
    assert "thing  512.0 kB         MIT" in capsys.readouterr().out
    assert main(["data", "fetch", "thing"]) == 0
    assert "license: MIT; https://example.org" in capsys.readouterr().out
    assert main(["data", "fetch"]) == 0
    assert "thing  512.0 kB  yes    MIT" in capsys.readouterr().out
    assert main(["data", "fetch", "thing", "--from", str(tmp_path / "none")]) == 2
    assert "--from: " in capsys.readouterr().err
    assert main(["data", "fetch", "thin"]) == 2
    assert "Did you mean 'thing'?" in capsys.readouterr().err
    assert main(["data", "write", "thing", "--from", "x"]) == 2
    assert "unknown option '--from'" in capsys.readouterr().err


def test_every_dataset_says_what_is_to_be_known_of_it() -> None:
    for name, found in DATASETS.items():
        assert found.name == name
        for remote in found.files:
            assert remote.url.startswith("https://")
            assert (remote.size is None) == (remote.sha256 is None)
            assert remote.sha256 is None or len(remote.sha256) == 64
    assert datasets.find_dataset("mathematics-arithmetic").name == "mathematics"
    assert datasets.find_dataset("t5-tokenizer").folder == "tokenizers/t5-small"


def test_the_files_beside_this_checkout_are_the_pinned_ones(shared: Path, place: Path) -> None:
    for name in ("gsm8k", "svamp", "gsm_hard", "gsm_plus", "t5_tokenizer", "tinystories_excerpts", "mistral_tokenizer"):
        assert all("matches the pinned hash" in line for line in fetched(DATASETS[name], mirror=shared / "data"))
