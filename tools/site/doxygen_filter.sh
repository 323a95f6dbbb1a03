#!/bin/sh
# Turns the comments of a header into Doxygen's: lines of // before a declaration, and // behind a member. The comment at
# the top of a file is about the file; its indented lines are examples.
exec awk '
  NR == 1 && /^\/\// { print "/// \\file"; top = 1 }
  { line = $0 }
  line ~ /^ *\/\/( |$)/ { sub(/\/\//, "///", line); print line; next }
  line ~ /[;,{})] +\/\/ / { sub(/ \/\/ /, " ///< ", line) }
  { print line }
' "$1"
