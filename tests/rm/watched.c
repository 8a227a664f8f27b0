// SPDX-License-Identifier: MIT
/* A stand-in for libcuda, in variants. */
#define _GNU_SOURCE
#include "watched.h"

#include <errno.h>
#include <stdint.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <unistd.h>

/* WATCHED_ABSENT: ioctl is not called by name. */
int watched_ioctl(int fd, unsigned long request, void *arg)
{
#ifdef WATCHED_ABSENT
	return syscall(SYS_ioctl, fd, request, arg);
#else
	return ioctl(fd, request, arg);
#endif
}

int watched_export(void *handle, unsigned long long addr, size_t size, int type,
		   unsigned long long flags)
{
	struct watched_plan *plan = (void *)(uintptr_t)addr;

	plan->calls++;
	plan->size = size;
	plan->type = type;
	plan->flags = flags;
	if (plan->middle)
		plan->middle(plan->arg);
	for (size_t i = 0; i < plan->requests; i++) {
		struct watched_request *r = &plan->request[i];

		errno = 0;
		r->result = watched_ioctl(r->fd, r->request, r->arg);
		r->error = errno;
	}
	*(int *)handle = plan->fd;
	return plan->result;
}
