#!/bin/bash
# Grid Engine: one qmaster and NODES exec hosts on this machine, for tests. Each exec host is a network and UTS namespace, since Grid
# Engine wants one host name and one address per execd. An SGE_ROOT of its own under $BED; marked lines in /etc/hosts while it is up.
#   BED=/tmp/bed up.sh; . $BED/env.sh; qsub, qstat, qdel, qacct ... talk to it
# Settings: NODES=3 SLOTS=4 GPUS=2 (a consumable "gpu") QPORT=16444 NET=10.219.7 (node i is NET.i, the master NET.254)
# Exit code 77: cannot be had here; the reason is printed.
set -euo pipefail
. "$(dirname "$0")/../common.sh"
NODES=${NODES:-3} SLOTS=${SLOTS:-4} GPUS=${GPUS:-2} QPORT=${QPORT:-16444} NET=${NET:-10.219.7}
need_root "network namespaces"
dpkg -s gridengine-common >/dev/null 2>&1 || ! command -v debconf-set-selections >/dev/null ||
  echo 'gridengine-common shared/gridengineconfig boolean false' | debconf-set-selections
need_packages msmtp-mta gridengine-master gridengine-exec gridengine-client iproute2  # msmtp-mta: else exim4 comes along
mkdir -p "$BED"; chmod 755 "$BED"
# 2. names and addresses
MASTER=tutgmaster; HOSTS=$(for ((i = 1; i <= NODES; i++)); do printf 'tutg%s ' "$i"; done)
grep -q '# tutti-sge-bed$' /etc/hosts || {
  echo "$NET.254 $MASTER # tutti-sge-bed"
  for ((i = 1; i <= NODES; i++)); do echo "$NET.$i tutg$i # tutti-sge-bed"; done
} >>/etc/hosts
ip link show tutgbr0 >/dev/null 2>&1 || { ip link add tutgbr0 type bridge; ip addr add "$NET.254/24" dev tutgbr0; ip link set tutgbr0 up; }
for ((i = 1; i <= NODES; i++)); do
  ip netns list | grep -qw "tutg$i" && continue
  ip netns add "tutg$i"
  ip link add "tutgv$i" type veth peer name eth0 netns "tutg$i"
  ip link set "tutgv$i" master tutgbr0 up
  ip -n "tutg$i" link set lo up; ip -n "tutg$i" addr add "$NET.$i/24" dev eth0; ip -n "tutg$i" link set eth0 up
done
# 3. an SGE_ROOT of our own, so that nothing of the package's default cell is used
R=$BED/root
cat >"$BED/env.sh" <<C
export SGE_ROOT=$R SGE_CELL=default SGE_ARCH=lx-amd64 SGE_QMASTER_PORT=$QPORT SGE_EXECD_PORT=$((QPORT+1))
C
. "$BED/env.sh"
if [ ! -e "$R/.made" ]; then
  rm -rf "$R"; mkdir -p "$R"/default/common "$R"/spool/{qmaster/job_scripts,execd} "$BED/jobs"; chmod 1777 "$BED/jobs"
  for d in bin lib utilbin; do mkdir -p "$R/$d"; ln -sfn /usr/lib/gridengine "$R/$d/lx-amd64"; done; ln -sfn /usr/share/gridengine/util "$R/util"
  cat >"$R/default/common/bootstrap" <<C
admin_user              sgeadmin
default_domain          none
ignore_fqdn             true
spooling_method         classic
spooling_lib            libspoolc
spooling_params         $R/default/common;$R/spool/qmaster
binary_path             /usr/sbin
qmaster_spool_dir       $R/spool/qmaster
security_mode           none
listener_threads        2
worker_threads          2
scheduler_threads       1
C
  echo "$MASTER" >"$R/default/common/act_qmaster"
  # first name: the one that counts; the rest are names of this machine that all mean the master
  echo "$MASTER $( { hostname; awk '$1=="127.0.0.1"{for(i=2;i<=NF;i++)print $i}' /etc/hosts; } | grep -vx "$MASTER" | sort -u | tr '\n' ' ')" >"$R/default/common/host_aliases"
  sed "s#^execd_spool_dir .*#execd_spool_dir $R/spool/execd#; s/^min_uid.*/min_uid 0/; s/^min_gid.*/min_gid 0/; s#^mailer.*#mailer /bin/true#; s#^gid_range.*#gid_range 20000-20200#
    s/^login_shells.*/login_shells csh/  # jobs run no login profile: this machine's may take long, or wait for a lock
    s/^load_report_time.*/load_report_time 00:00:03/; s/^max_unheard.*/max_unheard 00:00:15/; s/^reschedule_unknown.*/reschedule_unknown 00:00:05/
    s/^reporting_params.*/reporting_params accounting=true reporting=false flush_time=00:00:01 accounting_flush_time=00:00:00 joblog=false sharelog=00:00:00/" /usr/share/gridengine/default-configuration >"$BED/conf.global"
  chown -R sgeadmin:sgeadmin "$R"
  ( cd /; a() { setpriv --reuid=sgeadmin --regid=sgeadmin --clear-groups "$@"; }; L=/usr/lib/gridengine; U=/usr/share/gridengine/util/resources
    a $L/spoolinit classic libspoolc "$R/default/common;$R/spool/qmaster" init; a $L/spooldefaults configuration "$BED/conf.global"; a $L/spooldefaults complexes $U/centry
    a $L/spooldefaults usersets $U/usersets; a $L/spooldefaults managers root sgeadmin ) >"$BED/init.log" 2>&1
  touch "$R/.made"; fresh=1
