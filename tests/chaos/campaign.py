#!/usr/bin/env python3
"""./run chaos [minutes] [seed]: real runs, to which evil things are done.

  campaign.py MINUTES [SEED]       ONLY="map local,train ddp" does some kinds only; KEEP=1 keeps the folders of failures

Each run begins, every few seconds something evil is done to it, and when it ends early it is started again as a person would do
it. After each: the result is the bytes of an undisturbed run, or the program refused and named what is damaged; items were run
again within what leases allow; no process, mount or temporary file is left. A failure prints the seed that repeats its run."""
import os, random, shutil, signal, subprocess, sys, tempfile, time
import evil, machine, runs

ATTEMPTS = 8
RESUMABLE = {3, 4, 5, 6, 7, 85, 130}  # documented exit codes that a disturbed run may end with


class Failure(Exception):
    pass


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
    processes = run.start(number)
    deadline = run.began + run.attempt_seconds
    while plan and any(p.poll() is None for p in processes):
        end = time.monotonic() + luck.uniform(0.1, 1.2)
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
    codes = wait_all(processes, deadline)
    if any(code is None for code in codes):
        raise Failure(f"hangs for {run.attempt_seconds} s; {describe(machine.processes(run.folder))}")
    return codes


def describe(pids):
    return "; ".join(f"{pid} {machine.role(pid)} {machine.text(pid, 'comm').strip()}: {machine.text(pid, 'cmdline')[:120]}" for pid in pids)


def one_run(kind, folder, shim, seed, expected):
    """Returns (evil things done, attempts, refused, reruns); raises Failure."""
    luck = random.Random(seed)
    run = kind(folder, shim)
    mounts = machine.mounts()
    did, refused, number = [], False, 0
    try:
        run.prepare()
        plan = [luck.choice(kind.kinds) for _ in range(luck.randint(2, 6))] if expected is not None else []
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
                break
            said = tail(run.log)
            killed = any(code in (-9, 137) for code in codes)
            if not killed and any(code < 0 or code not in RESUMABLE | {0, 1} | set(range(129, 160)) for code in codes):
                raise Failure(f"ended with {codes}: {said}")
            if not said and not killed:
                raise Failure(f"ended with {codes} without a word")
            if run.damaged and any(os.path.basename(path) in said or os.path.dirname(path) in said for path in run.damaged):
                refused = True
                break
            if not touched and number > 1 and not (did and number <= 2 + len(did)):
                raise Failure(f"undisturbed, it ended with {codes}: {said}")
        else:
            raise Failure(f"not done after {ATTEMPTS} attempts; the last said: {tail(run.log)}")
        run.wake()
        left = machine.wait_for_none(run.folder, 20)
        if left:
            raise Failure(f"processes are left: {describe(left)}")
        if refused:
            return did, number, True, 0
        result = run.result()
        if result is None:
            raise Failure("ended well, but there is no result")
        if expected is not None and result != expected:
            raise Failure("the result has other bytes than that of an undisturbed run")
        if run.temporary():
            raise Failure(f"temporary files are left: {run.temporary()}")
        return (did, number, False, run.reruns()) if expected is not None else result
    except Failure as failure:
        raise Failure(f"{failure}\n    after: {'; '.join(what for _, what in did)}") from None
    finally:
        run.calm()
        machine.end_all(run.folder)
        run.clean()
        new = machine.mounts() - mounts
        if any(mount.startswith(folder) for mount in new):
            print(f"chaos: mounts are left: {new}", flush=True)


def build_shim(folder):
    path = os.path.join(folder, "shim.so")
    source = os.path.join(runs.HERE, "shim.c")
    return path if subprocess.run(["cc", "-shared", "-fPIC", "-O1", source, "-o", path, "-ldl"]).returncode == 0 else None


def main():
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that what was started is ended
    minutes, seed = float(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else int(time.time())
    kinds, left_out = runs.available()
    only = [name for name in os.environ.get("ONLY", "").split(",") if name]
    kinds = {name: kind for name, kind in kinds.items() if not only or name in only}
    for name, why in left_out.items():
        print(f"chaos: left out: {name}: {why}", flush=True)
    work = tempfile.mkdtemp(prefix="tutti-chaos-")
    os.chmod(work, 0o755)
    shim = build_shim(work)
    end, expected = time.monotonic() + 60 * minutes, {}
    counts, table = {}, {name: [0, 0, 0, 0, 0] for name in kinds}  # runs, evil things, refused, failed, reruns
    luck = random.Random(seed)
    single = os.environ.get("RUN")  # "map local:123": that one again
    try:
        campaign(kinds, expected, shim, work, end, luck, table, counts, single, seed)
    finally:
        if not os.environ.get("KEEP"):
            shutil.rmtree(work, ignore_errors=True)
        report(table, counts, seed)
    return 1 if any(row[3] for row in table.values()) else 0


def campaign(kinds, expected, shim, work, end, luck, table, counts, single, seed):
    number = 0
    while time.monotonic() < end:
        number += 1
        name, own = luck.choice(sorted(kinds)), luck.randrange(1 << 30)
        if single:
            name, _, own = single.rpartition(":")
            own = int(own)
        folder = os.path.join(work, str(number))
        try:
            if name not in expected:
                os.makedirs(folder + "-calm")
                expected[name] = one_run(kinds[name], folder + "-calm", shim, own, None)
                shutil.rmtree(folder + "-calm", ignore_errors=True)
            os.makedirs(folder)
            did, attempts, refused, reruns = one_run(kinds[name], folder, shim, own, expected[name])
            row = table[name]
            row[0], row[1], row[2], row[4] = row[0] + 1, row[1] + len(did), row[2] + refused, row[4] + reruns
            for kind, _ in did:
                counts[kind] = counts.get(kind, 0) + 1
            words = "refused, naming what is damaged" if refused else f"same bytes, {reruns} items again" if reruns else "same bytes"
            print(f"{number:4} {name}: {len(did)} evil things, {attempts} starts: {words}", flush=True)
            # An event costs each worker what it holds: two leases of one item.
            if hasattr(kinds[name], "workers") and reruns > 2 * kinds[name].workers * max(1, len(did) + attempts):
                raise Failure(f"{reruns} items ran again")
        except Failure as failure:
            table[name][3] += 1
            print(f"{number:4} {name}: FAILED: {failure}\n    again: RUN='{name}:{own}' ./run chaos 1 {seed}", flush=True)
            if os.environ.get("KEEP"):
                print(f"    kept: {folder}", flush=True)
                folder = None
            if name not in expected:
                break
        if folder:
            shutil.rmtree(folder, ignore_errors=True)
        if single:
            break


def report(table, counts, seed):
    print("\n| run | runs | evil things | refused | items run again | failed |\n|---|---|---|---|---|---|")
    for name, (count, things, refused, failed, reruns) in table.items():
        print(f"| {name} | {count} | {things} | {refused} | {reruns} | {failed} |")
    print("\n| evil thing | times |\n|---|---|")
    for kind in sorted(counts, key=counts.get, reverse=True):
        print(f"| {kind} | {counts[kind]} |")
    failed = sum(row[3] for row in table.values())
    print(f"\nchaos: {sum(counts.values())} evil things in {sum(row[0] for row in table.values())} runs, {failed} failed; seed {seed}")


if __name__ == "__main__":
    sys.path.insert(0, runs.HERE)
    sys.exit(main())
