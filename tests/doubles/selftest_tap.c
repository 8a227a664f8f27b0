// SPDX-License-Identifier: MIT
/* TAP output of the doubles' self-tests. */
#include "selftest.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

static unsigned int passed, failed;

long tap_is(long got, long want, const char *what, const char *file, int line)
{
	bool ok = got == want;

	printf("%sok %u - %s\n", ok ? "" : "not ", passed + failed + 1, what);
	if (!ok)
		printf("# %s:%d: got %ld, want %ld\n", file, line, got, want);
	if (ok)
		passed++;
	else
		failed++;
	return got;
}

int tap_end(void)
{
	printf("1..%u\n%u passed, %u failed, 0 skipped\n", passed + failed, passed, failed);
	return failed ? EXIT_FAILURE : EXIT_SUCCESS;
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
