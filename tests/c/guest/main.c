// SPDX-License-Identifier: MIT
/*
 * guest/main.c - runs the cases of a guest program.
 *
 *	PROGRAM [--long] [-l] [--skip CASE]... [CASE ...]
 */
#include "common.h"

bool guest_long;
double guest_scale = 1;

#define LOG_ROOM (1 << 20)

/*
 * A case's standard error, with the library's log. It is printed if the case fails. What comes when its room is used is
 * lost: some cases have calls refused all the time.
 */
static void catch_errors(int fd)
{
	if (fd < 0 || dup2(fd, STDERR_FILENO) < 0)
		return;
	close(fd);
	setenv("GDRCOPY_ENABLE_LOGGING", "1", 0);
	setenv("GDRCOPY_LOG_LEVEL", "3", 0);
}

static int open_log(void)
{
	int fd = memfd_create("stderr", MFD_ALLOW_SEALING);

	if (fd >= 0 && (ftruncate(fd, LOG_ROOM) || fcntl(fd, F_ADD_SEALS, F_SEAL_GROW))) {
		close(fd);
		fd = -1;
	}
	return fd;
}

static void print_log(int fd)
{
	static char text[LOG_ROOM];
	off_t n = lseek(fd, 0, SEEK_CUR);

	if (n > 0 && pread(fd, text, n, 0) == n)
		fwrite(text, 1, n, stdout);
}

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
	int status, log = open_log();
	pid_t pid;

	fflush(stdout);
	pid = fork();
	if (pid < 0) {
		tap_ok(t, 0, "%s (fork: %s)", c->name, strerror(errno));
		return;
	}
	if (!pid) {
		setpgid(0, 0);
		catch_errors(log);
		make(c);
	}
	setpgid(pid, pid);
	status = wait_child(pid, limit);
	kill(-pid, SIGKILL);
	if (status != -1 && WIFEXITED(status) && WEXITSTATUS(status) == GUEST_SKIP) {
		tap_skip(t, "the line above says why", "%s", c->name);
	} else {
		if (status == -1)
			note("%s: killed after %d s", c->name, PATIENCE * limit);
		else if (WIFSIGNALED(status))
			note("%s: died of signal %d", c->name, WTERMSIG(status));
		if (status)
			print_log(log);
		tap_ok(t, !status, "%s", c->name);
	}
	close(log);
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
