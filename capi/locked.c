// SPDX-License-Identifier: MIT
#define _GNU_SOURCE
#include "locked.h"

#include <stdbool.h>
#include <sys/mman.h>

#include "driver.h"

#define CU_MEMHOSTREGISTER_DEVICEMAP 2
#define CU_STREAM_CAPTURE_MODE_RELAXED 2

/* Functions of libcuda.so.1. All return a CUresult. */
struct locker {
	int (*lock)(void *addr, size_t n, unsigned int flags);
	int (*unlock)(void *addr);
	int (*gpu_address)(uint64_t *at, void *addr, unsigned int flags);
	int (*exchange_mode)(int *mode);
};

static bool find_all(struct locker *l)
{
	return gdr_driver_find("cuMemHostRegister_v2", &l->lock) &&
	       gdr_driver_find("cuMemHostUnregister", &l->unlock) &&
	       gdr_driver_find("cuMemHostGetDevicePointer_v2", &l->gpu_address) &&
	       gdr_driver_find("cuThreadExchangeStreamCaptureMode", &l->exchange_mode);
}

static bool lock(const struct locker *l, void *p, size_t n, uint64_t *gpu_at)
{
	if (l->lock(p, n, CU_MEMHOSTREGISTER_DEVICEMAP))
		return false;
	if (!l->gpu_address(gpu_at, p, 0))
		return true;
	l->unlock(p);
	return false;
}

void *gdr_locked_new(size_t n, uint64_t *gpu_at)
{
	int mode = CU_STREAM_CAPTURE_MODE_RELAXED;
	struct locker l;
	bool locked;
	void *p;

	if (!find_all(&l))
		return NULL;
	p = mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (p == MAP_FAILED)
		return NULL;
	madvise(p, n, MADV_DONTFORK);
	/* A capture of a CUDA graph on another thread must go on. */
	locked = !l.exchange_mode(&mode);
	if (locked) {
		locked = lock(&l, p, n, gpu_at);
		l.exchange_mode(&mode);
	}
	if (locked)
		return p;
	munmap(p, n);
	return NULL;
}

void gdr_locked_free(void *p, size_t n)
{
	struct locker l;

	if (find_all(&l))
		l.unlock(p);
	munmap(p, n);
}
