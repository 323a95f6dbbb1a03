#!/usr/bin/env bash
# Makes a package of a build, unpacks it without root, and uses it as a stranger would.
# usage: package_test.sh SOURCE BUILD WORK deb|tarball
set -euo pipefail
source=$1 build=$2 work=$3/$4 kind=$4
rm -rf "$work" && mkdir -p "$work/root"
case $kind in
  deb)
    cpack --config "$build/CPackConfig.cmake" -G DEB -B "$work" >"$work/log" || { cat "$work/log"; exit 1; }
    package=$(echo "$work"/tutti_*.deb)
    depends=$(dpkg-deb --field "$package" Depends)
    [[ $depends == *libzmq5* ]] || { echo "the package does not name what it needs: $depends"; exit 1; }
    dpkg-deb --extract "$package" "$work/root"
    prefix=$work/root/usr
    ;;
  tarball)
    "$source/packaging/tarball.sh" "$build" "$work"
    package=$(echo "$work"/tutti-*.tar.gz)
    tar -C "$work/root" -xf "$package"
    prefix=$(echo "$work"/root/tutti-*)
    ;;
esac
ls -lh "$package"
"$source/tests/install/try_package.sh" "$prefix"
rm -rf "$work"
