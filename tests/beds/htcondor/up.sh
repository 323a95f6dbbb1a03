#!/bin/bash
# HTCondor: collector, negotiator, schedd and NODES startds on loopback, for tests. Debian 12 has no HTCondor, Debian 13 has; so it lives in a
# Debian 13 chroot (made once with debootstrap, some minutes, in $TUTTI_BED_CACHE, default .cache/htcondor of the source folder) in
# mount and PID namespaces of its own: its mounts and processes vanish with it.
#   BED=/tmp/bed up.sh; $BED/as-user condor_submit ...   (user tutticondor is made here: root may not submit)
# /tmp and the folders in BIND are the machine's own inside, at the same paths. PROGRAM: a program of this machine whose libraries jobs
# get in $BED/lib. Settings: NODES=3 CPUS=4 MEM=2048 PORT=19618. Exit code 77: cannot be had here; the reason is printed.
set -euo pipefail
. "$(dirname "$0")/../common.sh"
NODES=${NODES:-3} CPUS=${CPUS:-4} MEM=${MEM:-2048} PORT=${PORT:-19618}
source_folder=$(cd "$(dirname "$0")/../../.." && pwd)
cache=${TUTTI_BED_CACHE:-$source_folder/.cache/htcondor}
BIND=${BIND:-/$(echo "$source_folder" | cut -d/ -f2)}
R=$cache/root
need_root "chroot and namespaces"
need_packages debootstrap
mkdir -p "$BED"/{run,lib} "$cache"; chmod 755 "$BED"
if [ ! -e "$cache/made" ]; then
  [ "${TUTTI_BED_INSTALL:-1}" = 1 ] || skip "no chroot in $cache"
  rm -rf "$R"
  debootstrap --variant=minbase trixie "$R" >"$BED/debootstrap.log" 2>&1 || { tail -n 3 "$BED/debootstrap.log"; skip "debootstrap failed"; }
  printf '#!/bin/sh\nexit 101\n' >"$R/usr/sbin/policy-rc.d"; chmod +x "$R/usr/sbin/policy-rc.d"
  cp -r /etc/apt/apt.conf.d/. "$R/etc/apt/apt.conf.d/"
  chroot "$R" env DEBIAN_FRONTEND=noninteractive sh -c 'apt-get -qq update && apt-get -qq -y install --no-install-recommends minicondor procps && apt-get clean' \
    >>"$BED/debootstrap.log" 2>&1 || { tail -n 3 "$BED/debootstrap.log"; skip "cannot install HTCondor in the chroot"; }
  touch "$cache/made"
fi
id tutticondor >/dev/null 2>&1 || useradd -M -s /bin/bash tutticondor
usermod -d "$BED" tutticondor
echo tutticondor >"$BED/user"
sed -i '/^tutticondor:/d' "$R/etc/passwd" "$R/etc/group"
getent passwd tutticondor >>"$R/etc/passwd"; getent group "$(id -g tutticondor)" >>"$R/etc/group"
# libraries the program needs and the chroot has not, under the names it asks for
if [ -n "${PROGRAM:-}" ]; then
  ldd "$PROGRAM" | awk '$3 ~ /^\// {print $1, $3}' | while read -r name path; do
    [ -n "$(find "$R/usr/lib" -name "$name" -print -quit)" ] || cp -L "$path" "$BED/lib/$name"
  done
