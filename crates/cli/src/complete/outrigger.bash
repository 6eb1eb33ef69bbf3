# SPDX-License-Identifier: MIT OR Apache-2.0
# Completion of outrigger for bash 4.4 and later: the program itself says what could stand at the cursor.
_outrigger() {
    local candidates
    # bash breaks words at ':' and '=': the program gets the line, and what bash will replace.
    mapfile -t candidates < <(
        OUTRIGGER_COMPLETE=bash command "$1" -- "${COMP_LINE:0:COMP_POINT}" "$2" 2>/dev/null)
    COMPREPLY=("${candidates[@]:1}")
    if [[ ${candidates[0]-} == *files* ]]; then
        compopt -o filenames
    fi
    if [[ ${COMPREPLY[0]-} == *[/:=,] ]]; then
        compopt -o nospace
    fi
}
complete -o bashdefault -o nosort -F _outrigger outrigger
