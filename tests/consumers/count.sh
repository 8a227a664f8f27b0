# SPDX-License-Identifier: MIT
# shellcheck shell=bash
#
# count.sh - sourced, after tap.sh. A consumer runs with the library of front.c, which
# counts: counting FOLDER COMMAND...; then least NAME PROCESSES FOLDER opens=N ... tests
# what it did.

: "${build:?}"

# counting FOLDER COMMAND...: COMMAND, whose processes leave their counts in FOLDER.
counting() {
	local folder=$1
	shift
	rm -rf "$folder" && mkdir -p "$folder" &&
		GDR_COUNT=$folder LD_LIBRARY_PATH="$build/front:${LD_LIBRARY_PATH-}" "$@"
}

# least NAME PROCESSES FOLDER COUNT=LEAST...: one test. At least so many processes each
# have these counts; with 0, all of them together have. A count is one of struct counts.
least() {
	local name=$1 processes=$2 folder=$3 file said status=0
	shift 3
	said=$(for file in "$folder"/*; do
		[ -e "$file" ] && od -An -v -t u8 -w40 "$file"
	done | awk -v processes="$processes" -v want="$*" '
		BEGIN { wants = split(want, w, " "); split("opens pins maps to from", names, " ") }
		{
			print
			reached = 1
			for (i = 1; i <= 5; i++)
				has[names[i]] = processes ? $i : has[names[i]] + $i
			for (i = 1; i <= wants; i++) {
				split(w[i], of, "=")
				if (has[of[1]] < of[2])
					reached = 0
			}
			n = processes ? n + reached : reached
		}
		END { exit n < (processes ? processes : 1) }') || status=$?
	result "$status" "$name: $*" "opens, pins, maps, bytes to, bytes from:
$said"
}
