"""What a campaign sees of the machine: the processes of one run, found by the run's folder, and what they leave behind."""
import os, signal, time


def text(pid, name):
    try:
        with open(f"/proc/{pid}/{name}", "rb") as f:
            return f.read().replace(b"\0", b" ").decode(errors="replace")
    except OSError:  # it ended while we looked
        return ""


def link(pid, name):
    try:
        return os.readlink(f"/proc/{pid}/{name}")
    except OSError:
        return ""


def running(pid):
    state = text(pid, "stat").rpartition(")")[2].split()
    return bool(state) and state[0] not in "ZX"


def parent(pid):
    fields = text(pid, "stat").rpartition(")")[2].split()
    return int(fields[1]) if len(fields) > 1 else None


def stands_still(pid):
    return text(pid, "stat").rpartition(")")[2].split()[:1] == ["T"]


def processes(folder):
    """Pids that name the folder in arguments, environment or working folder; not our own."""
    found = []
    for name in os.listdir("/proc"):
        if not name.isdigit() or int(name) == os.getpid():
            continue
        where = (text(name, "cmdline"), text(name, "environ"), link(name, "cwd") + "/")
        if any(f"{folder}/" in words for words in where) and running(name):
            found.append(int(name))
    return found


def role(pid):
    """worker, rank, agent, driver, item, ssh or helper (keepers and guards, which only wait for others to die)."""
    name, words = text(pid, "comm").strip(), text(pid, "cmdline").split()
    if name in ("tutti-keeper", "tutti-guard"):
        return "helper"
    if not words:
        return "helper"
    program = os.path.basename(words[0])
    if program == "trainer_rank" or (program == "tutti-run" and "RANK=" in text(pid, "environ") and "launch" not in words):
        return "rank"
    if program.startswith("tutti"):
        if "worker" in words[1:3]:
            return "worker"
        return "agent" if "launch" in words[1:3] else "driver"
    if program == "ssh":
        return "ssh"
    return "item" if program in ("sh", "sleep", "sha1sum", "dash") else "helper"


def of_role(folder, wanted):
    return [pid for pid in processes(folder) if role(pid) == wanted]


def send(pid, number):
    try:
        os.kill(pid, number)
        return True
    except ProcessLookupError:
        return False


def wait_for_none(folder, seconds):
    """The processes that are still there after so long."""
    end = time.monotonic() + seconds
    while (left := processes(folder)) and time.monotonic() < end:
        time.sleep(0.1)
    return left


def end_all(folder):
    """By their numbers, until none is left: a failed run must not disturb the next."""
    for _ in range(50):
        left = processes(folder)
        if not left:
            return
        for pid in left:
            send(pid, signal.SIGKILL)
        time.sleep(0.1)


def mounts():
    with open("/proc/mounts") as f:
        return {line.split()[1] for line in f}
