#!/usr/bin/env python3
"""A strict stand-in for PBS, Moab and LSF, none of which can be had from Debian.

  scheduler.py BED COMMAND ARGS...      COMMAND: qsub qstat qdel qrerun msub checkjob canceljob mjobctl bsub bjobs bkill brequeue
  scheduler.py BED node-down TASK       the node of a running task loses its power
  scheduler.py BED tasks STATE          the ids of the tasks in a state: queued, running, ended

It reads the script as the real one does (directives up to the first command, unknown ones refused), runs a copy of it in
the background (the bed's daemon does, see up.sh) in a session of its own, in the environment and folder the real one would give it, and kills it at its
walltime. BED/conduct.json makes it misbehave; all keys are optional:

  slots        tasks that run at once (default 8)
  lag_s        a new job is unknown to queries for so long
  lose         the first N tasks vanish: they never run and queries do not know them
  preempt_s    every task is ended by the scheduler after so long, the first `preempt_times` ones (default 1)
  fail_queries the first N queries fail
  banner       true: odd lines around every answer
  bad_json     true: qstat's JSON is broken by a quote, as a real one's can be
"""
import fcntl, json, os, re, shlex, signal, subprocess, sys, time

BED, COMMAND, ARGS = sys.argv[1], os.path.basename(sys.argv[2]), sys.argv[3:]
JOBS = os.path.join(BED, "jobs")
RUNNING = ("running", "requeued", "cancelled", "node_down")  # states of a task that holds a slot
LIMIT_MB, QUEUES, ACCOUNTS, CPUS = 4000, {"batch", "gpu"}, {"project1"}, 8


def conduct(key, default=None):
    try:
        with open(os.path.join(BED, "conduct.json")) as f:
            return json.load(f).get(key, default)
    except FileNotFoundError:
        return default


class Locked:
    """Everything that reads and writes state holds this."""

    def __enter__(self):
        self.f = open(os.path.join(BED, "lock"), "a")
        fcntl.flock(self.f, fcntl.LOCK_EX)

    def __exit__(self, *_):
        self.f.close()


def load(task):
    try:
        with open(os.path.join(JOBS, task + ".json")) as f:
            return json.load(f)
    except FileNotFoundError:
        return None


def save(job):
    path = os.path.join(JOBS, job["task"] + ".json")
    with open(path + ".new", "w") as f:
        json.dump(job, f)
    os.rename(path + ".new", path)


def counter(name, step=1):
    path = os.path.join(BED, name)
    n = int(open(path).read()) if os.path.exists(path) else 0
    with open(path + ".new", "w") as f:  # its caller may be killed here
        f.write(str(n + step))
    os.rename(path + ".new", path)
    return n


def fail(text, code):
    print(text, file=sys.stderr)
    sys.exit(code)


def say(text):
    if conduct("banner"):
        print("*** Welcome to the cluster. Maintenance on day 31. ***\nJob 99 is nice <77>")
    print(text)


# ---- reading scripts -------------------------------------------------------------------------------------------------


def directives(script, prefix):
    """The words after PREFIX, up to the first line that is a command."""
    lines = script.split("\n")
    if not lines[0].startswith("#!"):
        fail("script has no interpreter line", 1)
    found = []
    for line in lines[1:]:
        if line.startswith(prefix):
            found.append(line[len(prefix):].strip())
        elif line.strip() and not line.startswith("#"):
            break
    if not found:
        fail("no directives in the script", 1)
    return found


def megabytes(text):
    m = re.fullmatch(r"(\d+)(b|kb|mb|gb|tb)", text.lower())
    if not m:
        return None
    return int(m[1]) * {"b": 2**-20, "kb": 2**-10, "mb": 1, "gb": 2**10, "tb": 2**20}[m[2]]


