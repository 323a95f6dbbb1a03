#!/usr/bin/env bash
# ./run matrix [ctest args]: the ordinary tests under settings that another machine may have, one line per setting, then a table for
# CONTRIBUTING.md. Settings that do not exclude each other are tried in one run; what fails there is run again under each of them
# alone, which names the one that did it. Arguments choose tests (-L unit, -R name).
#   ONLY="umask user+tmpdir"   these settings, each in a run of its own; + joins those of one run
#   BUILD=folder        the tests of that build; logs stay in its folder matrix/
#   SPACED="a folder"   keeps the project whose folder has a space in its name there
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
choice=("$@")
((${#choice[@]})) || choice=(-LE 'cluster|kube|gpu')
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
chmod 755 "$work"
build=${BUILD:-$PWD/build}
mkdir -p "$build/matrix"

declare -A what=(
  [plain]="as it is"
  [one-core]="one core"
  [locale]="LC_ALL=tr_TR.UTF-8"
  [umask]="umask 077"
  [tmpdir]="TMPDIR with a space"
  [home]="HOME unset"
  [proxy]="proxy variables of a proxy that is not there"
  [python]="another python3 first on PATH"
  [ipv6]="IPv6 off"
  [user]="an ordinary user"
  [project]="a project folder with a space in its name")
# What a run tries at once; `plain` is what ./run test does. Root and an ordinary user, three sets of BLAS kernels, two levels of oneDNN, one core and all of them.
last_kernels=Sandybridge
! grep -qw avx512f /proc/cpuinfo || last_kernels=SkylakeX
surroundings="umask home tmpdir ipv6 proxy python locale"
runs=(
  "user $surroundings OPENBLAS_CORETYPE=Haswell DNNL_MAX_CPU_ISA=AVX2"
  "one-core $surroundings OPENBLAS_CORETYPE=$last_kernels DNNL_MAX_CPU_ISA=AVX512_CORE"
  "project OPENBLAS_CORETYPE=Sandybridge")
if [[ -n ${ONLY:-} ]]; then read -ra runs <<<"$ONLY" && runs=("${runs[@]//+/ }"); fi

nobody=http://127.0.0.1:9
proxies=("http_proxy=$nobody" "https_proxy=$nobody" "HTTP_PROXY=$nobody" "HTTPS_PROXY=$nobody" "ALL_PROXY=$nobody" "all_proxy=$nobody")
make_locale() {  # a comma for the decimal point, and an i that is no I in upper case
  localedef -i tr_TR -f UTF-8 "$work/tr_TR.UTF-8" 2>/dev/null || { echo "needs localedef and its sources (Debian: locales)"; return 1; }
  chmod -R a+rX "$work/tr_TR.UTF-8"
}
make_python() {  # a pyenv or conda that has nothing
  mkdir -p "$work/bin"
  printf '#!/bin/sh\necho "this python is not for tests" >&2\nexit 1\n' >"$work/bin/python3"
  chmod +x "$work/bin/python3"
}
make_project() {  # built there: the compiler cache knows most of it
  folder=${SPACED:-$work/a project}
  mkdir -p "$folder"
  git ls-files -z --cached --others --exclude-standard | tar -c --null -T - | tar -x -C "$folder"
  # What tests look for beside the project.
  [[ -e $folder/../shared || ! -d ../shared ]] || ln -s "$(realpath ../shared)" "$folder/../shared"
  (cd "$folder" && ./run build release) || return
  folder=$folder/build
}
needs_root() { ((EUID == 0)) || { echo "$1 needs root"; return 1; }; }

# under "SETTING..." [ctest args]: the tests under all of these settings at once.
under() {
  local settings=$1 setting folder=$build shell='' jobs=2 outer=() inner=() unset=() words=() owner='' code
  shift
  for setting in $settings; do
    case $setting in
      plain) ;;
      one-core) outer+=(taskset -c 0) && jobs=1 ;;
      locale) make_locale || return && words+=("LOCPATH=$work" LC_ALL=tr_TR.UTF-8 LANG=tr_TR.UTF-8) ;;
      umask) shell+='umask 077; ' ;;
      tmpdir) mkdir -p "$work/a folder" && words+=("TMPDIR=$work/a folder") ;;
      home) unset+=(--unset=HOME) ;;
      proxy) words+=("${proxies[@]}") ;;
      python) make_python && words+=("PATH=$work/bin:$PATH") ;;
      ipv6)
        needs_root "a network without IPv6" || return
        outer=(unshare -n "${outer[@]}")
        shell+='ip link set lo up; sysctl -qw net.ipv6.conf.all.disable_ipv6=1 net.ipv6.conf.lo.disable_ipv6=1; '
        ;;
      user)  # owns the build as if it had been made by them, and has a home
        needs_root "another user" || return
        owner=$(stat -c %u:%g "$build")
        mkdir -p "$work/home" "$work/a folder"
        chown -R 65534:65534 "$build" "$work/home" "$work/a folder"
        inner=(setpriv --reuid 65534 --regid 65534 --clear-groups)
        unset+=(--unset=XDG_RUNTIME_DIR)
        [[ " $settings " == *" home "* ]] || words+=("HOME=$work/home")
        ;;
      project) make_project || return ;;
      *=*) words+=("$setting") ;;
      *) echo "no such setting: $setting; there are: ${!what[*]} NAME=VALUE" >&2 && exit 2 ;;
    esac
  done
  "${outer[@]}" bash -c "$shell"'exec "$@"' bash "${inner[@]}" env "${unset[@]}" "${words[@]}" \
    ctest --test-dir "$folder" --output-on-failure -j "$jobs" "$@"
  code=$?
  [[ -z $owner ]] || chown -R "$owner" "$build"
  return $code
}

