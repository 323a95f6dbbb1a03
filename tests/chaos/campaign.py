#!/usr/bin/env python3
"""./run chaos [minutes] [seed]: real runs, to which evil things are done.

  campaign.py MINUTES [SEED]       ends after so many minutes, or before:
  THINGS=1000                      after so many evil things
  LANES=4                          so many runs beside each other (default 1)
  ONLY="map local,train ddp"       some kinds of runs only
  RUN="map local:123"              one run again, from the line of its failure
  KEEP=1                           keeps the folders of failures

Each run begins, every few seconds something evil is done to it, and when it ends early it is started again as a person would do
it. After each: the result is the bytes of an undisturbed run (where the program refused and named what is damaged: after doing as
it said); items were run again within what leases allow; no process, mount, network namespace or temporary file is left. A failure
prints the seed that repeats its run."""
import os, random, shutil, signal, subprocess, sys, tempfile, threading, time
import beds, evil, machine, runs

ATTEMPTS = 8
PLAN = (3, 8)  # evil things of a run
RESUMABLE = {3, 4, 5, 6, 7, 85, 130, 137, 143}  # documented exit codes that a disturbed run may end with; 137, 143: of a killed rank
STOP = threading.Event()  # somebody ends the campaign


class Failure(Exception):
    did = ()  # evil things before it


def tail(path, count=6):
    try:
        return "".join(open(path, errors="replace").readlines()[-count:])
    except OSError:
        return ""


def wait_all(processes, deadline):
    while any(p.poll() is None for p in processes) and time.monotonic() < deadline:
        time.sleep(0.02)
    return [p.poll() for p in processes]


def attempt(run, number, plan, luck, did):
    """One start, disturbed as planned; returns the exit codes."""
    if STOP.is_set():
        raise Failure("the campaign was ended")
    processes = run.start(number)
    while plan and any(p.poll() is None for p in processes):
        end = time.monotonic() + luck.uniform(*run.gap)
        while time.monotonic() < end and any(p.poll() is None for p in processes):
            time.sleep(0.02)
        if all(p.poll() is not None for p in processes):
            break
        kind = plan[0]
        if kind in runs.DAMAGE and not evil.files(run):  # nothing written yet
            plan.append(plan.pop(0))
            continue
        if kind in runs.DAMAGE:  # the machine crashes, and its disk has lied
            for wanted in ("driver", "agent"):
                for pid in machine.of_role(run.folder, wanted):
                    machine.send(pid, signal.SIGKILL)
            wait_all(processes, time.monotonic() + 20)
            left = machine.wait_for_none(run.folder, 15)
            if left:
                raise Failure(f"processes survive kill -9 of their maker: {describe(left)}")
        what = evil.THINGS[kind](run, luck)
        if what:
            did.append((kind, what))
            plan.pop(0)
        else:
            plan.append(plan.pop(0))
            if luck.random() < 0.2:
                plan.pop()
    progress = None
    while progress != (now := run.progress()) or run.was_suspended():
        progress = now
        codes = wait_all(processes, time.monotonic() + run.patience)
        if all(code is not None for code in codes):
            return codes
    raise Failure(f"hangs for {run.patience} s; {describe(machine.processes(run.folder))}")


def describe(pids):
    return "; ".join(f"{pid} {machine.role(pid)} {machine.text(pid, 'comm').strip()}: {machine.text(pid, 'cmdline')[:120]}" for pid in pids)


def one_run(kind, folder, shim, seed, expected, bed=None):
    """Returns (evil things done, attempts, refused, reruns), or the result where none is expected yet; raises Failure."""
    run = kind(folder, shim, bed)
    did = []
    try:
        try:
            done = whole_run(run, random.Random(seed), expected, did)
        finally:
            run.calm()
            machine.end_all(run.folder)
            run.clean()
        if left := run.left_on_machine():
            raise Failure(f"left on the machine: {', '.join(left)}")
        return done
    except Failure as failure:
        worse = Failure(f"{failure}\n    after: {'; '.join(what for _, what in did)}")
        worse.did = did
        raise worse from None


