# Completion for fish. It asks the programs themselves, so it knows what they know.
function __tutti_commands
    tutti --help 2>/dev/null | string replace -rf '^  ([a-z_]+) +(.*)' '$1\t$2'
end
function __tutti_options
    set -l words (commandline -opc)
    test (count $words) -ge 2; and tutti $words[2] --help 2>/dev/null | string match -arg -- '(--[a-z][a-z_-]*)' | sort -u
end
# The option before the word, however many words it already has.
function __tutti_behind
    set -l options (commandline -opc | string match -- '-*')
    test (count $options) -ge 1; and contains -- $options[-1] $argv
end
complete -c tutti -n '__fish_is_nth_token 1' -f -a '(__tutti_commands)'
complete -c tutti -n 'not __fish_is_nth_token 1; and string match -q -- "-*" (commandline -ct)' -f -a '(__tutti_options)'
complete -c tutti -n '__tutti_behind --stages' -f -a "all (tutti run --help 2>/dev/null | string replace -rf '^ +[0-9]+ ([a-z_]+) +(.*)' '\$1\t\$2')"
complete -c tutti -n '__tutti_behind --stage --stop_stage' -f -a "(tutti run --help 2>/dev/null | string replace -rf '^ +([0-9]+) ([a-z_]+) .*' '\$1\t\$2')"
