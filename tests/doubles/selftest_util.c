// SPDX-License-Identifier: MIT
/* What the doubles' self-tests share: TAP output, children. */
#include "selftest_tap.h"
#include "tap.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

static struct tap tap;

long tap_is_at(long got, long want, const char *what, const char *file, int line)
{
	if (!tap_ok(&tap, got == want, "%s", what))
		printf("# %s:%d: got %ld, want %ld\n", file, line, got, want);
	return got;
}

int tap_end(void)
{
	return tap_done(&tap);
}

int in_child(int (*fn)(void *), void *arg)
{
	int status;
	pid_t pid;

	fflush(stdout);
	pid = fork();
	if (pid == 0)
		_exit(fn(arg));
	if (pid < 0 || waitpid(pid, &status, 0) != pid)
		return -1000;
	return WIFSIGNALED(status) ? -WTERMSIG(status) : WEXITSTATUS(status);
}
