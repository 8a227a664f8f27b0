// SPDX-License-Identifier: MIT
/*
 * log.c - the front's log lines (capi/guest/log.c, built in here): which are written, how long they
 * are, and that the host's errno stays.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tap.h"

static size_t room;		/* that a text had last, behind its prefix */
static int fails;		/* a text cannot be made */

static int vsnprintf_of(char *to, size_t size, const char *fmt, va_list args)
{
	room = size;
	return fails ? -1 : vsnprintf(to, size, fmt, args);
}

#define vsnprintf vsnprintf_of
#include "guest/log.c"
#undef vsnprintf

#define LINE 512		/* bytes of a line at most */

static struct tap tap;
static char said[2048];

/* What reached standard error since the last time. */
static const char *heard(int fd)
{
	ssize_t n = read(fd, said, sizeof(said) - 1);

	said[n > 0 ? n : 0] = '\0';
	return said;
}

static void levels(int fd)
{
	static const struct {
		int level;
		const char *line;
	} lines[] = {
		{ GDR_LOG_DEBUG, "DBG:  7 x\n" }, { GDR_LOG_INFO, "INFO: 7 x\n" },
		{ GDR_LOG_WARN, "WARN: 7 x\n" }, { GDR_LOG_ERROR, "ERR:  7 x\n" },
	};

	for (int from = GDR_LOG_DEBUG; from <= GDR_LOG_OFF; from++) {
		gdr_log_set_level(from);
		for (size_t i = 0; i < sizeof(lines) / sizeof(lines[0]); i++) {
			gdr_log(lines[i].level, "%d %s", 7, "x");
			tap_ok(&tap, !strcmp(heard(fd), lines[i].level >= from ? lines[i].line : ""),
			       "from level %d on: level %d", from, lines[i].level);
		}
	}
}

/* One line, whatever its text. */
static void long_lines(int fd)
{
	char text[1024];

	gdr_log_set_level(GDR_LOG_DEBUG);
	for (size_t n = 490; n < 530; n++) {
		size_t want = n < 504 ? n : 504, got;

		memset(text, 'a', n);
		text[n] = '\0';
		gdr_log(GDR_LOG_ERROR, "%s", text);
		got = strlen(heard(fd));
		if (got != 6 + want + 1 || said[got - 1] != '\n' || strchr(said, '\n') != said + got - 1) {
			tap_ok(&tap, 0, "a text of %zu bytes: %zu are written", n, got);
			return;
		}
	}
	tap_ok(&tap, 1, "a text that is too long is cut, and its line ends");
	tap_ok(&tap, 6 + room <= LINE, "it is not written behind the line's end");
	fails = 1;
	gdr_log(GDR_LOG_ERROR, "x");
	fails = 0;
	tap_ok(&tap, !*heard(fd), "a text that cannot be made is no line");
}

/* The host may have closed its standard error; a call that failed has its errno. */
static void errno_stays(int fd)
{
	errno = ENOSPC;
	gdr_log(GDR_LOG_ERROR, "x");
	tap_is(&tap, errno, ENOSPC, "errno after a line");
	heard(fd);
	close(STDERR_FILENO);
	errno = ENOSPC;
	gdr_log(GDR_LOG_ERROR, "x");
	tap_is(&tap, errno, ENOSPC, "errno after a line that nobody takes");
}

int main(void)
{
	int ends[2];

	if (pipe2(ends, O_NONBLOCK) || dup2(ends[1], STDERR_FILENO) < 0)
		return 1;
	unsetenv("GDRCOPY_ENABLE_LOGGING");
	gdr_log(GDR_LOG_ERROR, "x");
	tap_ok(&tap, !*heard(ends[0]), "before gdr_open, and unasked: nothing");
	setenv("GDRCOPY_ENABLE_LOGGING", "1", 1);
	gdr_log(GDR_LOG_WARN, "x");
	gdr_log(GDR_LOG_ERROR, "y");
	tap_ok(&tap, !strcmp(heard(ends[0]), "ERR:  y\n"), "before gdr_open, asked by the environment: errors");
	levels(ends[0]);
	long_lines(ends[0]);
	errno_stays(ends[0]);
	return tap_done(&tap);
}