def parse_pbs(script, arrays):
    say_bad = lambda: fail("qsub: Illegal attribute or resource value", 162)
    spec = {"name": "script", "out": None, "err": None, "walltime": 3600, "tasks": [None]}
    for line in directives(script, "#PBS"):
        option, _, value = line.partition(" ")
        value = value.strip()
        if option == "-N":
            if not re.fullmatch(r"[A-Za-z+_][\w.+-]{0,229}", value):
                fail("qsub: illegal -N value", 1)
            spec["name"] = value
        elif option == "-q":
            if value not in QUEUES:
                fail("qsub: Unknown queue", 170)
        elif option == "-A":
            if value not in ACCOUNTS:
                fail("qsub: Invalid account for job: " + value, 1)
        elif option in ("-e", "-o"):
            spec["err" if option == "-e" else "out"] = value
        elif option == "-v":  # names of variables that travel; values with commas would need quoting
            for name in value.split(","):
                if not re.fullmatch(r"[\w.]+", os.environ.get(name, "")):
                    fail("qsub: cannot export " + name, 1)
                spec.setdefault("env", {})[name] = os.environ[name]
        elif option == "-J":
            m = re.fullmatch(r"(\d+)-(\d+)", value)
            if not arrays or not m or int(m[1]) >= int(m[2]):
                fail("qsub: illegal -J value", 1)
            spec["tasks"] = list(range(int(m[1]), int(m[2]) + 1))
        elif option == "-l" and value.startswith("walltime="):
            m = re.fullmatch(r"(?:(\d+):)?(?:(\d+):)?(\d+)", value[9:])
            if not m:
                say_bad()
            parts = [int(p) for p in value[9:].split(":")]
            spec["walltime"] = sum(p * 60**i for i, p in enumerate(reversed(parts)))
        elif option == "-l" and value.startswith("select="):
            m = re.fullmatch(r"(\d+):ncpus=(\d+):mem=(\w+)", value[7:])
            if not m or megabytes(m[3]) is None:
                say_bad()
            if int(m[2]) > CPUS or megabytes(m[3]) > LIMIT_MB:
                fail("qsub: Job violates queue and/or server resource limits", 188)
        else:
            fail("qsub: invalid option -- '%s'\nusage: qsub [-a date_time] [-A account_string] ..." % option.lstrip("-"), 2)
    return spec


def parse_lsf(script):
    spec = {"name": "", "out": None, "err": None, "walltime": 3600, "tasks": [None]}
    for line in directives(script, "#BSUB"):
        words = shlex.split(line)
        if len(words) != 2:
            fail("bsub: bad option line: %s. Job not submitted." % line, 255)
        option, value = words
        if option == "-J":
            m = re.fullmatch(r"([^\[\]]+)(?:\[(\d+)-(\d+)\])?", value)
            if not m:
                fail("Bad job name <%s>. Job not submitted." % value, 255)
            spec["name"] = m[1]
            if m[2]:
                spec["tasks"] = list(range(int(m[2]), int(m[3]) + 1))
                if spec["tasks"][0] < 1:
                    fail("Bad array index. Job not submitted.", 255)
        elif option in ("-e", "-o"):
            spec["err" if option == "-e" else "out"] = value
        elif option == "-q":
            if value not in QUEUES:
                fail("%s: No such queue. Job not submitted." % value, 255)
        elif option == "-P":
            if value not in ACCOUNTS:
                fail("Project %s is not valid. Job not submitted." % value, 255)
        elif option == "-n":
            if not value.isdigit() or int(value) > CPUS:
                fail("Too many processors requested. Job not submitted.", 255)
        elif option == "-M":
            if not value.isdigit():
                fail("Bad memory limit. Job not submitted.", 255)
            if int(value) > LIMIT_MB * 1024:  # no LSF_UNIT_FOR_LIMITS: KB
                fail("MEMLIMIT: Cannot exceed queue's hard limit(s). Job not submitted.", 255)
        elif option == "-R":
            if not re.fullmatch(r"(span\[hosts=1\]|rusage\[mem=\d+\])", value):
                fail("Bad resource requirement syntax. Job not submitted.", 255)
        elif option == "-W":
            m = re.fullmatch(r"(?:(\d+):)?(\d+)", value)
            if not m:
                fail("Bad run limit. Job not submitted.", 255)
            spec["walltime"] = (int(m[1] or 0) * 60 + int(m[2])) * 60
        else:
            fail("%s: illegal option. Job not submitted." % option, 255)
    return spec


# ---- running ---------------------------------------------------------------------------------------------------------


def session_pids(sid):
    pids = []
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            with open("/proc/%s/stat" % name) as f:
                fields = f.read().rsplit(")", 1)[1].split()
            if int(fields[3]) == sid and fields[0] != "Z":
                pids.append(int(name))
        except (OSError, IndexError):
            pass
    return pids


