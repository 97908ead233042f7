"""What becomes of a server that fails the last requests of a phase."""

import pytest

from servebench.contracts.exchange import StopReason
from servebench.engine.launchers.attach import AttachLauncher
from servebench.engine.launchers.process import ProcessLauncher
from servebench.engine.pool import EngineLease
from servebench.engine.supervisor import endpoint
from servebench.run import live
from support.orchestration import Recorder
from support.records import failed_record, phase_report
from support.settings import run_settings


class Alive:
    def died(self):
        return None


@pytest.mark.parametrize(
    ("outcome", "local", "said", "stopped"),
    [
        ("timeout", True, "it sends nothing", "not_answering"),
        ("timeout", True, None, None),
        ("timeout", False, "it sends nothing", "not_answering"),
        ("refused", False, "it refuses", "not_answering"),
        # its guard reports a death
        ("refused", True, "it refuses", None),
        ("http_error", True, "HTTP 500", "not_answering"),
    ],
)
def test_a_server_that_fails_the_last_requests_is_asked_once_more(tmp_path, monkeypatch, outcome, local, said, stopped):
    monkeypatch.setattr(live, "awaited_death", lambda *args, **kwargs: None)
    monkeypatch.setattr(live.LiveLoad, "_failing", lambda self: said)
    launcher = ProcessLauncher() if local else AttachLauncher()
    lease = EngineLease(engine=None, launcher=launcher, running=Alive(), context=None, uses=0, owner_log=tmp_path)
    load = live.LiveLoad(lease=lease, settings=run_settings(), folder=tmp_path, events=Recorder())
    failed = failed_record("r1", outcome, sent_ns=30, ended_ns=40)
    found = load.judge(phase_report(), [failed])
    assert found.stopped == stopped
    assert found.error == (said if stopped else None)


@pytest.mark.parametrize("stopped", [None, StopReason.NOT_ANSWERING])
@pytest.mark.parametrize(("again", "ends"), [(None, "busy"), ("HTTP 503", "not_answering")])
def test_a_busy_server_is_waited_for(tmp_path, monkeypatch, stopped, again, ends):
    asked = []

    def failing(*args, patience_s, **more):
        asked.append(patience_s)
        said = again if patience_s else "HTTP 503"
        return said and endpoint.BusyError(said)

    monkeypatch.setattr(endpoint, "failing", failing)
    lease = EngineLease(
        engine=None, launcher=AttachLauncher(), running=Alive(), context=None, uses=0, owner_log=tmp_path
    )
    load = live.LiveLoad(lease=lease, settings=run_settings(), folder=tmp_path, events=Recorder())
    if stopped:
        assert load.ask() == "HTTP 503"
    failed = failed_record("r1", "http_error", http_status=503, sent_ns=30, ended_ns=40)
    assert load.judge(phase_report(stopped=stopped), [failed]).stopped == ends
    assert asked == [0.0, live.BUSY_S]
