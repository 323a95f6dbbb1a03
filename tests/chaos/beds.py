"""Real schedulers and hosts under a campaign (tests/beds). A bed comes up when it is first wanted, serves one run at a time, and is
healed after each: daemons that were killed start again."""
import os, signal, subprocess, threading
import machine

HERE = os.path.dirname(os.path.abspath(__file__))


class Absent(Exception):
    """The bed cannot be had here; the words say why."""


class Bed:
    name = ""

    def __init__(self, folder):
        self.folder = folder
        self.in_use, self.scripts = threading.Lock(), threading.Lock()
        self.is_up = False

    def settings(self):
        """Names, ports and addresses that no other bed of this machine has."""
        raise NotImplementedError

    def script(self, which):
        with self.scripts:
            path = os.path.join(os.path.dirname(HERE), "beds", self.name, which)
            # Output into a file: daemons keep the descriptor, and a pipe would have no end.
            log = self.folder + ".log"
            with open(log, "ab") as out:
                code = subprocess.run([path], env=dict(os.environ, BED=self.folder, **self.settings()), stdin=subprocess.DEVNULL,
                                      stdout=out, stderr=out).returncode
            return code, open(log, errors="replace").read()[-500:]

    def revive(self):
        """Starts again what was killed; what stands still is let alone."""
        return self.script("up.sh")

    def heal(self):
        """All daemons as at the beginning; Absent when even a fresh bed does not come up."""
        for pid in self.daemons():
            machine.send(pid, signal.SIGCONT)
        if self.is_up and any(self.revive()[0] == 0 for _ in range(3)):  # nodes take a while to be trusted again
            return
        self.down()
        code, said = self.revive()
        self.is_up = code == 0
        if not self.is_up:
            raise Absent(said.strip().splitlines()[-1] if said.strip() else "no word")

    def down(self):
        """Whether nothing of it is left."""
        self.is_up = False
        return self.script("down.sh")[0] == 0 and not os.path.exists(self.folder)

    def daemons(self):
        """Pids of everything that may have been stopped."""
        raise NotImplementedError


def pid_in(path):
    try:
        with open(path) as f:
            pid = int(f.readline())
    except (OSError, ValueError):
        return None
    return pid if machine.running(pid) else None


class Slurm(Bed):
    name = "slurm"
    nodes = 3

    def settings(self):
        place = os.getpid() % 200
        return {"NODES": str(self.nodes), "CPUS": "2", "GPUS": "0", "PORT": str(21000 + 10 * place), "NET": f"127.0.{30 + place}"}

    def env(self):
        return {"SLURM_CONF": os.path.join(self.folder, "etc/slurm.conf")}

    def slurmctld(self):
        pid = pid_in(os.path.join(self.folder, "run/slurmctld.pid"))
        return [pid] if pid else []

    def slurmd(self):
        found = [pid_in(os.path.join(self.folder, f"run/slurmd.node{n}.pid")) for n in range(1, self.nodes + 1)]
        return [pid for pid in found if pid]

    def daemons(self):
        return self.slurmctld() + self.slurmd()

    def node(self, luck):
        """All processes of a node: those that share the UTS namespace of its slurmd."""
        daemons = self.slurmd()
        if not daemons:
            return []
        place = machine.link(luck.choice(daemons), "ns/uts")
        return [int(name) for name in os.listdir("/proc") if name.isdigit() and place and machine.link(name, "ns/uts") == place]

    def queue(self):
        """Lines about jobs that have not ended; None: nobody answers."""
        try:
            asked = subprocess.run(["squeue", "-h", "-r", "-o", "%i %T %r"], env=dict(os.environ, **self.env()), capture_output=True,
                                   text=True, timeout=20)
        except subprocess.TimeoutExpired:
            return None
        return asked.stdout.splitlines() if asked.returncode == 0 else None

    def revive(self):
        done = super().revive()
        self.hurry()
        return done

    def hurry(self):
        """Slurm holds back for two minutes what it has put back into the queue."""
        for line in self.queue() or []:
            subprocess.run(["scontrol", "update", "jobid=" + line.split()[0], "StartTime=now"], env=dict(os.environ, **self.env()),
                           stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def empty(self):
        subprocess.run(["scancel", "-u", "root"], env=dict(os.environ, **self.env()), stderr=subprocess.DEVNULL)


class Ssh(Bed):
    name = "ssh"
    num_hosts = 3

    def settings(self):
        place = os.getpid() % 200
        return {"NAME": f"ch{place}", "HOSTS": str(self.num_hosts), "NET": f"10.218.{place + 20}"}

    def interface(self):
        return self.settings()["NAME"] + "br0"

    def host(self, number):
        """The process that is the host's power plug, or None."""
        return pid_in(os.path.join(self.folder, f"run/h{number}.pid"))

    def sshd(self):
        """The listeners and the sessions of all hosts."""
        found = []
        for number in range(1, self.num_hosts + 1):
            waiting = [self.host(number)]
            while waiting:
                pid = waiting.pop()
                if pid and machine.text(pid, "comm").strip() == "sshd":
                    found.append(pid)
                waiting += [int(child) for child in machine.text(pid, f"task/{pid}/children").split()] if pid else []
        return found

    daemons = sshd

    def cable(self, number):
        return f"{self.settings()['NAME']}v{number}"
