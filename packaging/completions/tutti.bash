# Completion for bash. It asks the programs themselves (`tutti --help`, `tutti COMMAND --help`), so it knows what they know.
_tutti() {
  local word=${COMP_WORDS[COMP_CWORD]} command=${COMP_WORDS[1]:-} words='' option='' i
  local -x LC_ALL=C  # [a-z] is another set of letters elsewhere
  for ((i = 2; i < COMP_CWORD; ++i)); do
    [[ ${COMP_WORDS[i]} == -- ]] && { compopt -o default; return; }  # behind it stands another program's command
    [[ ${COMP_WORDS[i]} == -* ]] && option=${COMP_WORDS[i]}
  done
  if ((COMP_CWORD == 1)); then
    words=$(tutti --help 2>/dev/null | sed -nE 's/^  ([a-z_]+) +.*/\1/p')
  elif [[ $word == -* ]]; then
    [[ ${COMP_WORDS[2]} =~ ^[a-z_]+$ && $command =~ ^(config|parallel|model|checkpoint)$ ]] && command+=" ${COMP_WORDS[2]}"
    words=$(tutti $command --help 2>/dev/null | grep -oE -- '--[a-z][a-z_-]*' | sort -u)
  elif [[ $option == --stages ]]; then  # as many as one likes
    words="all $(tutti run --help 2>/dev/null | sed -nE 's/^ +[0-9]+ ([a-z_]+) .*/\1/p')"
  elif [[ ${COMP_WORDS[COMP_CWORD - 1]} =~ ^--(stage|stop_stage)$ ]]; then
    words=$(tutti run --help 2>/dev/null | sed -nE 's/^ +([0-9]+) [a-z_]+ .*/\1/p')
  elif ((COMP_CWORD == 2)); then
    words=$(tutti "$command" --help 2>/dev/null | sed -n '/^Subcommands:/,/^$/ s/^  \([a-z_]*\) .*/\1/p')
  fi
  mapfile -t COMPREPLY < <(compgen -W "$words" -- "$word")
  ((${#COMPREPLY[@]})) || mapfile -t COMPREPLY < <(compgen -f -- "$word")
}
complete -o filenames -F _tutti tutti
