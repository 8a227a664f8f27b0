// SPDX-License-Identifier: MIT
/*
 * guest/main.c - runs the cases of a guest program.
 *
 *	PROGRAM [--long] [-l] [--skip CASE]... [CASE ...]
 */
#include "common.h"

bool guest_long;
double guest_scale = 1;

static int scaled_limit(int seconds)
{
	return guest_scale > 1 ? seconds * guest_scale : seconds;
}

__attribute__((noreturn)) static void make(const struct guest_case *c)
{
	if (c->run)
		c->run();
	else
		c->run_with(c->arg);
	fflush(stdout);
	_exit(0);
}

/* Runs one case in a process and a process group of its own. */
static void run_case(struct tap *t, const struct guest_case *c)
{
	int limit = scaled_limit(guest_long && c->long_s ? c->long_s : c->short_s);
	int status;
	pid_t pid;

	fflush(stdout);
	pid = fork();
	if (pid < 0) {
		tap_ok(t, 0, "%s (fork: %s)", c->name, strerror(errno));
		return;
	}
	if (!pid) {
		setpgid(0, 0);
		make(c);
	}
	setpgid(pid, pid);
	status = wait_child(pid, limit);
	kill(-pid, SIGKILL);
	if (status != -1 && WIFEXITED(status) && WEXITSTATUS(status) == GUEST_SKIP) {
		tap_skip(t, "the line above says why", "%s", c->name);
		return;
	}
	if (status == -1)
		note("%s: killed after %d s", c->name, PATIENCE * limit);
	else if (WIFSIGNALED(status))
		note("%s: died of signal %d", c->name, WTERMSIG(status));
	tap_ok(t, status == 0, "%s", c->name);
}

static void read_scale(void)
{
	const char *set = getenv("GUEST_SCALE");
	char *end;

	if (!set)
		return;
	guest_scale = strtod(set, &end);
	if (*end || !(guest_scale > 0 && guest_scale <= 1000)) {
		fputs("GUEST_SCALE: a number above 0 and up to 1000\n", stderr);
		exit(2);
	}
}

int main(int argc, char **argv)
{
	bool list = false, some = false, anew = argc == 3 && !strcmp(argv[1], "--anew");
	struct tap t = { 0, 0, 0 };

	setvbuf(stdout, NULL, _IOLBF, 0);
	read_scale();
	for (int i = 1; i < argc; i++) {
		if (!strcmp(argv[i], "--long"))
			guest_long = true;
		else if (!strcmp(argv[i], "-l"))
			list = true;
		else if (!strcmp(argv[i], "--skip"))
			i++;
		else
			some = true;
	}
	for (const struct guest_case *c = cases; c->name; c++) {
		bool asked = !some, skip = false;

		for (int i = 1; i < argc; i++) {
			if (!strcmp(argv[i], "--skip") && i + 1 < argc)
				skip |= !strcmp(argv[++i], c->name);
			else
				asked |= !strcmp(argv[i], c->name);
		}
		if (anew && asked)
			make(c);
		else if (!c->short_s)
			continue;
		else if (list)
			puts(c->name);
		else if (skip)
			tap_skip(&t, "by --skip", "%s", c->name);
		else if (asked)
			run_case(&t, c);
	}
	return list ? 0 : tap_done(&t);
}