def kill_session(sid, sig):
    for pid in session_pids(sid):
        try:
            os.kill(pid, sig)
        except ProcessLookupError:
            pass


def wait_for_slot(task):
    """Queued until there is a slot; None: cancelled meanwhile."""
    while True:
        with Locked():
            job = load(task)
            if job["state"] == "cancelled":
                job.update(state="ended", exit=271, ended_by="cancelled", ended=time.time())
                save(job)
                return None
            running = sum(1 for n in os.listdir(JOBS) if n.endswith(".json") and (load(n[:-5]) or {}).get("state") in RUNNING)
            if running < conduct("slots", 8):
                job.update(state="running", started=time.time())
                save(job)
                return job
        time.sleep(0.1)


def run_once(task, job):
    """One life of a task, up to its end; returns its exit code and who ended it."""
    preempt = None
    if conduct("preempt_s"):
        with Locked():
            if counter("preempted") < conduct("preempt_times", 1):
                preempt = conduct("preempt_s")
    with open(job["out"], "ab") as out, open(job["err"], "ab") as err:
        child = subprocess.Popen([job["shell"], job["script"]], cwd=job["cwd"], env=job["env"], stdin=subprocess.DEVNULL,
                                 stdout=out, stderr=err, start_new_session=True)
    ended_by, killed_at = "", 0
    while child.poll() is None or (killed_at and session_pids(child.pid)):
        time.sleep(0.05)
        now = time.time()
        wanted = load(task)["state"]
        if not ended_by:
            if wanted != "running":
                ended_by = wanted  # cancelled, requeued, node_down
            elif now - job["started"] > job["walltime"]:
                ended_by = "walltime"
            elif preempt and now - job["started"] > preempt:
                ended_by = "preempted"
            if ended_by:
                killed_at = now
                kill_session(child.pid, signal.SIGKILL if ended_by == "node_down" else signal.SIGTERM)
        if ended_by and now - killed_at > 3:
            kill_session(child.pid, signal.SIGKILL)
    kill_session(child.pid, signal.SIGKILL)  # a job's end is the end of all it started
    code = child.returncode
    code = 256 - code if code < 0 else code
    return (271 if ended_by and code == 0 else code), ended_by


def run_task(task):
    """The life of one task, in a process of its own: waits for a slot, runs the script, notes how it ended."""
    while (job := wait_for_slot(task)) is not None:
        code, ended_by = run_once(task, job)
        with Locked():
            job = load(task)
            if ended_by == "requeued" and job["state"] == "requeued":
                job["state"] = "queued"  # the same job, once more
                save(job)
                continue
            job.update(state="ended", exit=code, ended_by=ended_by, ended=time.time())
            return save(job)


def submit(kind, spec, script):
    with Locked():
        number = counter("number") + 1
        tasks = []
        for index in spec["tasks"]:
            task = str(number) if index is None else "%d[%d]" % (number, index)
            copy = os.path.join(BED, "spool", task + ".sh")
            with open(copy, "w") as f:
                f.write(script)
            base = {"HOME": BED, "LANG": "C", "LOGNAME": "root", "SHELL": "/bin/sh", "PATH": BED + "/bin:/usr/bin:/bin"}
            if kind == "lsf":  # exports the environment of the submission
                env = dict(os.environ, LSB_JOBID=str(number), LSB_JOBINDEX=str(index or 0))
            else:
                env = dict(base, **spec.get("env", {}), PBS_JOBID=pbs_id(task), PBS_O_WORKDIR=os.getcwd(), PBS_ENVIRONMENT="PBS_BATCH")
                if index is not None:
                    env["PBS_ARRAY_INDEX"] = str(index)
            logs = {}
            for key, letter in (("out", "o"), ("err", "e")):
                path = spec[key] or "/dev/null"
                if kind == "lsf":
                    path = path.replace("%J", str(number)).replace("%I", str(index or 0))
                elif path.endswith("/"):
                    path += "%s.%s%d%s" % (spec["name"], letter, number, "" if index is None else ".%d" % index)
                logs[key] = path
            job = dict(task=task, index=index, kind=kind, state="queued", submitted=time.time(), walltime=spec["walltime"], script=copy,
                       cwd=os.getcwd() if kind == "lsf" else BED, env=env, exit=None, ended_by="", shell="/bin/bash",
                       submitted_as="Moab." + task if COMMAND == "msub" else pbs_id(task), **logs)
            if counter("submitted") < conduct("lose", 0):
                continue
            save(job)
            tasks.append(task)
    for task in tasks:
        open(os.path.join(BED, "new", task), "w").close()
    return number


