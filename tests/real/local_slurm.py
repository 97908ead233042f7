"""A Slurm of two nodes on this machine, from Debian's packages: munged, slurmctld and a slurmd a node, all in the foreground.

    python tests/real/local_slurm.py FOLDER     starts it and waits; SLURM_CONF=FOLDER/slurm.conf names it to sbatch

Needs root, `apt-get install slurm-wlm munge`, and a slurmd built for several daemons on one host, as Debian's is.
"""

import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

DAEMONS = ("munged", "slurmctld", "slurmd", "sbatch", "squeue", "scancel")
NODES = ("n1", "n2")
CONF = """\
ClusterName=servebench
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
SlurmctldPort={port}
SlurmctldPidFile={folder}/slurmctld.pid
SlurmctldLogFile={folder}/slurmctld.log
StateSaveLocation={folder}/state
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmdLogFile={folder}/slurmd-%n.log
SlurmdSpoolDir={folder}/spool-%n
SlurmdTimeout=15
KillWait=30
MinJobAge=60
ReturnToService=2
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
JobCompType=jobcomp/none
SchedulerType=sched/backfill
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
{nodes}
PartitionName=bench Nodes={names} Default=YES MaxTime=INFINITE State=UP
"""


def missing() -> str | None:
    """What keeps a Slurm from being started here."""
    absent = [name for name in DAEMONS if shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin") is None]
    if absent:
        return f"no {', '.join(absent)}: apt-get install slurm-wlm munge"
    return None if os.getuid() == 0 else "slurmd needs root"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class LocalSlurm:
    """Started by `start`, stopped by `stop`; `kill_node` takes a node away."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.conf = folder / "slurm.conf"
        self.daemons: dict[str, subprocess.Popen[bytes]] = {}
        self.env = {**os.environ, "SLURM_CONF": str(self.conf)}

    def start(self) -> None:
        folder = self.folder
        for name in ("state", *(f"spool-{node}" for node in NODES)):
            (folder / name).mkdir(parents=True, exist_ok=True)
        key = folder / "munge.key"
        key.write_bytes(secrets.token_bytes(128))
        key.chmod(0o400)
        host = socket.gethostname()
        nodes = "\n".join(
            f"NodeName={node} NodeHostname={host} NodeAddr=127.0.0.1 Port={free_port()} CPUs={os.cpu_count()} State=UNKNOWN"
            for node in NODES
        )
        self.conf.write_text(
            CONF.format(host=host, folder=folder, port=free_port(), nodes=nodes, names=",".join(NODES))
        )
        names = ("key-file", "socket", "pid-file", "log-file", "seed-file")
        files = ("munge.key", "munge.socket", "munge.pid", "munge.log", "munge.seed")
        own = [f"--{name}={folder / file}" for name, file in zip(names, files, strict=True)]
        self._daemon("munged", "munged", "--foreground", "--force", *own)
        self._until((folder / "munge.socket").exists, "munged")
        self._daemon("slurmctld", "slurmctld", "-D", "-f", str(self.conf), "-c")
        for node in NODES:
            self._daemon(node, "slurmd", "-D", "-N", node, "-f", str(self.conf))
        self._until(lambda: self.states() == dict.fromkeys(NODES, "idle"), "the nodes")

    def _daemon(self, name: str, *command: str) -> None:
        path = shutil.which(command[0], path=f"{os.environ['PATH']}:/usr/sbin")
        with (self.folder / f"{name}.out").open("wb") as out:
            self.daemons[name] = subprocess.Popen([path, *command[1:]], stdout=out, stderr=out, env=self.env)

    def _until(self, ready, what: str) -> None:
        deadline = time.monotonic() + 60
        while not ready():
            ended = [name for name, daemon in self.daemons.items() if daemon.poll() is not None]
            if ended or time.monotonic() > deadline:
                log = self.folder / f"{(ended or ['slurmctld'])[0]}.out"
                self.stop()
                raise RuntimeError(f"{what} did not start ({ended}): {log.read_text(errors='replace')[-500:]}")
            time.sleep(0.2)

    def states(self) -> dict[str, str]:
        done = subprocess.run(
            ["sinfo", "--noheader", "--Node", "--format=%N %t"],
            env=self.env,
            capture_output=True,
            text=True,
            check=False,
        )
        return dict(line.split() for line in done.stdout.splitlines() if len(line.split()) == 2)

    def kill_node(self, node: str) -> None:
        """Take the node's daemon and all that it started away, as when a machine loses power."""
        mark = f"SLURMD_NODENAME={node}".encode()
        self.daemons[node].kill()
        self.daemons[node].wait()
        for environ in Path("/proc").glob("[0-9]*/environ"):
            with suppress(OSError):
                if mark in environ.read_bytes().split(b"\0"):
                    os.kill(int(environ.parent.name), signal.SIGKILL)
        for cmdline in Path("/proc").glob("[0-9]*/cmdline"):
            with suppress(OSError):
                words = cmdline.read_bytes()
                if words.startswith(b"slurmstepd") and str(self.folder / f"spool-{node}").encode() in words:
                    os.kill(int(cmdline.parent.name), signal.SIGKILL)

    def stop(self) -> None:
        for name in reversed(list(self.daemons)):
            self.daemons[name].terminate()
        for daemon in self.daemons.values():
            try:
                daemon.wait(20)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()


if __name__ == "__main__":
    slurm = LocalSlurm(Path(sys.argv[1]).absolute())
    slurm.start()
    sys.stdout.write(f"export SLURM_CONF={slurm.conf}\n")
    sys.stdout.flush()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    try:
        signal.pause()
    finally:
        slurm.stop()
