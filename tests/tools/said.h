/* SPDX-License-Identifier: MIT */
/*
 * said.h - what a function of the tools says, on stdout or as it ends. Only for one thread.
 */
#ifndef GDR_TEST_SAID_H
#define GDR_TEST_SAID_H

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "bench/opt.h"
#include "bench/out.h"
#include "tap.h"

static struct tap tap;

static inline void is_text(const char *got, const char *want, const char *what)
{
	if (!tap_ok(&tap, !strcmp(got, want), "%s", what))
		printf("# got:\n%s\n# not:\n%s\n", got, want);
}

/* What f writes to stdout. */
static inline char *printed(void (*f)(const struct bench_result *, const struct bench_opts *),
			    const struct bench_result *r, const struct bench_opts *o)
{
	static char text[1 << 16];
	FILE *file = tmpfile();
	int keep = dup(STDOUT_FILENO);
	size_t n;

	fflush(stdout);
	if (!file || dup2(fileno(file), STDOUT_FILENO) < 0)
		abort();
	f(r, o);
	fflush(stdout);
	dup2(keep, STDOUT_FILENO);
	close(keep);
	rewind(file);
	n = fread(text, 1, sizeof(text) - 1, file);
	text[n] = 0;
	fclose(file);
	return text;
}

/* Whether f prints that of these rows and the fact that k is v. */
static inline void is_printed(void (*f)(const struct bench_result *, const struct bench_opts *),
			      const struct bench_row *rows, size_t n, const char *want, const char *what)
{
	struct bench_result r = { .tool = "t" };

	bench_fact(&r, "k", "v");
	for (size_t i = 0; i < n; i++)
		bench_row(&r, &rows[i]);
	is_text(printed(f, &r, NULL), want, what);
	bench_result_free(&r);
}

/* Whether f, in a process of its own, ends with that status and says text on stderr. */
static inline bool ends(void (*f)(const void *), const void *arg, int want, const char *text)
{
	char said[1024] = "";
	int status, pipes[2];
	size_t len = 0;
	ssize_t n;
	pid_t pid;

	if (pipe(pipes))
		abort();
	fflush(stdout);
	pid = fork();
	if (!pid) {
		dup2(pipes[1], STDERR_FILENO);
		f(arg);
		_exit(0);
	}
	close(pipes[1]);
	while ((n = read(pipes[0], said + len, sizeof(said) - 1 - len)) > 0)
		len += (size_t)n;
	close(pipes[0]);
	waitpid(pid, &status, 0);
	if (WIFEXITED(status) && WEXITSTATUS(status) == want && strstr(said, text))
		return true;
	printf("# status %#x, %s\n", status, said);
	return false;
}

#endif
