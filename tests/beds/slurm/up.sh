#!/bin/bash
# A Slurm cluster of virtual nodes on loopback, for tests: no systemd, no cgroups, nothing outside $BED.
#   BED=/tmp/bed up.sh          bring it up (idempotent); then `. $BED/env.sh` and sbatch, squeue ... talk to it
#   BED=/tmp/bed down.sh        stop it and remove $BED
# Settings: NODES=4 CPUS=4 MEM=4000 (MB a node) GPUS=2 (fake, a node) PORT=16817 NET=127.0.18 (node i is NET.i)
# Exit code 77: cannot be had here (not root, packages neither installed nor installable); the reason is printed.
set -euo pipefail
. "$(dirname "$0")/../common.sh"
NODES=${NODES:-4} CPUS=${CPUS:-4} MEM=${MEM:-4000} GPUS=${GPUS:-2} PORT=${PORT:-16817} NET=${NET:-127.0.18}
need_root "slurmd sets the job's uid"
need_packages slurmctld slurmd slurm-client munge

mkdir -p "$BED"/{etc,run,log,state,spool,dev,munge}
chmod 755 "$BED" "$BED"/{etc,run,log,spool,dev,munge}
chown munge:munge "$BED/munge"
if [ ! -s "$BED/munge/munge.key" ]; then
  (umask 077; dd if=/dev/urandom of="$BED/munge/munge.key" bs=128 count=1 status=none)
  chown munge:munge "$BED/munge/munge.key"; chmod 400 "$BED/munge/munge.key"
fi
for ((i = 0; i < GPUS; i++)); do  # clones of /dev/null play the GPUs
  [ -c "$BED/dev/nvidia$i" ] || mknod -m 666 "$BED/dev/nvidia$i" c 1 3
done
cat >"$BED/etc/slurm.conf" <<C
ClusterName=bed
SlurmctldHost=localhost(127.0.0.1)
SlurmctldPort=$PORT
CommunicationParameters=NoCtldInAddrAny
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket=$BED/munge/munge.sock
CredType=cred/munge
StateSaveLocation=$BED/state
SlurmdSpoolDir=$BED/spool/%n
SlurmctldPidFile=$BED/run/slurmctld.pid
SlurmdPidFile=$BED/run/slurmd.%n.pid
SlurmctldLogFile=$BED/log/slurmctld.log
SlurmdLogFile=$BED/log/slurmd.%n.log
MailProg=/bin/true
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU_Memory
DefMemPerCPU=100
SlurmdParameters=config_overrides
ReturnToService=2
MpiDefault=none
SwitchType=switch/none
JobAcctGatherType=jobacct_gather/linux
KillWait=3
MinJobAge=3600
SlurmctldTimeout=10
SlurmdTimeout=10
SchedulerType=sched/backfill
SchedulerParameters=bf_interval=1,sched_interval=1
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
JobCompType=jobcomp/filetxt
JobCompLoc=$BED/log/jobcomp.txt
AccountingStorageType=accounting_storage/none
$( ((GPUS > 0)) && echo GresTypes=gpu)
NodeName=node[1-$NODES] NodeHostname=node[1-$NODES] NodeAddr=$NET.[1-$NODES] Port=[$((PORT + 4))-$((PORT + 3 + NODES))] CPUs=$CPUS RealMemory=$MEM$( ((GPUS > 0)) && echo " Gres=gpu:fake:$GPUS") State=UNKNOWN
PartitionName=debug Nodes=ALL Default=YES MaxTime=INFINITE State=UP PriorityTier=10
PartitionName=low Nodes=ALL MaxTime=INFINITE State=UP PriorityTier=1
PartitionName=high Nodes=ALL MaxTime=INFINITE State=UP PriorityTier=100 PreemptMode=OFF
PartitionName=private Nodes=ALL MaxTime=INFINITE State=UP AllowAccounts=nobody
C
echo AutoDetect=off >"$BED/etc/gres.conf"
((GPUS == 0)) || printf 'NodeName=node[1-%s] Name=gpu Type=fake File=%s/dev/nvidia[0-%s]\n' "$NODES" "$BED" "$((GPUS - 1))" >>"$BED/etc/gres.conf"
# Without this slurmd 22.05 ends where /sys/fs/cgroup is not mounted, though nothing uses cgroups.
printf 'CgroupPlugin=cgroup/v1\nCgroupAutomount=no\n' >"$BED/etc/cgroup.conf"
printf 'export SLURM_CONF=%s/etc/slurm.conf\n' "$BED" >"$BED/env.sh"
export SLURM_CONF="$BED/etc/slurm.conf"

if ! alive "$BED/munge/munged.pid"; then
  rm -f "$BED"/munge/munge.sock* "$BED/munge/munged.pid"
  clean setpriv --reuid=munge --regid=munge --clear-groups munged --socket="$BED/munge/munge.sock" --key-file="$BED/munge/munge.key" \
    --log-file="$BED/munge/munged.log" --pid-file="$BED/munge/munged.pid" --seed-file="$BED/munge/munged.seed"
fi
alive "$BED/run/slurmctld.pid" || clean slurmctld
for ((i = 1; i <= NODES; i++)); do
  mkdir -p "$BED/spool/node$i"
  # a UTS namespace each, so that `hostname` in a job says nodeN
  alive "$BED/run/slurmd.node$i.pid" || clean unshare --uts sh -c "hostname node$i && exec slurmd -N node$i"
done
n=0
all_up() { n=$(timeout 10 sinfo -h -N -p debug -o '%N %t' 2>/dev/null | grep -cE ' (idle|alloc|mix)$') || n=0; [ "$n" = "$NODES" ]; }
within 90 all_up && { echo "slurm bed up: $NODES nodes"; exit 0; }
tail -n 5 "$BED/log/slurmctld.log"; skip "slurm bed NOT up: $n of $NODES nodes"
