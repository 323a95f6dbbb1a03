#!/usr/bin/env bash
# usage: bundle_test.sh SOURCE BUILD WORK
set -euo pipefail
source=$1 build=$2 work=$3
rm -rf "$work/plain" "$work/bundle" "$work/moved"
mkdir -p "$work/plain/bin" "$work/plain/share" "$work/plain/lib/tutti/plugins"
touch "$work/plain/lib/tutti/plugins/libdigits.so"
cp "$build/bin/tutti" "$work/plain/bin/"
"$source/packaging/bundle.sh" "$work/plain" "$work/bundle"
mv "$work/bundle" "$work/moved"
[[ -f $work/moved/lib/tutti/plugins/libdigits.so ]] || { echo "the bundle lacks the corpora of the recipes"; exit 1; }
said=$(env -i PATH=/usr/bin:/bin "$work/moved/bin/tutti" map --quiet -j 2 ::: a 'b c' -- echo {})
[[ $said == $'a\nb c' ]] || { echo "the bundle's workers said: $said"; exit 1; }
# Its workers run with the bundle's libraries, not with the system's.
said=$(env -i PATH=/usr/bin:/bin "$work/moved/bin/tutti" map --quiet -j 1 ::: x -- 'tr "\\0" " " </proc/$PPID/cmdline')
[[ $said == *"$work/moved/lib/ld-linux-x86-64.so.2 --library-path $work/moved/lib"* ]] || { echo "a worker is $said"; exit 1; }
# The doctor sees the libraries that the folder brings.
touch "$work/moved/lib/libtorch_cpu.so.9"
said=$(env -i PATH=/usr/bin:/bin "$work/moved/bin/tutti" doctor --json)
[[ $said == *"\"libtorch\": \"$work/moved/lib/libtorch_cpu.so.9\""* ]] || { echo "the bundle's doctor said: $said"; exit 1; }
