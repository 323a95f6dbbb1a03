# Sourced by the beds' scripts. $BED is the folder everything of a bed lives in.
: "${BED:?set BED to a folder of its own}"
PATH=/usr/sbin:/usr/bin:/sbin:/bin:$PATH
TUTTI_PYTHON=${TUTTI_PYTHON:-/usr/bin/python3}

# A bed that cannot be had is no failure, except where TUTTI_BEDS_REQUIRED=1 says that it can be had.
skip() {
  [ "${TUTTI_BEDS_REQUIRED:-0}" = 1 ] && { echo "required, but: $*"; exit 1; }
  echo "skipped: $*"; exit 77
}
need_root() { [ "$(id -u)" = 0 ] || skip "needs root ($1)"; }

# Installs what is missing, unless TUTTI_BED_INSTALL=0: then the bed is skipped.
need_packages() {
  local p missing=()
  for p in "$@"; do dpkg -s "$p" >/dev/null 2>&1 || missing+=("$p"); done
  [ ${#missing[@]} = 0 ] && return 0
  [ "${TUTTI_BED_INSTALL:-1}" = 1 ] || skip "not installed: ${missing[*]}"
  # keep the packages from starting daemons of their own
  [ -e /usr/sbin/policy-rc.d ] || { printf '#!/bin/sh\nexit 101\n' >/usr/sbin/policy-rc.d; chmod +x /usr/sbin/policy-rc.d; }
  mkdir -p "$BED"
  apt-get -qq -o DPkg::Lock::Timeout=300 update >"$BED/apt.log" 2>&1 || true
  DEBIAN_FRONTEND=noninteractive apt-get -qq -y -o DPkg::Lock::Timeout=300 -o Dpkg::Use-Pty=0 install --no-install-recommends "${missing[@]}" \
    >>"$BED/apt.log" 2>&1 || { tail -n 3 "$BED/apt.log"; skip "cannot install: ${missing[*]}"; }
}

# within SECONDS COMMAND...: tries until the command succeeds; 1 when it never did.
within() {
  local end=$((SECONDS + $1)); shift
  until "$@"; do ((SECONDS < end)) || return 1; sleep 0.1; done
}
# Daemons get a clean environment (the caller's would leak into every job) and none of its descriptors
# (whoever waits for the end of up.sh's output would wait for the daemons).
clean() { env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C.UTF-8 ${SLURM_CONF:+SLURM_CONF="$SLURM_CONF"} "$@" </dev/null >>"$BED/daemons.log" 2>&1; }

# Does a pid file name a live process? Not kill -0: a zombie answers that; it has no exe.
alive() { local p; p=$(head -n 1 "$1" 2>/dev/null) && [ -n "$p" ] && [ -n "$(readlink "/proc/$p/exe")" ]; }
# The pid in a file, only if that process lives and is the program we expect: pids are reused.
pid_of() { local p; p=$(head -n 1 "$1" 2>/dev/null) || return 1; [ -n "$p" ] && [[ $(readlink "/proc/$p/exe") == *"$2"* ]] && echo "$p"; }
# stop PIDFILE PROGRAM [SIGNAL]: asks, waits 10 s, kills.
stop() {
  local p; p=$(pid_of "$1" "$2") || { rm -f "$1"; return 0; }
  kill "${3:--TERM}" "$p" 2>/dev/null
  for _ in $(seq 100); do [[ $(readlink "/proc/$p/exe") == *"$2"* ]] || { rm -f "$1"; return 0; }; sleep 0.1; done
  kill -9 "$p"; rm -f "$1"
}
remove_bed() { [ -n "$BED" ] && [ "$BED" != / ] && rm -rf "$BED"; }