def daemon():
    """Starts what was submitted. Jobs are its children: whoever submitted them may end, or be ended with all that it had started."""
    children = []
    while os.path.isdir(os.path.join(BED, "new")):
        for task in sorted(os.listdir(os.path.join(BED, "new"))):
            os.remove(os.path.join(BED, "new", task))
            children.append(subprocess.Popen([sys.executable, os.path.abspath(__file__), BED, "run-task", task], stdin=subprocess.DEVNULL,
                                             start_new_session=True, cwd="/"))
        children = [child for child in children if child.poll() is None]
        time.sleep(0.05)


def order(task, state, of=("queued", "running")):
    """Asks for the end of a task, or of all tasks of an array. False: no such job."""
    with Locked():
        found = False
        for name in os.listdir(JOBS):
            if name == task + ".json" or name.startswith(task + "["):
                found = True
                job = load(name[:-5])
                if job and job["state"] in of:
                    job["state"] = state
                    save(job)
        return found


def known(task):
    job = load(task)
    if job is None or time.time() - job["submitted"] < conduct("lag_s", 0):
        return None
    return job


def query_may_fail():
    with Locked():
        if counter("queries") < conduct("fail_queries", 0):
            fail("cannot connect to server fake (errno=15034)", 1)


# ---- the commands ----------------------------------------------------------------------------------------------------


def pbs_id(task):
    return task + ".fake"


def qsub():
    if len(ARGS) != 1 or not os.path.isfile(ARGS[0]):
        fail("qsub: script file:: No such file or directory", 1)
    script = open(ARGS[0]).read()
    spec = parse_pbs(script, arrays=COMMAND == "qsub")
    number = submit("pbs", spec, script)
    if COMMAND == "msub":
        say("\nMoab.%d" % number)
    else:
        say(pbs_id("%d%s" % (number, "[]" if spec["tasks"][0] is not None else "")))


def qstat():
    query_may_fail()
    as_json = "-F" in ARGS
    ids = [a for a in ARGS if a[0].isdigit()]
    answers, missing = {}, []
    for full in ids:
        job = known(full.split(".")[0])
        if job is None:
            missing.append(full)
            continue
        letter = {"queued": "Q", "running": "R", "ended": "F"}.get(job["state"], "E")
        if job["state"] == "ended" and job["index"] is not None:
            letter = "X"
        answers[full] = {"Job_Name": "x", "job_state": letter}
        if letter == "Q":
            answers[full]["comment"] = "Not Running: Insufficient amount of resource: ncpus"
        if job["exit"] is not None:
            answers[full]["Exit_status"] = job["exit"]
            if job["ended_by"]:
                answers[full]["comment"] = "Job was ended: " + job["ended_by"]
    if as_json:
        text = json.dumps({"timestamp": int(time.time()), "pbs_version": "fake", "Jobs": answers})
        say(text.replace('"Job_Name": "x"', '"Job_Name": "a "quoted" name"') if conduct("bad_json") else text)
    else:
        for full, job in answers.items():
            print("Job Id: " + full)
            for key, value in job.items():
                print("    %s = %s" % (key, value))
            print()
    for full in missing:
        print("qstat: Unknown Job Id " + full, file=sys.stderr)
    sys.exit(153 if missing else 0)


def checkjob():
    query_may_fail()
    number = ARGS[0].replace("Moab.", "")
    job = known(number)
    if job is None:
        fail("ERROR:  invalid job specified (%s)" % ARGS[0], 1)
    state = {"queued": "Idle", "ended": "Completed"}.get(job["state"], "Running")
    if state == "Completed" and job["ended_by"]:
        state = "Removed"
    say("job %s\n\nAName: x\nState: %s" % (ARGS[0], state))
    if state == "Completed":
        print("Completion Code: %d  Time: Sun Nov 15 12:00:00" % job["exit"])
    print("Creds:  user:root  group:root\nWallTime:   00:00:00 of 00:30:00")
    if state == "Idle":
        print("NOTE:  job cannot run  (insufficient available procs:  0 available)")


