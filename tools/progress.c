/* SPDX-License-Identifier: MIT */
#include "progress.h"

#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define BAR 24
#define REDRAW_S 0.1	/* a line that changes faster cannot be read */

static struct {
	size_t total, begun;	/* steps */
	double since, drawn;	/* when the first step began, and the line was drawn last */
	char what[64];
	bool shown;
} line;

static double seconds(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static void draw(double part)
{
	double now = seconds(), done = (double)line.begun - 1 + part;
	long left;
	int full;

	if (line.shown && now - line.drawn < REDRAW_S)
		return;
	line.drawn = now;
	line.shown = true;
	if (!line.total) {
		fprintf(stderr, "\r\033[K%s", line.what);
		return;
	}
	full = (int)(BAR * done / (double)line.total);
	fprintf(stderr, "\r\033[K[%.*s%*s] %zu of %zu", full, "########################",
		BAR - full, "", line.begun, line.total);
	if (done > 0) {
		left = (long)((now - line.since) / done * ((double)line.total - done) + 0.5);
		fprintf(stderr, ", %ld:%02ld left", left / 60, left % 60);
	}
	fprintf(stderr, "  %s", line.what);
}

/* Whether stderr is a terminal that can go back to the start of a line. */
static bool on_terminal(void)
{
	const char *kind = getenv("TERM");

	return kind && strcmp(kind, "dumb") && isatty(STDERR_FILENO);
}

void progress_total(size_t steps)
{
	line.total = steps;
}

void progress(const char *fmt, ...)
{
	va_list ap;

	if (!on_terminal())
		return;
	va_start(ap, fmt);
	vsnprintf(line.what, sizeof(line.what), fmt, ap);
	va_end(ap);
	if (!line.begun)
		line.since = seconds();
	if (!line.total || line.begun < line.total)
		line.begun++;
	draw(0);
}

void progress_part(double part)
{
	if (line.begun && on_terminal())
		draw(part);
}

void progress_wipe(void)
{
	if (line.shown)
		fputs("\r\033[K", stderr);
	line.shown = false;
}
