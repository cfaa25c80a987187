"""A real SLURM on this machine for tests, with two nodes: Debian's packages, as root, on loopback.

Two slurmd under different names and ports stand for two machines. No systemd, no cgroups, no
accounting. Fake GPUs are empty files, which is all that counting them needs.
"""

import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

PACKAGES = {
    "munged": "munge",
    "slurmctld": "slurmctld",
    "slurmd": "slurmd",
    "sbatch": "slurm-client",
}
NODES = ("node1", "node2")

_CONFIG = """
ClusterName=tests
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort=26917
CommunicationParameters=NoCtldInAddrAny,NoInAddrAny
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=2
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
JobCompType=jobcomp/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
GresTypes=gpu
SchedulerType=sched/backfill
SchedulerParameters=bf_interval=1,sched_interval=1,sched_min_interval=100000,batch_sched_delay=0
PriorityType=priority/basic
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
SlurmctldParameters=preempt_send_user_signal
SlurmdParameters=config_overrides
ReturnToService=2
JobRequeue=1
MinJobAge=3600
KillWait=10
SlurmctldTimeout=30
SlurmdTimeout=60
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
NodeName=node[1-2] NodeHostname={host} NodeAddr=127.0.0.1 Port=[27101-27102] \\
    CPUs=4 Gres=gpu:2 RealMemory={memory} State=UNKNOWN
PartitionName=main Nodes=ALL Default=YES PriorityTier=1 PreemptMode=REQUEUE GraceTime=30 State=UP
PartitionName=high Nodes=ALL PriorityTier=10 PreemptMode=OFF State=UP
"""


def missing() -> str | None:
    """Why there can be no SLURM here, None if there can."""
    if os.geteuid() != 0:
        return "a SLURM of one's own needs root"
    lacking = sorted({p for program, p in PACKAGES.items() if shutil.which(program) is None})
    if lacking:
        return f"SLURM is not installed: apt-get install {' '.join(lacking)}"
    return None


class Cluster:
    """A running SLURM; commands take its environment from `environment`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environment = os.environ | {"SLURM_CONF": str(folder / "slurm.conf")}

    def start(self) -> None:
        """Returns when both nodes take jobs."""
        self._name_nodes()
        (self.folder / "state").mkdir()
        for node in NODES:
            (self.folder / f"spool-{node}").mkdir()
        host = socket.gethostname().split(".")[0]
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2**20 * 9 // 20
        config = _CONFIG.format(host=host, folder=self.folder, memory=memory)
        (self.folder / "slurm.conf").write_text(config)
        for number in range(2):
            (self.folder / f"gpu{number}").touch()
        (self.folder / "gres.conf").write_text(
            f"AutoDetect=off\nNodeName=node[1-2] Name=gpu File={self.folder}/gpu[0-1]\n"
        )
        key = self.folder / "munge.key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o600)
        self._run(
            *("munged", "--force", f"--key-file={key}", f"--socket={self.folder}/munge.socket"),
            *(f"--pid-file={self.folder}/munged.pid", f"--log-file={self.folder}/munged.log"),
            f"--seed-file={self.folder}/munge.seed",
        )
        self._run("slurmctld")
        for node in NODES:
            self._run("slurmd", "-N", node)
        self.wait(lambda: self._ask("sinfo", "-h", "-N", "-p", "main", "-o", "%T") == "idle\nidle")

    def stop(self) -> None:
        """Ends all jobs, then the daemons."""
        subprocess.run(["scancel", "-u", "root"], env=self.environment, capture_output=True)
        end = time.monotonic() + 15
        while self._ask("squeue", "-h", "-t", "R,CG,PD") and time.monotonic() < end:
            time.sleep(0.1)
        for name in ("slurmd-node1", "slurmd-node2", "slurmctld", "munged"):
            file = self.folder / f"{name}.pid"
            if file.exists():
                process = int(file.read_text())
                os.kill(process, signal.SIGTERM)
                while Path(f"/proc/{process}").exists() and time.monotonic() < end + 15:
                    time.sleep(0.05)

    def submit(self, *arguments: str) -> int:
        """sbatch; returns the number of the job."""
        return int(self._run("sbatch", "--parsable", *arguments).split(";")[0])

    def state(self, job: int | str) -> str:
        """Of a job, such as RUNNING; empty when SLURM has forgotten it."""
        return self._ask("squeue", "-h", "-t", "all", "-j", str(job), "-o", "%T")

    def cancel(self, job: int, *options: str) -> None:
        self._run("scancel", *options, str(job))

    def start_now(self, job: int) -> None:
        """A requeued job waits for two minutes by default; not this one."""
        # Earlier its credential is revoked (cred_expire above), and the job fails.
        time.sleep(3)
        self._ask("scontrol", "update", f"JobId={job}", "StartTime=now")  # or it runs by now

    def wait(
        self, condition: Callable[[], bool], seconds: float = 60, log: Path | None = None
    ) -> None:
        """log: of the job that it is about."""
        end = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > end:
                found = log.read_text() if log is not None and log.exists() else ""
                raise AssertionError(f"{self._ask('squeue', '-t', 'all')}\n{found}")
            time.sleep(0.1)

    def wait_for_end(self, job: int, seconds: float = 180) -> str:
        """The last state of a job; one that requeues itself is not kept waiting."""

        def ended() -> bool:
            if self.state(job) == "PENDING":
                self.start_now(job)
            return self.state(job) not in ("PENDING", "RUNNING", "COMPLETING", "REQUEUED")

        self.wait(ended, seconds)
        return self.state(job)

    def _ask(self, *command: str) -> str:
        done = subprocess.run(command, env=self.environment, capture_output=True, text=True)
        return done.stdout.strip()

    def _run(self, *command: str) -> str:
        done = subprocess.run(command, env=self.environment, capture_output=True, text=True)
        assert done.returncode == 0, f"{' '.join(command)}: {done.stderr}"
        return done.stdout.strip()

    def _name_nodes(self) -> None:
        """Ranks take the address of rank 0 from the name of its node."""
        hosts = Path("/etc/hosts")
        known = hosts.read_text().split()
        lines = "".join(f"127.0.0.1 {node}\n" for node in NODES if node not in known)
        with hosts.open("a") as file:
            file.write(lines)
