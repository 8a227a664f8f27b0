# SPDX-License-Identifier: MIT
#
# `make help`, from the comments of the make files, which say
#
#	# make TARGET [GROUP TIME] WHAT
#
# TIME is how long it takes when all is built that it needs. One without the brackets
# is shown, too, as another target.
BEGIN {
	split("build check more long measure other", order)
	title["build"] = "Build and install"
	title["check"] = "What make check runs"
	title["more"] = "More checks"
	title["long"] = "Long ones"
	title["measure"] = "Programs that measure, not installed"
	title["other"] = "Others"
}

/^# make( |$)/ {
	target = $3 ~ /^\[/ || NF == 2 ? "" : $3
	group = "other"
	took = ""
	text = $0
	if (match($0, /\[[a-z]+ [0-9]+ [a-z]+\]/)) {
		split(substr($0, RSTART + 1, RLENGTH - 2), tag, " ")
		if (tag[1] in title) {
			group = tag[1]
			took = tag[2] " " tag[3]
			text = substr($0, RSTART + RLENGTH)
		}
	} else {
		sub(/^# make +[^ ]+/, "", text)
	}
	sub(/^ +/, "", text)
	lines[group] = lines[group] sprintf("  make %-22s %7s  %s\n", target, took, text)
}

END {
	print "Times are of 2 cores of an x86-64 virtual machine with nothing else to do."
	for (i = 1; i in order; i++)
		if (order[i] in lines)
			printf "\n%s\n%s", title[order[i]], lines[order[i]]
}
