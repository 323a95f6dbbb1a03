#!/usr/bin/env bash
# ./run matrix [ctest args]: the ordinary tests under each setting that another machine may have; one line per setting, then a
# table for CONTRIBUTING.md. ONLY="one-core umask" runs some of them ("together": most of them at once, for who has little time); BUILD=folder:
# tests of that build (logs stay in its folder matrix/); SPACED="a folder" keeps the build of the last row there. Arguments choose tests (-L unit, -R name).
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
choice=("$@")
((${#choice[@]})) || choice=(-LE 'cluster|kube|gpu')
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
chmod 755 "$work"
rows=()

# row NAME WHAT COMMAND...: the command runs ctest; its last lines say how it went.
row() {
  local name=$1 what=$2 log=$build/matrix/$1.log began=$SECONDS text failed skipped
  shift 2
  [[ -z ${ONLY:-} || " $ONLY " == *" $name "* ]] || return 0
  "$@" >"$log" 2>&1
  text=$(grep -E '^[0-9]+% tests passed|^No tests were found' "$log" | tail -n 1)
  failed=$(sed -n '/^The following tests FAILED/,$p' "$log" | grep -E '^\s+[0-9]+ - ' | sed -E 's/^\s+[0-9]+ - //' | tr '\n' ' ')
  skipped=$(grep -cE '\*\*\*Skipped' "$log")
  printf '%-12s %s, %s skipped, %d s %s\n' "$name" "${text:-$(tail -n 1 "$log")}" "$skipped" "$((SECONDS - began))" "$failed"
  rows+=("| $what | $(sed -E 's/.*, ([0-9]+) tests failed out of ([0-9]+).*/\1 of \2/' <<<"${text:-not run}") | $skipped | ${failed:-} |")
}
absent() { echo "$*"; }
build=${BUILD:-$PWD/build}
mkdir -p "$build/matrix"
tests() { ctest --test-dir "$build" --output-on-failure -j 2 "${choice[@]}"; }
export TESTS="ctest --test-dir ${build@Q} --output-on-failure -j 2 ${choice[*]@Q}"  # the same, for another shell

make_locale() {  # a comma for the decimal point, and an i that is no I in upper case
  localedef -i tr_TR -f UTF-8 "$work/tr_TR.UTF-8" 2>/dev/null || { absent "needs localedef and its sources (Debian: locales)"; return 1; }
  chmod -R a+rX "$work/tr_TR.UTF-8"
}
in_locale() { make_locale && LOCPATH=$work LC_ALL=tr_TR.UTF-8 LANG=tr_TR.UTF-8 tests; }
with_umask() { (umask 077 && tests); }
spaced_tmp() { mkdir -p "$work/a folder" && TMPDIR="$work/a folder" tests; }
no_home() { (unset HOME && tests); }
nobody=http://127.0.0.1:9
proxies=("http_proxy=$nobody" "https_proxy=$nobody" "HTTP_PROXY=$nobody" "HTTPS_PROXY=$nobody" "ALL_PROXY=$nobody" "all_proxy=$nobody")
make_python() {  # a pyenv or conda that has nothing
  mkdir -p "$work/bin"
  printf '#!/bin/sh\necho "this python is not for tests" >&2\nexit 1\n' >"$work/bin/python3"
  chmod +x "$work/bin/python3"
}
other_python() { make_python && PATH=$work/bin:$PATH tests; }
no_ipv6() {
  ((EUID == 0)) || { absent "needs root (network namespace)"; return; }
  unshare -n bash -c "$ipv6_off; eval \"\$TESTS\""
}
ipv6_off='ip link set lo up; sysctl -qw net.ipv6.conf.all.disable_ipv6=1 net.ipv6.conf.lo.disable_ipv6=1'
user=(setpriv --reuid 65534 --regid 65534 --clear-groups env --unset=XDG_RUNTIME_DIR)
# as_user COMMAND...: an ordinary user, who owns the build as if it had been made by them, and has a home.
as_user() {
  ((EUID == 0)) || { absent "this is no root anyway"; return; }
  local owner
  owner=$(stat -c %u:%g "$build")
  mkdir -p "$work/home" "$work/a folder"
  chown -R 65534:65534 "$build" "$work/home" "$work/a folder"
  HOME=$work/home "$@"
  chown -R "$owner" "$build"
}
together() {
  make_locale && make_python || return
  as_user unshare -n bash -c "$ipv6_off; umask 077; exec \"\$@\"" bash "${user[@]}" --unset=HOME "TMPDIR=$work/a folder" "${proxies[@]}" \
    "PATH=$work/bin:$PATH" "LOCPATH=$work" LC_ALL=tr_TR.UTF-8 LANG=tr_TR.UTF-8 OPENBLAS_CORETYPE=Haswell DNNL_MAX_CPU_ISA=AVX2 bash -c 'eval "$TESTS"'
}
with() { (export "$@" && tests); }
spaced_project() {  # built there: the compiler cache knows most of it
  local there=${SPACED:-$work/a project}
  mkdir -p "$there"
  git ls-files -z --cached --others --exclude-standard | tar -c --null -T - | tar -x -C "$there"
  # What tests look for beside the project.
  [[ -e $there/../shared || ! -d ../shared ]] || ln -s "$(realpath ../shared)" "$there/../shared"
  (cd "$there" && ./run build release) || return
  build="$there/build" tests
}

row plain "as it is" tests
row one-core "one core" taskset -c 0 ctest --test-dir "$build" --output-on-failure -j 1 "${choice[@]}"
row locale "LC_ALL=tr_TR.UTF-8" in_locale
row umask "umask 077" with_umask
row tmpdir "TMPDIR with a space" spaced_tmp
row home "HOME unset" no_home
row proxy "proxy variables of a proxy that is not there" with "${proxies[@]}"
row python "another python3 first on PATH" other_python
row ipv6 "IPv6 off" no_ipv6
row user "an ordinary user" as_user "${user[@]}" bash -c 'eval "$TESTS"'
kernels=(Sandybridge Haswell)
! grep -qw avx512f /proc/cpuinfo || kernels+=(SkylakeX)
! grep -qw avx512_bf16 /proc/cpuinfo || kernels+=(SapphireRapids)
for kernel in "${kernels[@]}"; do
  row "$kernel" "OPENBLAS_CORETYPE=$kernel" with "OPENBLAS_CORETYPE=$kernel"
done
for isa in AVX2 AVX512_CORE; do row "$isa" "DNNL_MAX_CPU_ISA=$isa" with "DNNL_MAX_CPU_ISA=$isa"; done
row together "an ordinary user, umask 077, HOME unset, TMPDIR with a space, IPv6 off, proxies, another python3, tr_TR, OPENBLAS_CORETYPE=Haswell, DNNL_MAX_CPU_ISA=AVX2, all at once" together
row project "a project folder with a space in its name" spaced_project

printf '\n| setting | failed | skipped | which |\n|---|---|---|---|\n'
printf '%s\n' "${rows[@]}"
bad=$(printf '%s\n' "${rows[@]}" | grep -cvE '\| 0 of [0-9]+ \|')
printf '\nmatrix: %d of %d settings passed\n' "$((${#rows[@]} - bad))" "${#rows[@]}"
((bad == 0))
