/* SPDX-License-Identifier: MIT */
/*
 * watched.h - a stand-in for libcuda, for the tests of capi/guest/watch.c.
 *
 * It is no CUDA. Its export makes the requests that its caller lists. addr, which
 * in CUDA is an address of the GPU, is here the address of a struct watched_plan.
 */
#ifndef WATCHED_H
#define WATCHED_H

#include <stddef.h>

struct watched_request {
	int fd;
	unsigned long request;
	void *arg;
	int result;		/* of ioctl */
	int error;		/* errno after it */
};

struct watched_plan {
	void (*middle)(void *arg);	/* called before the requests; may be NULL */
	void *arg;
	struct watched_request *request;
	size_t requests;
	int fd;			/* given to the caller */
	int result;		/* CUresult, returned */

	/* what the export was called with */
	int calls;
	size_t size;
	int type;
	unsigned long long flags;
};

/* The signature of cuMemGetHandleForAddressRange. */
int watched_export(void *handle, unsigned long long addr, size_t size, int type,
		   unsigned long long flags);

/* Calls ioctl as the export does, from any thread. */
int watched_ioctl(int fd, unsigned long request, void *arg);

#endif
