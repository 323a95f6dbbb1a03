#!/usr/bin/env python3
"""What the beds could leave behind on a machine.

  machine_state.py save FILE       before the first bed comes up
  machine_state.py compare FILE    after the last has gone: prints what is new and ends with 1, or ends with 0;
                                   77: other tests have a bed, then or now, and whose things these are cannot be told

Looked at: processes of schedulers and whatever has a bed's folder as program, working folder, root, open file or argument;
mounts, network namespaces, links, routes, lines in /etc, folders in /tmp. Not looked at: what a campaign (tests/chaos) or the ordinary
tests (two_hosts.h) beside it have.
"""
import fcntl, glob, hashlib, json, os, re, subprocess, sys, tempfile, time

MARKS = ("tutti-bed-", "/.cache/htcondor/root", "/.cache/kube/")
FIXTURE = "tutti-bed-fixture-"  # the Slurm of a build folder (CMakeLists.txt), with the folder's hash behind it
OWN_FIXTURE = FIXTURE + hashlib.md5(os.path.dirname(sys.argv[2]).encode()).hexdigest()[:6]
NETWORK_OF_OTHERS = re.compile(r"\b(ch\d+(h|v|br)\d|chaos\d+-\d+[ab]|tutti\d+[ab])\b")
DAEMONS = ("slurm", "munged", "sge_", "condor_", "Almighty", "oar", "kube", "etcd", "postgres")
OF_BEDS = re.compile(r"\btut(g|h|v|br|gv|gbr|gmaster)?\d*\b|tutti")


def beds_of_others():
    """Beds whose lock somebody has (tests/parallel/cluster/bed.cpp): save and compare run while ours are down."""
    held = []
    for path in glob.glob("/run/lock/tutti-bed-*"):
        with open(path) as f:
            try:
                fcntl.flock(f, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except OSError:
                held.append(path)
    return held


def of_others(text):
    """Of a campaign, or of the Slurm of another build folder."""
    return "tutti-chaos-" in text or FIXTURE in text and OWN_FIXTURE not in text


def links_of(folder):
    found = [os.path.join(folder, name) for name in ("exe", "cwd", "root")]
    try:
        found += [os.path.join(folder, "fd", fd) for fd in os.listdir(os.path.join(folder, "fd"))]
    except OSError:  # it ended while we looked
        pass
    for path in found:
        try:
            yield os.readlink(path)
        except OSError:
            pass


def processes():
    found = {}
    for folder in glob.glob("/proc/[0-9]*"):
        pid = folder[6:]
        if int(pid) == os.getpid():
            continue
        try:
            stat = open(folder + "/stat").read().rsplit(")", 1)
            fields = stat[1].split()
            words = open(folder + "/cmdline").read().split("\0")
        except OSError:
            continue
        if fields[0] == "Z" or not words[0]:  # ended, or the kernel's
            continue
        program = os.path.basename(words[0])
        seen = [*links_of(folder), *words]
        if any(of_others(text) for text in seen):
            continue
        ours = any(mark in text for mark in MARKS for text in seen)
        if ours or program.startswith(DAEMONS):
            found["process %s (since %s): %s" % (pid, fields[19], " ".join(words)[:150])] = 1
    return found


def lines_of(command):
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=30).stdout.split("\n")
    except FileNotFoundError:
        return []


def state():
    found = processes()
    for line in open("/proc/self/mounts"):
        if any(mark in line for mark in MARKS):
            found["mount " + line.strip()] = 1
    for name in glob.glob("/run/netns/*"):
        found["network namespace " + name] = 1
    for name in os.listdir("/sys/class/net"):
        found["link " + name] = 1
    for line in lines_of(["ip", "route", "show", "table", "all"]):
        found["route " + line.strip()] = 1
    for line in open("/etc/hosts"):
        found["/etc/hosts: " + line.strip()] = 1
    # not the copies that useradd keeps (/etc/passwd-)
    for line in lines_of(["grep", "-rIs", "--exclude=*-", "tutti", "/etc"]):
        found[line[:200]] = 1
    for name in glob.glob(os.path.join(tempfile.gettempdir(), "tutti-bed-*")):
        if not of_others(name):
            found["folder " + name] = 1
    return {line: 1 for line in found if not NETWORK_OF_OTHERS.search(line)}


def main():
    command, path = sys.argv[1:]
    others = beds_of_others()
    if command == "save":
        with open(path, "w") as f:
            json.dump({"state": state(), "others": others}, f, indent=0)
        return 0
    saved = json.load(open(path))
    before, others = saved["state"], saved["others"] + others
    if others:
        print("skipped: other tests have or had a bed: " + " ".join(sorted(set(others))))
        return 77
    deadline = time.time() + 20  # what was asked to go may be on its way
    while True:
        after = state()
        new = sorted(set(after) - set(before))
        lost = sorted(line for line in set(before) - set(after) if line.startswith(("/etc", "route", "link", "mount"))
                      and not OF_BEDS.search(line))  # left by a killed one, and removed by the next
        if not new and not lost:
            return 0
        if time.time() > deadline:
            break
        time.sleep(0.2)
    for line in new:
        print("left behind: " + line)
    for line in lost:
        print("gone: " + line)
    return 1


sys.exit(main())
