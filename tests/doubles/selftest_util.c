// SPDX-License-Identifier: MIT
/* What the doubles' self-tests share: TAP output, children, VMM memory. */
#include "selftest.h"
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

struct want want_on(int dev, int handle_types)
{
	return (struct want){ .type = 1, .handle_types = handle_types, .place = { 1, dev } };
}

struct vmm vmm_make(int dev, size_t size, int handle_types)
{
	struct grant g = { { 1, dev }, 3 };
	struct want w = want_on(dev, handle_types);
	struct vmm v = { .size = size };

	IS(cuMemCreate(&v.handle, size, &w, 0), 0);
	IS(cuMemAddressReserve(&v.addr, size, 0, 0, 0), 0);
	IS(cuMemMap(v.addr, size, 0, v.handle, 0), 0);
	IS(cuMemSetAccess(v.addr, size, &g, 1), 0);
	return v;
}

void vmm_free(struct vmm *v)
{
	IS(cuMemUnmap(v->addr, v->size), 0);
	IS(cuMemAddressFree(v->addr, v->size), 0);
	IS(cuMemRelease(v->handle), 0);
}
