#!/bin/bash
# Three hosts h1..h3 to log in to: network, UTS and PID namespaces with an sshd each, on one machine.
#   BED=/tmp/bed up.sh; ssh -F $BED/ssh_config h1 hostname
# kill -9 $(cat $BED/run/h2.pid) pulls a host's plug; `ip link set tutv3 down` cuts its cable. Settings: HOSTS=3 NET=10.219.9
# NAME=tut (at most eight letters; what namespaces and links are called)
# Its users have a home of their own: a .bashrc may take long, and one that is killed at it may leave a lock behind.
# Exit code 77: cannot be had here; the reason is printed.
set -euo pipefail
. "$(dirname "$0")/../common.sh"
HOSTS=${HOSTS:-3} NET=${NET:-10.219.9} NAME=${NAME:-tut}
need_root "network namespaces"
need_packages openssh-server openssh-client iproute2
mkdir -p "$BED"/{keys,run,log,home} /run/sshd
chmod 700 "$BED/keys"; echo "$NAME" >"$BED/name"
[ -e "$BED/keys/id" ] || ssh-keygen -q -t ed25519 -N '' -C bed -f "$BED/keys/id"
[ -e "$BED/keys/host" ] || ssh-keygen -q -t ed25519 -N '' -C bed-host -f "$BED/keys/host"
cp "$BED/keys/id.pub" "$BED/keys/authorized_keys"; chmod 600 "$BED/keys/authorized_keys"
cat >"$BED/sshd_config" <<C
HostKey $BED/keys/host
AuthorizedKeysFile $BED/keys/authorized_keys
StrictModes no
UsePAM no
PermitRootLogin prohibit-password
PasswordAuthentication no
KbdInteractiveAuthentication no
MaxStartups 100
MaxSessions 100
UseDNS no
PrintMotd no
SetEnv HOME=$BED/home
C
echo "* $(cut -d' ' -f1,2 "$BED/keys/host.pub")" >"$BED/known_hosts"
{
  for ((i = 1; i <= HOSTS; i++)); do printf 'Host h%s\n  HostName %s.%s\n' "$i" "$NET" "$i"; done
  printf 'Host *\n  User root\n  IdentityFile %s/keys/id\n  IdentitiesOnly yes\n  UserKnownHostsFile %s/known_hosts\n' "$BED" "$BED"
  printf '  GlobalKnownHostsFile /dev/null\n  StrictHostKeyChecking yes\n  BatchMode yes\n  LogLevel ERROR\n  ConnectTimeout 5\n'
} >"$BED/ssh_config"
ip link show ${NAME}br0 >/dev/null 2>&1 || { ip link add ${NAME}br0 type bridge; ip addr add "$NET.254/24" dev ${NAME}br0; ip link set ${NAME}br0 up; }
for ((i = 1; i <= HOSTS; i++)); do
  if ! ip netns list | grep -qw "${NAME}h$i"; then
    ip netns add "${NAME}h$i"
    ip link add "${NAME}v$i" type veth peer name eth0 netns "${NAME}h$i"
    ip link set "${NAME}v$i" master ${NAME}br0 up
    ip -n "${NAME}h$i" link set lo up; ip -n "${NAME}h$i" addr add "$NET.$i/24" dev eth0; ip -n "${NAME}h$i" link set eth0 up
  fi
  ip link set "${NAME}v$i" up
  alive "$BED/run/h$i.pid" && continue
  # sshd is pid 1 of its namespace, so to kill unshare is to power the host off
  clean setsid ip netns exec "${NAME}h$i" unshare --uts --pid --fork --kill-child=KILL --mount-proc \
    sh -c "hostname h$i && exec /usr/sbin/sshd -D -f $BED/sshd_config -o Port=22 -o PidFile=none -E $BED/log/h$i.log" >/dev/null 2>&1 &  # the subshell, too, lets go of our output
  echo "$!" >"$BED/run/h$i.pid"
done
for ((i = 1; i <= HOSTS; i++)); do
  within 60 ssh -F "$BED/ssh_config" "h$i" true 2>/dev/null || { cat "$BED/log/h$i.log"; skip "ssh bed NOT up: h$i does not answer"; }
  # `clean ... &` is a subshell's pid: the host is its child
  p=$(cat "$BED/run/h$i.pid"); [[ $(readlink "/proc/$p/exe") == */unshare ]] || for c in $(cat /proc/"$p"/task/*/children); do echo "$c" >"$BED/run/h$i.pid"; done
done
echo "ssh bed up: $HOSTS hosts"
