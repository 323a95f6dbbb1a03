"""The evil things. Each is a function of a run and a source of luck; it returns what it did in a few words, or None when there
was nobody to do it to. What lasts (a full disk, a stopped driver) ends by itself after a moment, through run.later()."""
import os, signal
import machine


def _signal(run, luck, wanted, number, word):
    pids = machine.of_role(run.folder, wanted)
    if not pids:
        return None
    pid = luck.choice(pids)
    return f"{word} {wanted} {pid}" if machine.send(pid, number) else None


def _kill(wanted):
    return lambda run, luck: _signal(run, luck, wanted, signal.SIGKILL, "kill -9")


def _stop(wanted, wake):
    def act(run, luck):
        pids = machine.of_role(run.folder, wanted)
        if not pids:
            return None
        pid = luck.choice(pids)
        if not machine.send(pid, signal.SIGSTOP):
            return None
        if machine.role(pid) != wanted:  # it was about to become an item, and one that stands still is nobody's to find out
            machine.send(pid, signal.SIGCONT)
            return None
        # One that stands still is found out by its silence. If all did, the run would be suspended, and not dead.
        others = any(machine.stands_still(other) for other in run.stopped)
        run.stopped.append(pid)
        if wake or others or not run.met() or luck.random() < 0.3:
            run.later(luck.uniform(0.3, 5), lambda: machine.send(pid, signal.SIGCONT))
        return f"SIGSTOP {wanted} {pid}"
    return act


def _daemon(name, number, word):
    """To a daemon of the run's bed: it is woken or started again a while later."""
    def act(run, luck):
        pids = getattr(run.bed, name)()
        if not pids:
            return None
        pid = luck.choice(pids)
        if not machine.send(pid, number):
            return None
        run.later(luck.uniform(1, 15), (lambda: machine.send(pid, signal.SIGCONT)) if number == signal.SIGSTOP else run.bed.revive)
        return f"{word} {name} {pid}"
    return act


def node_off(run, luck):
    """A Slurm node with its daemon, jobs and all."""
    pids = run.bed.node(luck)
    for pid in pids:
        machine.send(pid, signal.SIGKILL)
    if not pids:
        return None
    run.later(luck.uniform(1, 15), run.bed.revive)
    return f"node powered off, {len(pids)} processes"


def host_off(run, luck):
    number = luck.randint(1, run.bed.num_hosts)
    plug = run.bed.host(number)
    if not plug or not machine.send(plug, signal.SIGKILL):
        return None
    run.later(luck.uniform(1, 15), run.bed.revive)
    return f"host h{number} powered off"


def cable(run, luck):
    link = run.bed.cable(luck.randint(1, run.bed.num_hosts))
    run.ip("link", "set", link, "down")
    run.later(luck.uniform(0.5, 10), lambda: run.ip("link", "set", link, "up"))
    return f"cable {link} pulled"


def full_disk(run, luck):
    if not run.disk:
        return None
    filler = os.path.join(run.disk, "filler")
    try:
        with open(filler, "wb", buffering=0) as f:
            while True:
                f.write(b"x" * 4096)
    except OSError:
        pass
    run.later(luck.uniform(0.3, 2), lambda: os.path.exists(filler) and os.remove(filler))
    return "disk full"


def files(run):
    found = []
    for folder in run.damageable():
        for at, _, names in os.walk(folder):
            found += [os.path.join(at, name) for name in names if os.path.getsize(os.path.join(at, name)) > 8]
    return sorted(found)


def _damage(run, luck, what):
    """Storage that lies: only while nobody writes, as after a crash of the machine."""
    if machine.of_role(run.folder, "driver") + machine.of_role(run.folder, "worker") + machine.of_role(run.folder, "rank"):
        return None
    found = files(run)
    if not found:
        return None
    path = luck.choice(found)
    size = os.path.getsize(path)
    with open(path, "r+b") as f:
        if what == "cut":
            f.truncate(size - luck.randint(1, min(size, 64)))
        else:
            at = luck.randrange(size)
            f.seek(at)
            byte = f.read(1)[0]
            f.seek(at)
            f.write(bytes([byte ^ (1 << luck.randrange(8))]))
    run.damaged.append(path)
    return f"{what} {os.path.relpath(path, run.folder)}"


def clock_jump(run, luck):
    seconds = luck.choice([-86400, -3600, -60, 60, 3600, 86400])
    run.tell_shim(0, seconds)
    return f"clock {seconds:+} s"


def slow_disk(run, luck):
    ms = luck.choice([20, 100, 400])
    run.tell_shim(1, ms)
    run.later(luck.uniform(1, 6), lambda: run.tell_shim(1, 0))
    return f"fsync takes {ms} ms"


def odd_scheduler(run, luck):
    if not run.scheduler:
        return None
    how = luck.choice(["hang", "garbage", "lie", "fail"])
    path = os.path.join(run.scheduler, "evil")
    with open(path, "w") as f:
        f.write(how)
    run.later(luck.uniform(0.5, 3), lambda: os.path.exists(path) and os.remove(path))
    return f"scheduler commands: {how}"


def partition(run, luck):
    if not run.hosts:
        return None
    host = luck.choice(run.hosts)
    run.ip("-n", host, "link", "set", "e0", "down")
    run.later(luck.uniform(0.5, 6), lambda: run.ip("-n", host, "link", "set", "e0", "up"))
    return "network cut"


THINGS = {
    "kill -9 worker": _kill("worker"), "kill -9 driver": _kill("driver"), "kill -9 item": _kill("item"),
    "kill -9 rank": _kill("rank"), "kill -9 agent": _kill("agent"),
    "SIGSTOP worker": _stop("worker", False), "SIGSTOP driver": _stop("driver", True),
    "SIGSTOP rank": _stop("rank", False), "SIGSTOP agent": _stop("agent", True),
    "disk full": full_disk, "byte flipped": lambda run, luck: _damage(run, luck, "flip"),
    "tail cut": lambda run, luck: _damage(run, luck, "cut"), "clock jump": clock_jump, "slow fsync": slow_disk,
    "odd scheduler": odd_scheduler, "network cut": partition,
    "kill -9 slurmd": _daemon("slurmd", signal.SIGKILL, "kill -9"), "SIGSTOP slurmd": _daemon("slurmd", signal.SIGSTOP, "SIGSTOP"),
    "kill -9 slurmctld": _daemon("slurmctld", signal.SIGKILL, "kill -9"),
    "SIGSTOP slurmctld": _daemon("slurmctld", signal.SIGSTOP, "SIGSTOP"), "node powered off": node_off,
    "kill -9 sshd": _daemon("sshd", signal.SIGKILL, "kill -9"), "SIGSTOP sshd": _daemon("sshd", signal.SIGSTOP, "SIGSTOP"),
    "kill -9 ssh": _kill("ssh"), "host powered off": host_off, "cable pulled": cable,
}