def remove():
    code = 0
    for full in ARGS:
        task = full.replace("Moab.", "").split(".")[0].replace("[]", "")
        if order(task, "cancelled"):
            if COMMAND == "bkill":
                print("Job <%s> is being terminated" % full)
            if COMMAND == "canceljob":
                print("job '%s' cancelled" % full)
            continue
        code = 1
        print({"qdel": "qdel: Unknown Job Id %s", "bkill": "Job <%s>: No matching job found",
               "canceljob": "ERROR:  invalid job specified (%s)"}[COMMAND] % full, file=sys.stderr)
    sys.exit(code)


def requeue():
    """qrerun ID..., mjobctl -R ID, brequeue ID...: the job goes back into the queue under its own id."""
    words = ARGS
    if COMMAND == "mjobctl":
        if ARGS[:1] != ["-R"]:
            fail("mjobctl: only -R is played here", 1)
        words = ARGS[1:]
    for full in words:
        task = full.replace("Moab.", "").split(".")[0]
        if not order(task, "requeued", of=("running",)):
            fail("%s: no such job: %s" % (COMMAND, full), 1)


def tasks():
    for name in sorted(os.listdir(JOBS)):
        job = load(name[:-5]) if name.endswith(".json") else None
        if job and job["state"] == ARGS[0]:
            print(job["task"] if job["kind"] == "lsf" else job["submitted_as"])


def bsub():
    script = open(ARGS[0]).read() if ARGS else sys.stdin.read()
    spec = parse_lsf(script)
    say("Job <%d> is submitted to default queue <batch>." % submit("lsf", spec, script))


def bjobs():
    query_may_fail()
    if ARGS[:3] != ["-a", "-noheader", "-o"]:
        fail("bjobs: illegal option", 255)
    m = re.fullmatch(r"(.*) delimiter='(.)'", ARGS[3])
    if not m:
        fail("bjobs: bad output format", 255)
    code = 0
    for full in ARGS[4:]:
        job = known(full)
        if job is None:
            print("Job <%s> is not found" % full, file=sys.stderr)
            code = 255
            continue
        stat = {"queued": "PEND", "ended": "DONE" if job["exit"] == 0 else "EXIT"}.get(job["state"], "RUN")
        why = {"walltime": "TERM_RUNLIMIT: job killed after reaching LSF run time limit", "preempted": "TERM_PREEMPT: job killed after preemption",
               "cancelled": "TERM_OWNER: job killed by owner", "node_down": "TERM_REMOVE_HUNG_JOB: job removed from the LSF system"}.get(job["ended_by"], "-")
        values = {"jobid": full.split("[")[0], "jobindex": str(job["index"] or 0), "stat": stat,
                  "exit_code": str(job["exit"]) if stat == "EXIT" else "-", "exit_reason": why if stat == "EXIT" else "-",
                  "pend_reason": "New job is waiting for scheduling;" if stat == "PEND" else "-"}
        print(m[2].join(values[field] for field in m[1].split()))
    sys.exit(code)


def stop_all():
    """Ends every task of the bed; for down.sh."""
    names = [n[:-5] for n in os.listdir(JOBS) if n.endswith(".json")]
    for name in names:
        order(name, "cancelled", of=("queued", "running", "requeued"))
    deadline = time.time() + 20
    while time.time() < deadline and any((load(n) or {}).get("state") in ("queued", *RUNNING) for n in names):
        time.sleep(0.1)
    os.rename(os.path.join(BED, "new"), os.path.join(BED, "over"))  # the daemon's sign to end


{"qsub": qsub, "msub": qsub, "qstat": qstat, "checkjob": checkjob, "qdel": remove, "canceljob": remove, "bkill": remove, "bsub": bsub,
 "bjobs": bjobs, "qrerun": requeue, "mjobctl": requeue, "brequeue": requeue, "tasks": tasks, "daemon": daemon, "run-task": lambda: run_task(ARGS[0]),
 "node-down": lambda: order(ARGS[0].replace("Moab.", "").split(".")[0], "node_down", of=("running",)), "stop-all": stop_all}[COMMAND]()