def whole_run(run, luck, expected, did):
    run.prepare()
    plan = [luck.choice(run.kinds) for _ in range(luck.randint(*PLAN))] if expected is not None else []
    number, refused = attempts(run, plan, luck, did)
    if refused:
        run.obey()
        run.damaged.clear()
        number += attempts(run, [], luck, did)[0]
    if run.bed:
        run.bed.heal()
    run.wake()
    left = machine.wait_for_none(run.folder, run.leave_seconds)
    if left:
        raise Failure(f"processes are left: {describe(left)}")
    if jobs := run.left():
        raise Failure(jobs)
    result = run.result()
    if result is None:
        raise Failure("ended well, but there is no result")
    if expected is not None and result != expected:
        raise Failure("the result has other bytes than that of an undisturbed run")
    if run.temporary():
        raise Failure(f"temporary files are left: {run.temporary()}")
    # An event costs each worker what it holds: two leases of one item.
    if hasattr(run, "workers") and run.reruns() > 2 * run.workers * max(1, len(did) + number):
        raise Failure(f"{run.reruns()} items ran again")
    return (did, number, refused, run.reruns()) if expected is not None else result


def attempts(run, plan, luck, did):
    """Starts a run as often as it takes; returns how often that was, and whether it refused to go on with damaged files."""
    for number in range(1, ATTEMPTS + 1):
        if number > ATTEMPTS // 2:
            plan.clear()
        disturbed = bool(plan)
        if not disturbed:
            run.calm()
        before = len(did)
        codes = attempt(run, number, plan, luck, did)
        touched = disturbed or len(did) > before or bool(run.timers)
        run.calm()
        if all(code == 0 for code in codes):
            return number, False
        said = tail(run.log)
        killed = any(code in (-9, 137) for code in codes)
        if not killed and any(code < 0 or code not in RESUMABLE | {0} for code in codes):
            raise Failure(f"ended with {codes}: {said}")
        if not said and not killed:
            raise Failure(f"ended with {codes} without a word")
        if run.damaged and any(os.path.basename(path) in said or os.path.dirname(path) in said for path in run.damaged):
            return number, True
        if not touched and number > 1 and not (did and number <= 2 + len(did)):
            raise Failure(f"undisturbed, it ended with {codes}: {said}")
    raise Failure(f"not done after {ATTEMPTS} attempts; the last said: {tail(run.log)}")


def build_shim(folder):
    path = os.path.join(folder, "shim.so")
    source = os.path.join(runs.HERE, "shim.c")
    return path if subprocess.run(["cc", "-shared", "-fPIC", "-O1", source, "-o", path, "-ldl"]).returncode == 0 else None


