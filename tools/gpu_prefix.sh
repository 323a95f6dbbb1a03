#!/usr/bin/env bash
# Gathers the Debian packages Tutti builds with into .prefix/, for a GPU machine where nothing can be installed.
# Carry that folder along; tools/gpu_check.sh builds against it.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
packages=(libyaml-cpp-dev libyaml-cpp0.7 libfmt-dev libfmt9 nlohmann-json3-dev libzmq3-dev libzmq5 cppzmq-dev
  libsodium-dev libsodium23 libpgm-5.3-0 libnorm1 libgssapi-krb5-2 libkrb5-3 libk5crypto3 libkrb5support0 libcom-err2 libkeyutils1
  libcli11-dev libsndfile1-dev libsndfile1 libflac12 libogg0 libvorbis0a libvorbisenc2 libopus0 libmpg123-0 libmp3lame0
  libcpp-httplib-dev libcpp-httplib0.11 libbrotli1 libssl3 libgtest-dev libgmock-dev googletest libbenchmark-dev libbenchmark1debian)
rm -rf .prefix && mkdir -p .prefix/deb
(cd .prefix/deb && apt-get download -qq "${packages[@]}")
for deb in .prefix/deb/*.deb; do dpkg -x "$deb" .prefix; done
rm -rf .prefix/deb .prefix/usr/share/doc .prefix/usr/share/man .prefix/usr/share/locale .prefix/usr/src
# Absolute links into the root of the machine they came from would dangle elsewhere.
find .prefix -xtype l -delete
du -sh .prefix