fi
sge() { env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C.UTF-8 SGE_ROOT="$SGE_ROOT" SGE_CELL=default SGE_ARCH=lx-amd64 \
  SGE_QMASTER_PORT="$SGE_QMASTER_PORT" SGE_EXECD_PORT="$SGE_EXECD_PORT" "$@" </dev/null >>"$BED/daemons.log" 2>&1; }
# 4. qmaster
pid_of "$R/spool/qmaster/qmaster.pid" sge_qmaster >/dev/null || sge sge_qmaster
answers() { timeout 10 qconf -sh >/dev/null 2>&1; }
within 60 answers || { tail -n 5 "$BED/daemons.log"; skip "sge bed NOT up: the qmaster does not answer"; }
# 5. what it schedules (only into a new cell)
if [ "${fresh:-0}" = 1 ]; then
  c=$BED/conf; mkdir -p "$c"; q() { timeout 20 qconf "$@" >>"$BED/init.log" 2>&1 || { echo "qconf $* failed:"; tail -n 3 "$BED/init.log"; exit 1; }; }
  q -as "$MASTER"; for h in $HOSTS; do q -ah "$h" || true; [ "$h" = "$MASTER" ] || q -as "$h"; done
  qconf -ssconf | sed 's/^schedule_interval.*/schedule_interval 0:0:1/; s/^flush_submit_sec.*/flush_submit_sec 1/; s/^flush_finish_sec.*/flush_finish_sec 1/; s/^job_load_adjustments.*/job_load_adjustments NONE/' >"$c/sched"; q -Msconf "$c/sched"
  { qconf -sc; echo 'gpu gpu INT <= YES JOB 0 0'; } >"$c/complex"; q -Mc "$c/complex"
  for h in $HOSTS; do printf 'hostname %s\nload_scaling NONE\ncomplex_values gpu=%s,slots=%s\nuser_lists NONE\nxuser_lists NONE\nprojects NONE\nxprojects NONE\nusage_scaling NONE\nreport_variables NONE\n' "$h" "$GPUS" "$SLOTS" >"$c/host.$h"; q -Ae "$c/host.$h"; done
  printf 'group_name @allhosts\nhostlist %s\n' "$HOSTS" >"$c/hgrp"; q -Ahgrp "$c/hgrp"
  pe() { printf 'pe_name %s\nslots 999\nuser_lists NONE\nxuser_lists NONE\nstart_proc_args NONE\nstop_proc_args NONE\nallocation_rule %s\ncontrol_slaves TRUE\njob_is_first_task FALSE\nurgency_slots min\naccounting_summary FALSE\nqsort_args NONE\n' "$1" "$2" >"$c/pe.$1"; q -Ap "$c/pe.$1"; }
  pe smp '$pe_slots'; pe mpi '$round_robin'; pe fill '$fill_up'
  # a tmpdir for each host: they share one file system, and a finished slave task would else remove the job's TMPDIR under the others
  for h in $HOSTS; do mkdir -p "$BED/tmp/$h"; chmod 1777 "$BED/tmp/$h"; done
  cat >"$c/queue" <<C
qname all.q
hostlist @allhosts
seq_no 0
load_thresholds NONE
suspend_thresholds NONE
nsuspend 1
suspend_interval 00:05:00
priority 0
min_cpu_interval 00:05:00
processors UNDEFINED
qtype BATCH INTERACTIVE
ckpt_list NONE
pe_list smp mpi fill
rerun FALSE
slots $SLOTS
tmpdir /tmp$(for h in $HOSTS; do printf ',[%s=%s/tmp/%s]' "$h" "$BED" "$h"; done)
shell /bin/bash
prolog NONE
epilog NONE
shell_start_mode posix_compliant
starter_method NONE
suspend_method NONE
resume_method NONE
terminate_method NONE
notify 00:00:05
owner_list NONE
user_lists NONE
xuser_lists NONE
subordinate_list NONE
complex_values NONE
projects NONE
xprojects NONE
calendar NONE
initial_state default
$(for l in rt cpu fsize data stack core rss vmem; do echo "s_$l INFINITY"; echo "h_$l INFINITY"; done)
C
  q -Aq "$c/queue"
fi
# 6. exec hosts
for ((i = 1; i <= NODES; i++)); do
  pid_of "$R/spool/execd/tutg$i/execd.pid" sge_execd >/dev/null || sge ip netns exec "tutg$i" unshare --uts sh -c "hostname tutg$i && exec sge_execd"
done
want=$(wc -w <<<"$HOSTS")
all_up() { n=$(timeout 10 qstat -f 2>/dev/null | awk '/^all.q@/ && $4!="-NA-" && $6==""' | wc -l); [ "$n" = "$want" ]; }
within 90 all_up && { echo "sge bed up: $n exec hosts"; exit 0; }
timeout 10 qstat -f; tail -n 5 "$R"/spool/qmaster/messages "$R"/spool/execd/*/messages; skip "sge bed NOT up: $n of $want"
