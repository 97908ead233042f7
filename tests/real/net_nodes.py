"""A Ray cluster whose nodes have network namespaces, addresses, host names and disks of their own, on one machine.

    python tests/real/net_nodes.py FOLDER       starts one of three nodes and waits

Needs root, iproute2, util-linux and Ray. The bridge is in a namespace too: the machine's own network is left alone.
What the nodes share is the clock, the processors, and all folders but those named `private`.
"""

import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from tempfile import mkdtemp

PORT = 6379
STORE_BYTES = 100_000_000


def missing() -> str | None:
    """What keeps such a cluster from being started here."""
    absent = [name for name in ("ip", "unshare") if shutil.which(name) is None]
    if absent:
        return f"no {', '.join(absent)}: apt-get install iproute2 util-linux"
    if find_spec("ray") is None:
        return "no Ray: pip install 'servebench-suite[ray]'"
    if os.getuid() != 0:
        return "network namespaces need root"
    probe = subprocess.run(["unshare", "--net", "true"], check=False, capture_output=True)
    return None if probe.returncode == 0 else "network namespaces are not allowed here"


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


class NetNodes:
    """`count` nodes, of which the first is the head; each of the folders `private` is another disk on each node."""

    def __init__(self, folder: Path, count: int = 3, private: tuple[Path, ...] = ()) -> None:
        self.folder = folder
        self.count = count
        self.private = private
        self.mark = f"sb{os.getpid() % 10_000}"
        # Ray's sockets want a short path
        self.sessions = Path(mkdtemp(prefix="sb"))
        self.processes: dict[int, subprocess.Popen[bytes]] = {}

    def namespace(self, node: int) -> str:
        return f"{self.mark}-n{node}"

    def address(self, node: int) -> str:
        return f"10.77.0.{node + 1}"

    @property
    def cluster(self) -> str:
        return f"{self.address(0)}:{PORT}"

    def start(self) -> None:
        try:
            self._network()
            for node in range(self.count):
                self._ray(node)
                self._until(node + 1)
        except BaseException:
            self.stop()
            raise

    def _network(self) -> None:
        hub = f"{self.mark}-hub"
        ip("netns", "add", hub)
        ip("-n", hub, "link", "add", "br0", "type", "bridge")
        ip("-n", hub, "link", "set", "br0", "up")
        for node in range(self.count):
            name, inside, outside = self.namespace(node), f"{self.mark}i{node}", f"{self.mark}o{node}"
            ip("netns", "add", name)
            ip("link", "add", inside, "netns", name, "type", "veth", "peer", "name", outside, "netns", hub)
            ip("-n", hub, "link", "set", outside, "master", "br0", "up")
            ip("-n", name, "address", "add", f"{self.address(node)}/24", "dev", inside)
            ip("-n", name, "link", "set", inside, "up")
            ip("-n", name, "link", "set", "lo", "up")

    def inside(self, node: int, *command: str) -> list[str]:
        """A command as it is given on a node: its network and its host name. Its disks are Ray's processes' own."""
        return [
            "ip",
            "netns",
            "exec",
            self.namespace(node),
            "unshare",
            "--uts",
            "sh",
            "-c",
            f'hostname node{node}; exec "$@"',
            "sh",
            *command,
        ]

    def env(self, node: int) -> dict[str, str]:
        leases = self.folder / f"leases-{node}"
        return {**os.environ, "RAY_ADDRESS": self.cluster, "SERVEBENCH_LEASES": str(leases), "RAY_DEDUP_LOGS": "0"}

    def _ray(self, node: int) -> None:
        ray = Path(sys.executable).parent / "ray"
        words = [str(ray), "start", "--block", "--num-cpus=2", "--disable-usage-stats"]
        words += [f"--node-ip-address={self.address(node)}", f"--object-store-memory={STORE_BYTES}"]
        if node == 0:
            words += ["--head", f"--port={PORT}", "--include-dashboard=false"]
        else:
            words += [f"--address={self.cluster}"]
        disks = [self.sessions, *(self.private if node else ())]
        for disk in disks:
            disk.mkdir(parents=True, exist_ok=True)
        words += [f"--temp-dir={self.sessions}"] if node == 0 else []
        mounts = "; ".join(f"mount -t tmpfs none {disk}" for disk in disks)
        script = (
            f'hostname node{node}; mount --make-rprivate /; {mounts}; exec "$@"'
            if node
            else f'hostname node{node}; exec "$@"'
        )
        command = [
            "ip",
            "netns",
            "exec",
            self.namespace(node),
            "unshare",
            "--uts",
            "--mount",
            "sh",
            "-c",
            script,
            "sh",
            *words,
        ]
        env = self.env(node)
        env.pop("RAY_ADDRESS")
        with (self.folder / f"node{node}.out").open("wb") as out:
            self.processes[node] = subprocess.Popen(
                command, stdout=out, stderr=out, env=env, start_new_session=True, cwd=self.folder
            )

    def _until(self, nodes: int) -> None:
        probe = (
            "import ray, sys; ray.init(address='auto', logging_level='ERROR', log_to_driver=False); "
            "print(sum(n['Alive'] for n in ray.nodes()))"
        )
        deadline = time.monotonic() + 120
        while True:
            told = self._probe(probe)
            if told.strip().endswith(str(nodes)):
                return
            ended = [node for node, process in self.processes.items() if process.poll() is not None]
            if ended or time.monotonic() > deadline:
                log = (self.folder / f"node{(ended or [nodes - 1])[0]}.out").read_text(errors="replace")
                raise RuntimeError(f"node {ended or nodes - 1} did not start: {log[-800:]}")
            time.sleep(1.0)

    def _probe(self, program: str) -> str:
        """What a program on the head prints; nothing when the cluster does not answer it."""
        command = self.inside(0, sys.executable, "-c", program)
        with suppress(subprocess.TimeoutExpired):
            return subprocess.run(
                command,
                env=self.env(0),
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
                check=False,
                timeout=30,
            ).stdout
        return ""

    def kill(self, node: int) -> None:
        """All processes of the node at once, as when a machine loses power."""
        for _ in range(3):
            done = subprocess.run(
                ["ip", "netns", "pids", self.namespace(node)], capture_output=True, text=True, check=False
            )
            for pid in done.stdout.split():
                with suppress(ProcessLookupError):
                    os.kill(int(pid), signal.SIGKILL)
        self.processes.pop(node).wait()

    def stop(self) -> None:
        for node in list(self.processes):
            self.kill(node)
        for name in [*(self.namespace(node) for node in range(self.count)), f"{self.mark}-hub"]:
            subprocess.run(["ip", "netns", "delete", name], check=False, capture_output=True)
        shutil.rmtree(self.sessions, ignore_errors=True)


if __name__ == "__main__":
    nodes = NetNodes(Path(sys.argv[1]).absolute())
    nodes.folder.mkdir(parents=True, exist_ok=True)
    nodes.start()
    sys.stdout.write(
        f"RAY_ADDRESS={nodes.cluster}, in the network of the head: ip netns exec {nodes.namespace(0)} bash\n"
    )
    sys.stdout.flush()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    try:
        signal.pause()
    finally:
        nodes.stop()