failed_in() { sed -n '/^The following tests FAILED/,$p' "$1" | sed -nE 's/^\s+[0-9]+ - (\S+) .*/\1/p'; }

rows=() bad=0
for run in "${runs[@]}"; do
  name=${run%% *}
  log=$build/matrix/$name.log
  began=$SECONDS
  under "$run" "${choice[@]}" >"$log" 2>&1
  text=$(grep -E '^[0-9]+% tests passed|^No tests were found' "$log" | tail -n 1)
  failed=$(failed_in "$log")
  skipped=$(grep -cE '\*\*\*Skipped' "$log")
  ran=$(sed -nE 's/.*tests failed out of ([0-9]+).*/\1/p' <<<"$text")
  printf '%-12s %s, %s skipped, %d s, at once: %s\n' "$name" "${text:-$(tail -n 1 "$log")}" "$skipped" "$((SECONDS - began))" "$run"
  [[ $text == 100%* ]] || bad=$((bad + 1))
  if [[ -z $ran ]]; then
    rows+=("| ${what[$name]:-$name} | not run | | $(tail -n 1 "$log") |")
    continue
  fi
  read -ra settings <<<"$run"
  for setting in "${settings[@]}"; do
    blamed=$failed
    if ((${#settings[@]} > 1)) && [[ -n $failed ]]; then
      under "$setting" -R "^($(tr '\n' '|' <<<"$failed" | sed 's/|$//; s/\./\\./g'))\$" >"$log.$setting" 2>&1
      blamed=$(failed_in "$log.$setting")
    fi
    rows+=("| ${what[$setting]:-$setting} | $ran | $skipped | $(tr '\n' ' ' <<<"$blamed")|")
  done
done

printf '\n| setting | ran | skipped | failed because of it |\n|---|---|---|---|\n'
printf '%s\n' "${rows[@]}" | awk '!seen[$0]++'
printf '\nmatrix: %d of %d runs passed\n' "$((${#runs[@]} - bad))" "${#runs[@]}"
((bad == 0))