class Campaign:
    """Lanes draw runs from one source of luck until the time is over or enough was done."""

    def __init__(self, kinds, work, seed, minutes):
        self.kinds, self.work, self.seed = kinds, work, seed
        self.shim = build_shim(work)
        self.end = time.monotonic() + 60 * minutes
        self.things = int(os.environ.get("THINGS", "0"))
        self.single = os.environ.get("RUN")
        self.beds = {}  # of a class
        # Guarded by the lock:
        self.lock = threading.Lock()
        self.luck, self.number, self.stop = random.Random(seed), 0, False
        self.counts, self.table = {}, {name: [0, 0, 0, 0, 0, 0] for name in kinds}  # runs, evil things, refused, failed, reruns, seconds
        # An undisturbed run's result; whoever needs it first makes it.
        self.expected, self.making = {}, {name: threading.Lock() for name in kinds}

    def run(self, lanes):
        threads = [threading.Thread(target=self.lane, daemon=True) for _ in range(lanes)]
        try:
            for thread in threads:
                thread.start()
            while any(thread.is_alive() for thread in threads):
                time.sleep(0.2)
        finally:
            self.stop = True
            STOP.set()
            while any(thread.is_alive() for thread in threads):
                for folder in (entry.path for entry in os.scandir(self.work) if entry.name.isdigit()):
                    machine.end_all(folder)
                time.sleep(0.2)
            for bed in self.beds.values():
                if not bed.down():
                    print(f"chaos: the {bed.name} bed has left something behind", flush=True)

    def draw(self):
        """The next run: (number, name, seed, bed), or None. A bed serves one run at a time: others are drawn meanwhile."""
        with self.lock:
            enough = self.things and sum(self.counts.values()) >= self.things
            if self.stop or enough or not self.kinds or time.monotonic() > self.end or (self.single and self.number):
                return None
            self.number += 1
            free = [name for name in sorted(self.kinds) if not (self.bed_of(name) and self.bed_of(name).in_use.locked())]
            if self.single:
                name, _, own = self.single.rpartition(":")
            else:
                names = free or sorted(self.kinds)
                name = self.luck.choices(names, [self.kinds[name].weight for name in names])[0]
                own = self.luck.randrange(1 << 30)
            bed = self.bed_of(name)
        if bed:
            bed.in_use.acquire()
        return self.number, name, int(own), bed

    def bed_of(self, name):
        kind = self.kinds[name].bed
        if kind and kind not in self.beds:
            self.beds[kind] = kind(os.path.join(self.work, "bed-" + kind.name))
        return self.beds.get(kind)

    def lane(self):
        while drawn := self.draw():
            number, name, own, bed = drawn
            folder = os.path.join(self.work, str(number))
            try:
                if bed:
                    bed.heal()
                self.one(number, name, own, folder, bed)
            except beds.Absent as absent:
                print(f"chaos: left out: {name}: {absent}", flush=True)
                with self.lock:
                    self.kinds.pop(name, None)
            except Exception as failure:  # also one of the campaign itself: never without a line
                self.failed(number, name, own, folder, failure)
            finally:
                if bed:
                    bed.in_use.release()
            if not os.environ.get("KEEP"):
                shutil.rmtree(folder, ignore_errors=True)

    def one(self, number, name, own, folder, bed):
        with self.making[name]:
            if name not in self.expected:
                os.makedirs(folder + "-calm")
                self.expected[name] = one_run(self.kinds[name], folder + "-calm", self.shim, own, None, bed)
                shutil.rmtree(folder + "-calm", ignore_errors=True)
        os.makedirs(folder)
        began = time.monotonic()
        did, starts, refused, reruns = one_run(self.kinds[name], folder, self.shim, own, self.expected[name], bed)
        seconds = time.monotonic() - began
        with self.lock:
            self.count(name, did, [1, len(did), refused, 0, reruns, seconds])
        words = "same bytes" + (f", {reruns} items again" if reruns else "") + (", after a refusal that named what is damaged" if refused else "")
        print(f"{number:4} {name}: {len(did)} evil things, {starts} starts, {seconds:.0f} s: {words}", flush=True)
        shutil.rmtree(folder, ignore_errors=True)

    def count(self, name, did, row):
        self.table[name] = [have + more for have, more in zip(self.table[name], row)]
        for kind, _ in did:
            self.counts[kind] = self.counts.get(kind, 0) + 1

    def failed(self, number, name, own, folder, failure):
        if self.stop:  # ended by us
            return
        did = getattr(failure, "did", ())
        words = str(failure) if isinstance(failure, Failure) else f"{type(failure).__name__}: {failure}"
        with self.lock:
            self.count(name, did, [1, len(did), 0, 1, 0, 0])
            self.stop = self.stop or name not in self.expected  # not even undisturbed
        print(f"{number:4} {name}: FAILED: {words}\n    again: RUN='{name}:{own}' ./run chaos 1 {self.seed}", flush=True)
        if os.environ.get("KEEP"):
            print(f"    kept: {folder}", flush=True)


def main():
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that what was started is ended
    minutes, seed = float(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else int(time.time())
    kinds, left_out = runs.available()
    only = [name for name in os.environ.get("ONLY", "").split(",") if name]
    if unknown := sorted(set(only) - set(kinds)):
        print(f"chaos: ONLY names {', '.join(unknown)}; there are: {', '.join(kinds)}", file=sys.stderr)
        return 2
    kinds = {name: kind for name, kind in kinds.items() if not only or name in only}
    for name, why in left_out.items():
        print(f"chaos: left out: {name}: {why}", flush=True)
    work = tempfile.mkdtemp(prefix="tutti-chaos-")
    os.chmod(work, 0o755)
    campaign = Campaign(kinds, work, seed, minutes)
    try:
        campaign.run(int(os.environ.get("LANES", "1")))
    finally:
        if not os.environ.get("KEEP"):
            shutil.rmtree(work, ignore_errors=True)
        report(campaign.table, campaign.counts, seed)
    return 1 if any(row[3] for row in campaign.table.values()) else 0


def report(table, counts, seed):
    print("\n| run | runs | evil things | refused | items run again | failed | seconds each |\n|---|---|---|---|---|---|---|")
    for name, (count, things, refused, failed, reruns, seconds) in table.items():
        print(f"| {name} | {count} | {things} | {refused} | {reruns} | {failed} | {seconds / max(1, count - failed):.0f} |")
    print("\n| evil thing | times |\n|---|---|")
    for kind in sorted(counts, key=counts.get, reverse=True):
        print(f"| {kind} | {counts[kind]} |")
    failed = sum(row[3] for row in table.values())
    print(f"\nchaos: {sum(counts.values())} evil things in {sum(row[0] for row in table.values())} runs, {failed} failed; seed {seed}")


if __name__ == "__main__":
    sys.path.insert(0, runs.HERE)
    sys.exit(main())
