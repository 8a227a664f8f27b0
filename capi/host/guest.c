// SPDX-License-Identifier: MIT
#define _GNU_SOURCE
#include "guest.h"

#include <errno.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

void gdr_guest_enter(struct gdr_guest *g)
{
	g->error = errno;
	gdr_hold_signals(gdr_open_inside(), &g->held);
	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &g->cancel);
	gdr_float_enter(&g->floats);
}

void gdr_guest_leave(const struct gdr_guest *g)
{
	gdr_float_leave(&g->floats);
	pthread_setcancelstate(g->cancel, NULL);
	gdr_release_signals(g->held);
	errno = g->error;
}

void *gdr_map_memory(void *addr, size_t len, int prot, int flags)
{
	void *mem = (void *)syscall(SYS_mmap, addr, len, PROT_NONE, flags, -1, 0l);
	int rc;

	if (mem == MAP_FAILED)
		return mem;
	syscall(SYS_munlock, mem, len);
	syscall(SYS_madvise, mem, len, MADV_DONTFORK);
	if (prot == PROT_NONE || !syscall(SYS_mprotect, mem, len, prot))
		return mem;
	rc = errno;
	syscall(SYS_munmap, mem, len);
	errno = rc;
	return MAP_FAILED;
}
