
# Bash breaks words at `:` and `=` (COMP_WORDBREAKS), so `order:42` and `-u redis://host` arrive in pieces.
# Pieces without a blank between them are joined before tenure is asked. Bash replaces only the piece at the
# cursor, so what stands before it in the same word is cut off the answers.
_tenure_complete() {
    local rest=${COMP_LINE:0:COMP_POINT} joined=() last=-1 piece blank
    for piece in "${COMP_WORDS[@]:0:COMP_CWORD + 1}"; do
        blank=${rest%%[![:blank:]]*}
        rest=${rest#"$blank"}
        if [[ $last -lt 0 || -n $blank ]]; then
            last=$((last + 1))
            joined[last]=
        fi
        joined[last]+=${rest:0:${#piece}}
        rest=${rest:${#piece}}
    done
    local COMP_WORDS=("${joined[@]}") COMP_CWORD=$last word=${joined[last]}
    _clap_complete_tenure "$1" "$word" "$3"
    local before=${word%"$2"}
    if [[ ${#COMPREPLY[@]} -gt 0 ]]; then
        COMPREPLY=("${COMPREPLY[@]#"$before"}")
    fi
}
