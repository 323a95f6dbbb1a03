#!/bin/sh
# Turns the comments of a header into Doxygen's: lines of // before a declaration, and // behind a member. The comment at
# the top of a file is about the file; lines that are indented by three spaces are examples.
exec awk '
  function end_example() { if (example) print margin "/// @endcode"; example = 0 }
  NR == 1 && /^\/\// { print "/// \\file" }
  { line = $0 }
  line ~ /^ *\/\/   / {
    match(line, /^ */); margin = substr(line, 1, RLENGTH)
    if (!example && blank) { print margin "/// @code{.cpp}"; example = 1 }
    if (example) { print margin "/// " substr(line, RLENGTH + 6); next }
  }
  { end_example(); blank = line ~ /^ *\/\/$/ }
  line ~ /^ *\/\/( |$)/ { sub(/\/\//, "///", line); print line; next }
  line ~ /^} +\/\/ namespace/ || line ~ /^(class|struct) [A-Za-z0-9_]+; +\/\/ / { print line; next }
  line ~ /[;,{})] +\/\/ / { sub(/ \/\/ /, " ///< ", line) }
  { print line }
' "$1"
