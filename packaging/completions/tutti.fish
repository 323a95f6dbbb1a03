# Completion for fish. It asks the programs themselves, so it knows what they know.
function __tutti_commands
    tutti --help 2>/dev/null | string replace -rf '^  ([a-z_]+) +(.*)' '$1\t$2'
end
function __tutti_options
    set -l words (commandline -opc)
    test (count $words) -ge 2; and tutti $words[2] --help 2>/dev/null | string match -arg -- '(--[a-z][a-z_-]*)' | sort -u
end
complete -c tutti -n '__fish_is_nth_token 1' -f -a '(__tutti_commands)'
complete -c tutti -n 'not __fish_is_nth_token 1; and string match -q -- "-*" (commandline -ct)' -f -a '(__tutti_options)'
