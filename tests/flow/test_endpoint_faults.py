"""An endpoint that fails at any moment: one true line, a code that is not 0, and `resume` once it is well again."""

import ssl

import pandas as pd
import psutil
import pytest
import trustme

from servebench.engine.launchers import attach
from servebench.util.errors import FailureKind
from support.commands import COMMAND_LIMIT_S, EMULATED, servebench_started
from support.faulty import FAULTS, OF_THE_SERVER, FaultyEndpoint
from support.results import document
from support.waiting import wait_until, words_of

LEVEL = 8
ENGINE_CODE = FailureKind.ENDPOINT.exit_code
SMALL = (
    "load=quick", "load.until=null", f"load.requests={LEVEL}", "load.warmup_requests=0", "load.hold_level=false",
    "load.self_check=never", "workload.output_tokens=4", "tracking=none", "quality=none",
    "study.name=s",
)  # fmt: skip
MOMENTS = {
    "in the first level": 4,
    "between levels": 1 + LEVEL,
    "in the last level": 5 + LEVEL,
    "at its end": 2 * LEVEL,
}
"""After how many answers the fault begins; the first is to the question whether the endpoint answers at all."""
ALL_FAULTS = (*FAULTS, *OF_THE_SERVER)
OFTEN = ("dies", "hangs", "401", "429", "an HTML page")
ENDLESS = (
    *("hangs", "is not HTTP", "a stream of comments without an end", "a stream of tokens without an end"),
    *("speaks TLS", "speaks no TLS"),
)
"""Only a timeout ends what the client waits for then."""


@pytest.fixture
def faulty(tmp_path):
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    made = []

    def start(fault, good=0, **options):
        tls = (lambda one: context.wrap_socket(one, server_side=True)) if "TLS" in fault else None
        made.append(FaultyEndpoint(fault, good, tls=tls, **options))
        return made[-1]

    yield start
    for one in made:
        one.close()


@pytest.fixture
def patience(fault, monkeypatch):
    """Without it each fault in which nothing happens takes minutes; with others no answer is late, however busy the machine."""
    if fault not in ENDLESS:
        return ("engine.ready_timeout_s=1",)
    monkeypatch.setattr(attach, "GENERATE_S", 2.0)
    monkeypatch.setattr(attach, "CONNECT_TIMEOUT_S", 2.0)
    return ("load.timeout_s=2",)


def words(*endpoints, levels="[1,2]", more=()):
    urls = ",".join(one if isinstance(one, str) else one.base_url for one in endpoints)
    trust = ["launch.ca_file=ca.pem"] if "https" in urls else []
    return (
        *(["-m"] if len(endpoints) > 1 else []),
        *("engine=openai", "launch=attach", f"launch.base_url={urls}", "model.name=tiny"),
        *(f"load.concurrency={levels}", *SMALL, *trust, *more),
    )  # fmt: skip


def problems(done):
    assert "Traceback" not in done.stderr
    return [line for line in done.stderr.splitlines() if line.startswith("servebench: ")]


def states(tmp_path):
    found = [document(path) for path in sorted(tmp_path.glob("outputs/s/*/run.json"))]
    return [(one["status"], one["failure"]) for one in found]


def points(tmp_path):
    return pd.concat([pd.read_csv(path) for path in sorted(tmp_path.glob("outputs/s/*/points.csv"))])


@pytest.mark.slow
@pytest.mark.parametrize("fault", ALL_FAULTS)
def test_a_fault_before_the_study_leaves_no_study(faulty, run_main, tmp_path, patience, fault):
    done = run_main(*words(faulty(fault), more=patience), code=ENGINE_CODE)
    assert len(problems(done)) == 1
    statuses = {word.strip(":;") for word in problems(done)[0].split()} & {"401", "403", "404", "429", "500", "503"}
    assert statuses == ({fault} if fault.isdigit() else set())
    assert not list(tmp_path.glob("outputs/*/study.json"))


