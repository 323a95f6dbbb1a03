"""The kinds of runs of a campaign. A run lives in a folder of its own, is started as often as it takes, and knows what its result
must be: the bytes of the same work undisturbed."""
import glob, itertools, os, shutil, signal, struct, subprocess, threading, time
import beds, machine

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
BIN = os.path.join(ROOT, os.environ.get("TUTTI_BUILD", "build"), "bin")
TUTTI = os.path.join(BIN, "tutti")
DAMAGE = ["byte flipped", "tail cut"]
MACHINE = ["clock jump", "slow fsync"]


class Run:
    kinds = []  # evil things that make sense here
    patience = 180  # seconds without any progress, after which it hangs
    gap = (0.1, 1.2)  # seconds between evil things
    weight = 4  # how often it is drawn, compared with others: less where a run takes minutes
    leave_seconds = 20  # until all its processes are gone
    alone = False  # nobody ends what stands still
    bed = None  # class of the bed it needs

    def __init__(self, folder, shim, bed=None):
        self.folder, self.shim, self.bed = folder, shim, bed
        self.out = os.path.join(folder, "out")
        self.numbers = os.path.join(folder, "shim")
        self.damaged, self.timers, self.stopped = [], [], []
        self.disk = self.scheduler = None
        self.hosts = []
        os.makedirs(os.path.join(folder, "tmp"))
        with open(self.numbers, "wb") as f:
            f.write(struct.pack("qq", 0, 0))

    # --- what kinds of runs differ in
    def prepare(self):
        """Before the first attempt."""

    def commands(self):
        """The programs of one attempt, started together."""
        raise NotImplementedError

    def result(self):
        """Bytes to compare; None: not there."""
        raise NotImplementedError

    def damageable(self):
        """Folders with journals and checkpoints."""
        return []

    def obey(self):
        """Does as the program said when it refused to go on with what is damaged."""

    def reruns(self):
        """How often items ran beyond once."""
        return 0

    def met(self):
        """Whether all know of each other. Before that, who stands still is waited for as long as the join timeout (five minutes)."""
        return True

    def left(self):
        """What is left outside of this machine's processes, in words: jobs in a queue."""
        return ""

    def clean(self):
        """After the last attempt: mounts, namespaces, beds."""

    # --- what they share
    def env(self):
        env = dict(os.environ, TMPDIR=os.path.join(self.folder, "tmp"), CHAOS_RUN=self.folder + "/", OMP_NUM_THREADS="1",
                   TUTTI_SECRET="between us", CHAOS_SHIM=self.numbers)
        if self.shim:
            env["LD_PRELOAD"] = self.shim
        return env

    def start(self, number):
        self.started = time.time()
        self.log = os.path.join(self.folder, f"attempt-{number}.log")
        with open(self.log, "ab") as log:
            return [subprocess.Popen(argv, cwd=self.folder, env=self.env(), stdin=subprocess.DEVNULL, stdout=log, stderr=log)
                    for argv in self.commands()]

    def progress(self):
        """Changes while the run gets on, however slow the machine is. Sizes, not times: heartbeats are no progress."""
        seen = []
        for at, _, names in os.walk(self.folder):
            for path in (os.path.join(at, name) for name in names):
                try:
                    seen.append((path, os.stat(path).st_size))
                except OSError:  # removed while we looked
                    pass
        return sorted(seen)

    def tell_shim(self, place, number):
        with open(self.numbers, "r+b") as f:
            f.seek(8 * place)
            f.write(struct.pack("q", number))

    def later(self, seconds, what):
        timer = threading.Timer(seconds, what)
        timer.daemon = True
        timer.start()
        self.timers.append((timer, what))

    def calm(self):
        """No evil thing lasts any longer."""
        for timer, what in self.timers:
            if timer.is_alive():
                timer.cancel()
                what()
        self.timers = []

    def wake(self):
        """Where nobody is there to end a worker that stands still (no driver, or a dead driver's job: its walltime would)."""
        for pid in self.stopped if self.alone else []:
            if pid in machine.processes(self.folder):
                machine.send(pid, signal.SIGCONT)

    def was_suspended(self):
        """Wakes a run of which nobody is left but who stands still: the others were killed later. It is suspended, and not dead."""
        workers = machine.of_role(self.folder, "worker")
        supervisors = {machine.parent(pid) for pid in workers}  # which only wait for their workers
        workers = [pid for pid in workers if pid not in supervisors]
        if not self.alone or not workers or not all(pid in self.stopped and machine.stands_still(pid) for pid in workers):
            return False
        self.wake()
        return True

    @staticmethod
    def ip(*words):
        return subprocess.run(["ip", *words], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode

    def temporary(self):
        found = [os.path.join(at, name) for at, _, names in os.walk(self.out) for name in names if ".tmp." in name]
        return sorted(os.listdir(os.path.join(self.folder, "tmp")) + found)

    def left_on_machine(self):
        """What is left after clean()."""
        return sorted([mount for mount in machine.mounts() if mount.startswith(self.folder + "/")] +
                      [host for host in self.hosts if os.path.exists("/run/netns/" + host)])


class Map(Run):
    items = 120
    workers = 3
    parallel = "env: local"
    force = False
    kinds = ["kill -9 worker", "SIGSTOP worker", "kill -9 driver", "SIGSTOP driver", "kill -9 item"] + DAMAGE + MACHINE

    def prepare(self):
        with open(os.path.join(self.folder, "conf.yaml"), "w") as f:
            f.write(f"parallel: {{{self.parallel}, n_workers: {self.workers}}}\n")
        self.ran = os.path.join(self.folder, "ran")

    def words(self):
        return [TUTTI, "map", "--config", "conf.yaml", "--items", str(self.items), "--output_dir", self.out,
                *(["--force"] if self.force else []), "--",
                # No pipe: where what feeds it is killed, the shell calls the item well done all the same.
                f"echo {{index}} >>{self.ran}; sleep 0.03; sha1sum <<E\nitem {{index}}\nE"]

    def commands(self):
        return [self.words()]

    def result(self):
        path = os.path.join(self.out, "results.jsonl")
        return open(path, "rb").read() if os.path.exists(path) else None

    def damageable(self):
        return [os.path.join(self.out, "journal")]

    def obey(self):
        self.force = True
        os.remove(self.ran)

    def reruns(self):
        if not os.path.exists(self.ran):
            return 0
        return sum(1 for _ in open(self.ran)) - self.items


class MapFull(Map):
    """On a small disk of its own, which gets full."""
    kinds = ["disk full", "disk full", "kill -9 worker", "kill -9 driver"]

    def prepare(self):
        super().prepare()
        self.disk = os.path.join(self.folder, "disk")
        os.makedirs(self.disk)
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", self.disk], check=True)
        self.out = os.path.join(self.disk, "out")

    def clean(self):
        for _ in range(50):
            if subprocess.run(["umount", self.disk], stderr=subprocess.DEVNULL).returncode == 0:
                return
            time.sleep(0.1)


class MapAsync(Map):
    alone = True
    kinds = ["kill -9 worker", "SIGSTOP worker", "kill -9 item"] + MACHINE

    def commands(self):
        words = self.words()
        words.insert(2, "--async")
        # bash, not sh: items are of sh, and only they are to be killed.
        return [["bash", "-c", '"$@" && exec "$TUTTI" wait "$OUT"', "bash", *words]]

    def env(self):
        return dict(super().env(), TUTTI=TUTTI, OUT=self.out)


class Scheduled:
    """With a scheduler whose commands may hang, lie and print garbage."""
    alone = True
    options = "options: {cores: 1, processes: 1, memory: 200MB, death_timeout: 10, walltime: '00:30:00'}"

    def wrap(self, commands):
        """Commands in front of the real ones that do as the file `evil` says."""
        self.scheduler = os.path.join(self.folder, "scheduler")
        os.makedirs(os.path.join(self.scheduler, "bin"))
        for real in commands:
            path = os.path.join(self.scheduler, "bin", os.path.basename(real))
            with open(path, "w") as f:
                f.write(f"""#!/bin/sh
case $(cat '{self.scheduler}/evil' 2>/dev/null) in
  hang) sleep 20 ;;
  garbage) head -c 300 /dev/urandom; exit 0 ;;
  lie) exit 0 ;;
  fail) echo "cannot connect to server" >&2; exit 1 ;;
esac
exec '{real}' "$@"
""")
            os.chmod(path, 0o755)

    def env(self):
        return dict(super().env(), PATH=os.path.join(self.scheduler, "bin") + ":" + os.environ["PATH"])


class Pbs(Scheduled):
    """A strict fake of PBS."""
    parallel = "env: pbs, " + Scheduled.options

    def prepare(self):
        super().prepare()
        self.fake = self.folder + "-bed"  # its daemon is no process of the run
        subprocess.run([os.path.join(ROOT, "tests/beds/fake_pbs/up.sh")], env=dict(os.environ, BED=self.fake), check=True,
                       stdout=subprocess.DEVNULL)
        self.wrap(glob.glob(os.path.join(self.fake, "bin", "*")))

    def clean(self):
        subprocess.run([os.path.join(ROOT, "tests/beds/fake_pbs/down.sh")], env=dict(os.environ, BED=self.fake),
                       stdout=subprocess.DEVNULL)


class MapPbs(Pbs, Map):
    kinds = ["odd scheduler", "odd scheduler", "kill -9 worker", "SIGSTOP worker", "kill -9 driver", "SIGSTOP driver"]


class MapPbsAsync(Pbs, MapAsync):
    kinds = ["odd scheduler", "kill -9 worker", "SIGSTOP worker"]


class Slurm(Scheduled):
    """A real Slurm of three nodes, whose daemons are killed, stopped and started again."""
    bed = beds.Slurm
    leave_seconds = 60
    patience = 400  # Slurm lets what it has put back into the queue wait for minutes
    parallel = "env: slurm, " + Scheduled.options
    daemons = ["kill -9 slurmd", "SIGSTOP slurmd", "kill -9 slurmctld", "SIGSTOP slurmctld", "node powered off", "odd scheduler"]

    def prepare(self):
        super().prepare()
        self.wrap(shutil.which(name) for name in ("sbatch", "squeue", "scancel", "scontrol", "sacct", "sinfo"))

    def env(self):
        return dict(super().env(), **self.bed.env())

    def left(self):
        """Jobs that a driver could not cancel (a dead one, or there was nobody to ask) find their run over, and end. Held ones do not:
        where a run has said that it may have left some, this does what its user is told to do."""
        if os.path.exists(os.path.join(self.out, ".tutti", "jobs.json")):
            done = subprocess.run([TUTTI, "cancel", self.out], env=self.env(), stdin=subprocess.DEVNULL, capture_output=True, text=True)
            if done.returncode != 0:
                return f"tutti cancel ended with {done.returncode}: {done.stderr}"
        end = time.monotonic() + 90
        while (jobs := self.bed.queue()) != [] and time.monotonic() < end:
            self.bed.hurry()
            time.sleep(0.5)
        return f"jobs are left in the queue: {jobs}" if jobs != [] else ""

    def clean(self):
        if self.bed.queue() != []:
            self.bed.empty()


class MapSlurm(Slurm, Map):
    kinds = Slurm.daemons + ["kill -9 worker", "SIGSTOP worker", "kill -9 driver", "SIGSTOP driver", "slow fsync"]


class MapSlurmAsync(Slurm, MapAsync):
    kinds = Slurm.daemons + ["kill -9 worker", "SIGSTOP worker"]


class MapSsh(Map):
    """Three hosts with an sshd each."""
    bed = beds.Ssh
    alone = True
    leave_seconds = 60
    kinds = ["kill -9 sshd", "SIGSTOP sshd", "kill -9 ssh", "host powered off", "cable pulled", "kill -9 worker", "SIGSTOP worker",
             "kill -9 driver", "SIGSTOP driver", "kill -9 item", "slow fsync"]

    def prepare(self):
        config = os.path.join(self.bed.folder, "ssh_config")
        self.parallel = (f"env: ssh, interface: {self.bed.interface()}, options: {{hosts: [h1, h2, h3], worker_options: "
                         f"{{death_timeout: 10}}, connect_options: {{config: {config}, keepalive_interval: 1}}}}")
        super().prepare()


class Train(Run):
    strategy = "ddp"
    weight = 2
    kinds = ["kill -9 rank", "SIGSTOP rank", "kill -9 agent", "SIGSTOP agent"] + DAMAGE + MACHINE
    restarts = "0"

    def rank_words(self):
        return [os.path.join(BIN, "trainer_rank"), "dir=" + self.out, "launched=1", "strategy=" + self.strategy, "steps=400",
                "batches=400", "checkpoints=1", "save_every=5", "dropout=0.1"]

    def commands(self):
        return [[TUTTI, "launch", "--nproc_per_node", "2", "--max_restarts", self.restarts, "--", *self.rank_words()]]

    def prepare(self):
        os.makedirs(self.out)

    def result(self):
        files = [os.path.join(self.out, f"final-{rank}.safetensors") for rank in (0, 1)]
        return b"".join(open(f, "rb").read() for f in files) if all(map(os.path.exists, files)) else None

    def damageable(self):
        return [os.path.join(self.out, "checkpoints")]

    def obey(self):
        shutil.rmtree(os.path.join(self.out, "checkpoints"))

    def met(self):
        files = glob.glob(os.path.join(self.out, "checkpoints", "*"))
        return any(os.path.getmtime(f) > self.started for f in files)


class TrainFsdp(Train):
    strategy = "fsdp"


class TwoHosts(Train):
    """`tutti launch` on two hosts made of network namespaces."""
    pairs = itertools.count()
    kinds = ["kill -9 rank", "SIGSTOP rank", "kill -9 agent", "network cut", "network cut"] + MACHINE
    restarts = "2"

    def prepare(self):
        super().prepare()
        self.hosts = [f"chaos{os.getpid()}-{number}{side}" for number in [next(self.pairs)] for side in "ab"]
        a, b = self.hosts
        for host in self.hosts:
            self.ip("netns", "add", host)
        self.ip("link", "add", "e0", "netns", a, "type", "veth", "peer", "name", "e0", "netns", b)
        for number, host in enumerate(self.hosts, 1):
            self.ip("-n", host, "addr", "add", f"10.231.9.{number}/24", "dev", "e0")
            self.ip("-n", host, "link", "set", "lo", "up")
            self.ip("-n", host, "link", "set", "e0", "up")

    def commands(self):
        return [["ip", "netns", "exec", host, TUTTI, "launch", "--nproc_per_node", "1", "--nnodes", "2", "--node_rank", str(node),
                 "--run_folder", self.out, "--join_timeout", "20", "--max_restarts", self.restarts, "--", *self.rank_words()]
                for node, host in enumerate(self.hosts)]

    def clean(self):
        for host in self.hosts:
            self.ip("netns", "del", host)


class Recipe(Run):
    """A whole small recipe: tokenizer, statistics, training with two ranks, decoding with two workers, scores."""
    kinds = ["kill -9 worker", "SIGSTOP worker", "kill -9 driver", "kill -9 rank", "SIGSTOP rank"] + MACHINE
    patience = 400
    gap = (1, 12)  # so that training and decoding meet some, too
    weight = 1
    archive = os.path.join(os.path.dirname(ROOT), "shared/data/mini_an4.tar.gz")
    exp = "exp/training_asr_transformer/"

    def prepare(self):
        self.recipe = os.path.join(self.folder, "recipe")
        shutil.copytree(os.path.join(ROOT, "recipes/mini_an4"), self.recipe, ignore=shutil.ignore_patterns("exp", "data"))

    def commands(self):
        conf = os.path.join(self.recipe, "conf")
        return [["env", "-C", self.recipe, TUTTI, "run", "--stages", "all", "--training_config", conf + "/training_asr_transformer.yaml",
                 "--inference_config", conf + "/inference.yaml", "--metrics_config", conf + "/metrics.yaml",
                 "create_dataset.source=" + self.archive, "num_device=2", "trainer.max_epochs=20", "parallel.n_workers=2"]]

    def result(self):
        files = [os.path.join(self.recipe, self.exp, name) for name in
                 ("checkpoints/valid.loss.ave_10best.safetensors", "inference/valid/hyp.scp", "inference/test/hyp.scp",
                  "inference/test/ref.scp", "inference/metrics.json")]
        return b"".join(open(f, "rb").read() for f in files) if all(map(os.path.exists, files)) else None


def available():
    """name -> class, and name -> why a kind is left out here."""
    root, left_out = os.geteuid() == 0, {}
    kinds = {"map local": Map, "map async": MapAsync, "map pbs": MapPbs, "map pbs async": MapPbsAsync}
    if root:
        kinds["map small disk"] = MapFull
    else:
        left_out["map small disk"] = "needs root (mount)"
    # What the daemons need is installed when their beds come up.
    real = {"map slurm": MapSlurm, "map slurm async": MapSlurmAsync, "map ssh": MapSsh}
    if root:
        kinds.update(real)
    else:
        left_out[", ".join(real)] = "needs root (daemons, namespaces)"
    if os.path.exists(os.path.join(BIN, "trainer_rank")):
        kinds.update({"train ddp": Train, "train fsdp": TrainFsdp})
        if root:
            kinds["two hosts"] = TwoHosts
        else:
            left_out["two hosts"] = "needs root (network namespaces)"
    else:
        left_out["train ddp, train fsdp, two hosts"] = "trainer_rank is not built"
    if os.path.exists(os.path.join(BIN, "tutti-run")) and os.path.exists(Recipe.archive):
        kinds["recipe"] = Recipe
    else:
        left_out["recipe"] = "tutti-run is not built or ../shared/data/mini_an4.tar.gz is not here"
    return kinds, left_out
