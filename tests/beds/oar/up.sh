#!/bin/bash
# OAR: server, a PostgreSQL of its own and one sshd that plays NODES nodes (127.0.20.1 ...), for tests; no systemd, no cgroups.
#   BED=/tmp/bed up.sh; $BED/as-user oarsub ...   (user tuttioar is made here: root may not submit)
# Settings: NODES=3 CORES=2 PGPORT=15432 SPORT=16666 (server) NPORT=16667 (the nodes' sshd) NET=127.0.20
# /etc/oar/oar.conf is at a fixed path: it is replaced while the bed is up. Exit code 77: cannot be had here; the reason is printed.
set -euo pipefail
. "$(dirname "$0")/../common.sh"
NODES=${NODES:-3} CORES=${CORES:-2} PGPORT=${PGPORT:-15432} SPORT=${SPORT:-16666} NPORT=${NPORT:-16667} NET=${NET:-127.0.20}
orig=/etc/oar/oar.conf.tutti-bed-orig  # beside it: $BED may be removed by others
need_root "OAR's server changes users"
need_packages oar-server oar-server-pgsql oar-node oar-user oar-user-pgsql openssh-server postgresql sudo
mkdir -p "$BED"/{log,pg,run} /run/sshd
chmod 755 "$BED"; chown postgres:postgres "$BED/pg"; touch "$BED/log/oar.log"; chown oar "$BED/log/oar.log"
# The user's shell reads no profile: this machine's may take long, or wait for a lock.
printf '#!/bin/sh\nexec /bin/bash --noprofile --norc "$@"\n' >"$BED/shell"; chmod +x "$BED/shell"
mkdir -p "$BED/home"
id tuttioar >/dev/null 2>&1 || useradd -M tuttioar
usermod -d "$BED/home" -s "$BED/shell" tuttioar; chown tuttioar: "$BED/home"
echo tuttioar >"$BED/user"
printf '#!/bin/sh\nexec runuser -u tuttioar -- "$@"\n' >"$BED/as-user"; chmod +x "$BED/as-user"

postgres=$(ls -d /usr/lib/postgresql/*/bin | sort -V | tail -n 1)
pg() { (cd / && setpriv --reuid=postgres --regid=postgres --clear-groups env -i PATH="$postgres:/usr/bin:/bin" LANG=C.UTF-8 HOME=/tmp "$@"); }
[ -s "$BED/pg/data/PG_VERSION" ] ||
  pg initdb -D "$BED/pg/data" -A trust -U postgres -E UTF8 --locale=C.UTF-8 --no-sync >"$BED/log/initdb.log" 2>&1
alive "$BED/pg/data/postmaster.pid" ||
  pg pg_ctl -D "$BED/pg/data" -l "$BED/pg/pg.log" -w start \
    -o "-p $PGPORT -c listen_addresses=127.0.0.1 -c unix_socket_directories=$BED/pg -c fsync=off" </dev/null >/dev/null 2>&1

[ -e "$orig" ] || cp -p /etc/oar/oar.conf "$orig"
sed -e "s/^DB_TYPE=.*/DB_TYPE=\"Pg\"/; s/^DB_HOSTNAME=.*/DB_HOSTNAME=\"127.0.0.1\"/; s/^DB_PORT=.*/DB_PORT=\"$PGPORT\"/" \
  -e "s/^DB_BASE_PASSWD=.*/DB_BASE_PASSWD=\"oar\"/; s/^DB_BASE_PASSWD_RO=.*/DB_BASE_PASSWD_RO=\"oar_ro\"/" \
  -e "s/^JOB_RESOURCE_MANAGER_PROPERTY_DB_FIELD/#&/; s/^JOB_RESOURCE_MANAGER_FILE/#&/; s/^CPUSET_PATH/#&/" \
  -e "s/^LOG_LEVEL=.*/LOG_LEVEL=\"3\"/; s#^LOG_FILE=.*#LOG_FILE=\"$BED/log/oar.log\"#; s/^SERVER_PORT=.*/SERVER_PORT=\"$SPORT\"/" \
  -e "s/-p 6667/-p $NPORT/; s/^SCHEDULER_JOB_SECURITY_TIME=.*/SCHEDULER_JOB_SECURITY_TIME=\"1\"/; s/^FINAUD_FREQUENCY=.*/FINAUD_FREQUENCY=\"30\"/" \
  "$orig" >/etc/oar/oar.conf
chown oar:root /etc/oar/oar.conf; chmod 600 /etc/oar/oar.conf
pg psql -h 127.0.0.1 -p "$PGPORT" -U postgres -Atc "select 1 from pg_database where datname='oar'" | grep -q 1 ||
  timeout 60 oar-database --create --db-admin-user=postgres --db-admin-pass=x --force-yes >"$BED/log/database.log" 2>&1

# the nodes: one sshd on all of 127/8 (deprecated lines of the package's sshd_config left out)
sed -e "s/^Port.*/Port $NPORT/; /UsePrivilegeSeparation/d; /^KeepAlive/d; /ListenAddress/d" /etc/oar/sshd_config >"$BED/sshd_config"
for ((n = 1; n <= NODES; n++)); do echo "ListenAddress $NET.$n" >>"$BED/sshd_config"; done
alive "$BED/run/sshd.pid" || clean /usr/sbin/sshd -f "$BED/sshd_config" -o PidFile="$BED/run/sshd.pid" -E "$BED/log/sshd.log"
alive /var/run/oar-server.pid || clean setsid /usr/sbin/oar-server
listens() { ss -ltn | grep -q ":$SPORT "; }
within 60 listens || { tail -n 5 "$BED/log/oar.log"; skip "oar bed NOT up: the server does not listen"; }
have=$(oarnodes -s 2>/dev/null | grep -cE ': (Alive|Suspected|Absent|Dead)' || true)
if [ "${have:-0}" = 0 ]; then
  oarproperty -a mem_core >>"$BED/log/nodes.log" 2>&1  # MiB a core
  for ((n = 1; n <= NODES; n++)); do
    for ((c = 0; c < CORES; c++)); do oarnodesetting -a -h "$NET.$n" -p cpuset=$c -p mem_core=2000 >>"$BED/log/nodes.log" 2>&1; done
  done
fi
all_up() { n=$(timeout 20 oarnodes -s 2>/dev/null | grep -c ': Alive' || true); [ "$n" = "$((NODES * CORES))" ]; }
within 120 all_up && { echo "oar bed up: $NODES nodes, $n resources"; exit 0; }
tail -n 5 "$BED/log/oar.log"; skip "oar bed NOT up: $n of $((NODES * CORES)) resources alive"