fi
for d in $BIND; do mkdir -p "$R$d"; done
mkdir -p "$R"/var/{lock,run,spool}/condor "$R"/var/lib/condor/cred_dir
alive "$BED/run/init.pid" || rm -rf "$R"/etc/condor/config.d/00-minicondor "$R"/var/spool/condor/* "$R"/var/log/condor/* "$R"/var/lib/condor/execute/*
{
  cat <<C
CONDOR_HOST = 127.0.0.1
NETWORK_INTERFACE = 127.0.0.1
BIND_ALL_INTERFACES = False
ENABLE_IPV6 = False
UID_DOMAIN = bed
FILESYSTEM_DOMAIN = bed
TRUST_UID_DOMAIN = True
SHARED_PORT_PORT = $PORT
COLLECTOR_HOST = \$(CONDOR_HOST):$PORT
use security:host_based
ALLOW_READ = *
ALLOW_WRITE = *
ALLOW_ADMINISTRATOR = *
ALLOW_DAEMON = *
ALLOW_NEGOTIATOR = *
SEC_DEFAULT_AUTHENTICATION = OPTIONAL
SEC_CLIENT_AUTHENTICATION_METHODS = FS
SEC_DEFAULT_AUTHENTICATION_METHODS = FS
SEC_DEFAULT_ENCRYPTION = OPTIONAL
BASE_CGROUP =
MOUNT_UNDER_SCRATCH =
STARTER_ALLOW_RUNAS_OWNER = True
START = True
SUSPEND = False
PREEMPT = False
KILL = False
WANT_SUSPEND = False
RUNBENCHMARKS = False
NUM_CPUS = $CPUS
MEMORY = $MEM
NUM_SLOTS_TYPE_1 = 1
SLOT_TYPE_1 = 100%
SLOT_TYPE_1_PARTITIONABLE = True
NEGOTIATOR_INTERVAL = 2
NEGOTIATOR_MIN_INTERVAL = 1
NEGOTIATOR_CYCLE_DELAY = 1
SCHEDD_INTERVAL = 2
SCHEDD_MIN_INTERVAL = 1
UPDATE_INTERVAL = 5
POLLING_INTERVAL = 1
CLAIM_WORKLIFE = 0
JOB_START_DELAY = 0
C
  printf 'DAEMON_LIST = MASTER, COLLECTOR, NEGOTIATOR, SCHEDD'
  for ((i = 1; i <= NODES; i++)); do printf ', NODE%s' "$i"; done
  for ((i = 1; i <= NODES; i++)); do
    printf '\nNODE%s = $(STARTD)\nNODE%s_ARGS = -f -local-name node%s\nNODE%s_LOG = $(LOG)/StartLog.node%s\n' "$i" "$i" "$i" "$i" "$i"
    printf 'node%s.STARTD_NAME = node%s\nnode%s.STARTD_LOG = $(LOG)/StartLog.node%s\n' "$i" "$i" "$i" "$i"
    printf 'node%s.EXECUTE = $(EXECUTE)/node%s\nnode%s.STARTD_HISTORY = $(SPOOL)/startd_history.node%s\n' "$i" "$i" "$i" "$i"
  done
} >"$R/etc/condor/config.d/99-bed"
for ((i = 1; i <= NODES; i++)); do mkdir -p "$R/var/lib/condor/execute/node$i"; done
ids=$(awk -F: '$1=="condor"{print $3 ":" $4}' "$R/etc/passwd")
chown -R "$ids" "$R"/var/{lock,run,spool,log}/condor "$R/var/lib/condor"; chmod 755 "$R"/var/lib/condor/execute{,/*} "$R/var/log/condor"
# as-user COMMAND...: in the pool's namespaces, in the same working folder, as the user; TUTTI_BED_SHIMS: a folder of commands to find first
cat >"$BED/as-user" <<C
#!/bin/sh
exec nsenter -t \$(cat $BED/run/init.pid) -m -p -r --wdns="\$PWD" /usr/bin/setpriv --reuid=$(id -u tutticondor) --regid=$(id -g tutticondor) --clear-groups \\
  /usr/bin/env -u LD_PRELOAD LD_LIBRARY_PATH=$BED/lib HOME=$BED USER=tutticondor LOGNAME=tutticondor \\
  "PATH=\${TUTTI_BED_SHIMS:+\$TUTTI_BED_SHIMS:}/usr/bin:/bin:/usr/sbin:/sbin" "\$@"
C
chmod +x "$BED/as-user"
if ! alive "$BED/run/init.pid"; then
  rm -f "$R"/var/lock/condor/* "$R"/var/run/condor/* 2>/dev/null || true
  # / must be a mount point in there, else condor_starter's private mounts fail
  clean setsid unshare --mount --pid --fork --kill-child=KILL --propagation private sh -c "
    mount --bind $R $R && mount --rbind /dev $R/dev && mount -t proc proc $R/proc
    for d in /tmp $BIND; do [ -d \$d ] && mount --bind \$d $R\$d; done
    exec chroot $R /usr/sbin/condor_master -f" >/dev/null 2>&1 &
  found() {
    local d
    for d in /proc/[0-9]*; do
      [[ $(readlink "$d/exe" 2>/dev/null) == */condor_master && $(readlink "$d/root" 2>/dev/null) == "$R" ]] || continue
      basename "$d" >"$BED/run/init.pid"; awk '/^PPid:/{print $2}' "$d/status" >"$BED/run/unshare.pid"
      return 0
    done
    return 1
  }
  within 60 found || { tail -n 5 "$BED/daemons.log"; skip "htcondor bed NOT up: its master did not start"; }
fi
all_up() {
  n=$(timeout 20 "$BED/as-user" condor_status -af Name 2>/dev/null | wc -l) || true
  s=$(timeout 20 "$BED/as-user" condor_status -schedd -af Name 2>/dev/null | wc -l) || true
  [ "$n" -ge "$NODES" ] && [ "$s" -ge 1 ]
}
within 180 all_up && { echo "htcondor bed up: $n slots"; exit 0; }
tail -n 5 "$R/var/log/condor/MasterLog"; skip "htcondor bed NOT up: $n slots, $s schedds"
