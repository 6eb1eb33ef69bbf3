# SPDX-License-Identifier: MIT OR Apache-2.0
# Completion of outrigger for fish: the program itself says what could stand at the cursor.
function __outrigger_complete
    set -l before (commandline --cut-at-cursor --tokenize --current-process)
    set -l word (commandline --cut-at-cursor --current-token | string unescape)
    OUTRIGGER_COMPLETE=fish command outrigger -- (count $before) $before "$word" 2>/dev/null | tail -n +2
end
complete --command outrigger --no-files --arguments '(__outrigger_complete)'
