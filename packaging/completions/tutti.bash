# Completion for bash. It asks the programs themselves (`tutti --help`, `tutti COMMAND --help`), so it knows what they know.
_tutti() {
  local word=${COMP_WORDS[COMP_CWORD]} command=${COMP_WORDS[1]:-}
  local words
  if ((COMP_CWORD == 1)); then
    words=$(tutti --help 2>/dev/null | sed -nE 's/^  ([a-z_]+) +.*/\1/p')
  elif [[ $word == -* ]]; then
    words=$(tutti "$command" --help 2>/dev/null | grep -oE -- '--[a-z][a-z_-]*' | sort -u)
  fi
  COMPREPLY=($(compgen -W "${words:-}" -- "$word"))
  ((${#COMPREPLY[@]})) || COMPREPLY=($(compgen -f -- "$word"))
}
complete -o filenames -F _tutti tutti
