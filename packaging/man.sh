#!/usr/bin/env bash
# Writes tutti.1 and tutti-COMMAND.1 from what the programs print for --help. usage: packaging/man.sh TUTTI FOLDER
set -euo pipefail
tutti=$1 folder=$2
mkdir -p "$folder"
# Plain text in an indented block: nothing of it is markup, whatever it holds.
page() {
  local name=$1 summary=$2
  shift 2
  {
    printf '.TH %s 1 "" "Tutti" "User Commands"\n.SH NAME\n%s \\- %s\n.SH DESCRIPTION\n.nf\n' "${name^^}" "$name" "$summary"
    "$@" | sed -e 's/\\/\\e/g' -e "s/^\([.']\)/\\\\\&\1/"
    printf '.fi\n'
  } >"$folder/$name.1"
}
page tutti 'scale speech work by config' "$tutti" --help
"$tutti" --help | sed -nE 's/^  ([a-z_]+) +(.*)/\1\t\2/p' | while IFS=$'\t' read -r command summary; do
  "$tutti" "$command" --help >/dev/null 2>&1 || continue  # a stage, in a build without torch
  page "tutti-$command" "$summary" "$tutti" "$command" --help
done
