# SPDX-License-Identifier: MIT
# shellcheck shell=bash
#
# stubs.sh - sourced by the tests of scripts: a script runs with programs that stand for those
# it calls, and each call is compared. $bin is its whole PATH.

here=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
# shellcheck source=tests/tap.sh
. "$here/tests/tap.sh"
export LC_ALL=C
bin=$work/bin hooks=$work/hooks calls=$work/calls
mkdir "$bin" "$hooks"

# A stub writes down how it is called. It fails if $FAILS names it; else it runs its hook.
cat >"$work/stub" <<'END'
#!/bin/sh
name=${0##*/}
{
	printf '+ %s' "$name"
	for word; do
		case $word in '' | *[[:space:]]*) printf " '%s'" "$word" ;; *) printf ' %s' "$word" ;; esac
	done
	echo
} >>"$CALLS"
case " ${FAILS-} " in *" $name "*) exit 9 ;; esac
[ ! -e "$HOOKS/$name" ] || . "$HOOKS/$name"
END
chmod +x "$work/stub"

# real NAME...: these programs are what they are.
real() {
	for p in "$@"; do ln -sf "$(command -v "$p")" "$bin/$p"; done
}

# stub NAME [HOOK]: this one is a stub, which runs these commands.
stub() {
	ln -sf "$work/stub" "$bin/${1##*/}"
	[ $# -lt 2 ] || printf '%s\n' "$2" >"$hooks/$1"
}

# answers NAME COMMANDS: this one is those commands, and no call of it is written down.
answers() {
	printf '#!/bin/sh\n%s\n' "$2" >"$bin/$1"
	chmod +x "$bin/$1"
}

# through NAME...: stubs that do what the real ones do.
through() {
	for p in "$@"; do stub "$p" "exec $(command -v "$p") \"\$@\""; done
}

# plain: no path of this machine, and no process ID.
plain() { sed -E -e "s|$work|W|g" -e "s|$here|TOP|g" -e 's/(gdrdrv\.)[0-9]+/\1PID/g'; }

# ran [NAME=VALUE...] COMMAND...: the calls that it makes, what it says, and its status.
ran() {
	: >"$calls"
	env -i PATH="$bin" HOME="$work" LC_ALL=C CALLS="$calls" HOOKS="$hooks" "$@" >"$work/stdout" 2>"$work/stderr" </dev/null
	local status=$?
	{
		cat "$calls" "$work/stdout"
		sed 's/^/! /' "$work/stderr"
		echo "= $status"
	} | plain
}

# runs NAME [NAME=VALUE...] COMMAND...: one test. It does what standard input says.
runs() {
	is "$1" "$(ran "${@:2}")" "$(cat)"
}

# tree FOLDER: what is in it: kind, mode, name, and where a link leads.
tree() {
	(cd "$1" && find . -mindepth 1 -printf '%M %P %l\n' | sed 's/ $//' | sort -k 2)
}
