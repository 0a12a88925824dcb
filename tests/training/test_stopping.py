"""Promises of stopping: a signal is a question to the loop, and the handlers before come back."""

import os
import signal
import threading

import pytest

from numerate.training import stopping
from numerate.training.stopping import Stop


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_a_signal_asks_to_stop_and_is_named(
    number: signal.Signals, status: int, capfd: pytest.CaptureFixture[str]
) -> None:
    with Stop() as stop:
        assert not stop.requested
        assert stop.status == 0
        os.kill(os.getpid(), number)
        assert stop.requested
        assert stop.signal == number
        assert stop.status == status
    assert f"{number.name}: stopping after the current batch" in capfd.readouterr().err


def test_a_second_interrupt_stops_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stopping, "_DEBOUNCE_SECONDS", -1.0)
    with Stop():
        os.kill(os.getpid(), signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)


def test_the_same_interrupt_sent_twice_by_terminal_and_launcher_counts_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stopping, "_DEBOUNCE_SECONDS", 60.0)
    with Stop() as stop:
        for number in (signal.SIGINT, signal.SIGINT, signal.SIGTERM, signal.SIGTERM):
            os.kill(os.getpid(), number)
        assert stop.status == 130


def test_handlers_from_before_come_back() -> None:
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = [signal.getsignal(number) for number in numbers]
    with Stop():
        assert all(signal.getsignal(number) not in before for number in numbers)
    assert [signal.getsignal(number) for number in numbers] == before


def test_under_nohup_a_hangup_stays_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with Stop() as stop:
            os.kill(os.getpid(), signal.SIGHUP)
            assert not stop.requested
    finally:
        signal.signal(signal.SIGHUP, before)


def test_in_another_thread_it_can_be_requested_without_signals() -> None:
    requested = []

    def work() -> None:
        with Stop() as stop:
            stop.request()
            requested.append(stop.requested)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert requested == [True]
