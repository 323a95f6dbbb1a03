#!/usr/bin/env bash
# Both packages in systems that have nothing of Tutti: the .deb in a bare Debian 12, where apt-get brings what it names, and the
# tarball in a bare Debian 11, whose C library is older than ours. Needs root; ./run nightly runs it.
# usage: bare.sh (in the root of the sources)
set -euo pipefail
((EUID == 0)) || { echo "bare.sh needs root (chroot)" >&2; exit 4; }
root=
unmount() { [[ -z $root ]] || umount "$root/proc" 2>/dev/null || true; }
trap unmount EXIT

# A fresh system of a suite in .cache/bare-SUITE, a copy of one that is kept.
fresh() {
  local kept=$PWD/.cache/bare-$1.kept
  root=$PWD/.cache/bare-$1
  if [[ ! -f $kept/.ready ]]; then
    rm -rf "$kept"
    debootstrap --variant=minbase "$1" "$kept" >/dev/null
    touch "$kept/.ready"
  fi
  rm -rf "$root"
  cp -a "$kept" "$root"
  cp /etc/resolv.conf /etc/hosts "$root/etc/"
  cp -r /etc/apt/apt.conf.d/. "$root/etc/apt/apt.conf.d/"
  mount -t proc proc "$root/proc"
  cp tests/install/try_package.sh "$root/"
}

inside() { env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root DEBIAN_FRONTEND=noninteractive chroot "$root" "$@"; }

./run package deb
fresh bookworm
cp build/tutti_*.deb "$root/"
inside bash -c 'apt-get -qq update && apt-get -qq install -y --no-install-recommends ./tutti_*.deb' >/dev/null
inside /try_package.sh /usr
unmount

./run package tarball
fresh bullseye
tar -C "$root" -xf build/tutti-*-x86_64.tar.gz
inside bash -c '/try_package.sh /tutti-*-x86_64'
echo "packages: the .deb works in a bare Debian 12, the tarball in a bare Debian 11"