@pytest.mark.slow
def test_an_unknown_name_is_said_before_the_study(run_main, tmp_path):
    done = run_main(*words("http://no-such-host.invalid:8000/v1"), code=ENGINE_CODE)
    assert len(problems(done)) == 1
    assert "no-such-host.invalid" in problems(done)[0]
    assert not list(tmp_path.glob("outputs/*"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "moment"),
    [(fault, "in the last level") for fault in ALL_FAULTS]
    + [(fault, moment) for fault in OFTEN for moment in MOMENTS if moment != "in the last level"],
)
def test_a_fault_in_the_study_fails_the_run_until_it_is_mended(faulty, run_main, tmp_path, patience, fault, moment):
    """The level is void, earlier ones stand; `resume` is refused as long as the fault lasts, and completes the study after."""
    endpoint = faulty(fault, MOMENTS[moment])
    done = run_main(*words(endpoint, more=patience), code=ENGINE_CODE)
    assert len(problems(done)) == 1
    assert states(tmp_path) == [("failed", "endpoint")]
    assert points(tmp_path).verdict.iloc[-1] == "void"
    assert done.stderr.splitlines()[-1] == "servebench resume s"
    assert run_main("resume").returncode == ENGINE_CODE
    endpoint.repair()
    run_main("resume", code=0)
    assert states(tmp_path) == [("finished", None)]
    assert list(points(tmp_path).requests_ok) == [LEVEL, LEVEL]


@pytest.mark.slow
def test_some_failed_requests_are_a_warning(faulty, run_main, tmp_path):
    """One request in five fails: the endpoint is asked where the last one was, and the run goes on."""
    endpoint = faulty("500", every=5)
    run_main(*words(endpoint), code=0)
    assert states(tmp_path) == [("finished", None)]
    assert points(tmp_path).doubts.str.contains("errors").all()
    assert not points(tmp_path).doubts.str.contains("not_answering").any()


@pytest.mark.slow
def test_each_endpoint_of_a_sweep_is_asked_once(faulty, run_main, tmp_path):
    """Those that fail are all named, and nothing is made."""
    well, *ill = faulty("dies", 1000), faulty("401"), faulty("an HTML page")
    done = run_main(*words(well, *ill, more=["workload.output_tokens=4,5"]), code=ENGINE_CODE)
    assert [one.base_url in line for one, line in zip(ill, problems(done), strict=True)] == [True, True]
    assert not list(tmp_path.glob("outputs/*"))
    assert well.generations == 1


def killed_engine(folder, spool, *more):
    """Run a study on emulated engines, kill the engine within this phase, and return the exit code and what was said."""
    with servebench_started(folder, *more, "engine=vllm", *EMULATED, *SMALL, "load.requests=400") as process:

        def engine():
            below = psutil.Process(process.pid).children(recursive=True)
            # the guard of the engine has the engine's words among its own
            return next((one for one in reversed(below) if "servebench.emulator" in words_of(one)), None)

        running = wait_until(lambda: list(folder.glob(f"outputs/s/*/raw/{spool}*.spool")) and engine(), process=process)
        running.kill()
        _, said = process.communicate(timeout=COMMAND_LIMIT_S)
    return process.returncode, said


PARTS = {
    "one start": ("c2-r0", []),
    "the second start": ("c2-r1", ["study.starts=2"]),
    "until decided": ("c2-r1", ["-m", "study.until=decided", "study.budget=2m", "engine.max_num_seqs=8,16"]),
}


@pytest.mark.slow
@pytest.mark.parametrize("part", PARTS)
def test_a_killed_engine_fails_its_run(tmp_path, servebench, part):
    """An engine that servebench started is named as dead, and `resume --failed` starts it again."""
    spool, more = PARTS[part]
    code, said = killed_engine(tmp_path, spool, "load.concurrency=[2]", *more)
    assert code == FailureKind.DIED.exit_code, said
    assert ("failed", "died") in states(tmp_path)
    assert said.splitlines()[-1] == "servebench resume s --failed"
    assert "Traceback" not in said
    servebench("resume", "--failed", code=0)
    assert set(states(tmp_path)) == {("finished", None)}


@pytest.mark.slow
def test_a_killed_engine_stops_a_tune_of_which_it_is_stock(tmp_path, servebench):
    """Nothing can be compared without it: the tune has failed, and `resume` measures it again."""
    words = ["tune", "load.concurrency=[2]", "tune.trials=6", "tune.count=2"]
    code, said = killed_engine(tmp_path, "c2-r0", *words)
    assert code == FailureKind.DIED.exit_code, said
    assert "Traceback" not in said
    assert len([line for line in said.splitlines() if line.startswith("servebench: ")]) == 1
    assert said.splitlines()[-1] == "servebench resume s"
    again = servebench("resume")
    assert "died" not in again.stderr
    assert ("failed", "died") not in states(tmp_path)
