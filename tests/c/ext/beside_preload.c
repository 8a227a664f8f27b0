// SPDX-License-Identifier: MIT
/*
 * ext/beside_preload.c - a library for LD_PRELOAD: runs any test program beside a capture
 * that another thread holds open, from the first call after cuInit to the end.
 *
 * The capture is in the global mode, which unsafe calls of any thread lose. The program's
 * own calls are to lose none, so its threads are in the relaxed mode, but while they are
 * in the library. The first function in which the capture is lost ends the process.
 * Copies are not looked at: signal handlers make them, too.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { GLOBAL, THREAD_LOCAL, RELAXED };	/* CUstreamCaptureMode */
enum { ACTIVE = 1 };			/* CUstreamCaptureStatus */

static struct {
	int (*exchange)(int *mode);
	int (*device_count)(int *n);
	int (*ctx_create)(void **ctx, unsigned int flags, int dev);
	int (*push)(void *ctx);
	int (*pop)(void **ctx);
	int (*stream_create)(void **stream, unsigned int flags);
	int (*begin)(void *stream, int mode);
	int (*status)(void *stream, int *status);
} cu;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static void *ctx, *stream;
static atomic_int holder;	/* the process whose capture it is */

static void fail(const char *what, const char *function)
{
	fprintf(stderr, "capture beside: %s%s%s\n", what, function ? " in " : "", function ? function : "");
	abort();
}

static bool find(void *lib, const char *name, void *place)
{
	*(void **)place = dlsym(lib, name);
	return *(void **)place;
}

/* Whether CUDA is loaded and initialised in this process. */
static bool has_cuda(void)
{
	void *lib = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
	int n;

	return lib && find(lib, "cuThreadExchangeStreamCaptureMode", &cu.exchange) &&
	       find(lib, "cuDeviceGetCount", &cu.device_count) && find(lib, "cuCtxCreate_v2", &cu.ctx_create) &&
	       find(lib, "cuCtxPushCurrent_v2", &cu.push) && find(lib, "cuCtxPopCurrent_v2", &cu.pop) &&
	       find(lib, "cuStreamCreate", &cu.stream_create) && find(lib, "cuStreamBeginCapture_v2", &cu.begin) &&
	       find(lib, "cuStreamIsCapturing", &cu.status) && !cu.device_count(&n) && n > 0;
}

/* A context of its own: cuCtxSynchronize of the program's would end the capture of its own. */
static void *hold(void *ready)
{
	if (cu.ctx_create(&ctx, 0, 0) || cu.stream_create(&stream, 1) || cu.begin(stream, GLOBAL))
		fail("no capture can be made", NULL);
	atomic_store((atomic_bool *)ready, true);
	for (;;)
		pause();
	return NULL;
}

static bool held(void)
{
	static atomic_bool ready;
	pthread_t t;

	if (atomic_load(&holder) == getpid())
		return true;
	if (!has_cuda())
		return false;
	pthread_mutex_lock(&lock);
	if (atomic_load(&holder) != getpid()) {
		atomic_store(&ready, false);
		if (pthread_create(&t, NULL, hold, &ready))
			fail("no thread", NULL);
		while (!atomic_load(&ready))
			usleep(100);
		atomic_store(&holder, (int)getpid());
	}
	pthread_mutex_unlock(&lock);
	return true;
}

static void set_mode(int mode)
{
	if (cu.exchange(&mode))
		fail("the mode cannot be set", NULL);
}

static void before(void)
{
	if (held())
		set_mode(GLOBAL);
}

static void after(const char *function)
{
	int status = 0, saved = errno;
	void *popped;

	if (held()) {
		set_mode(RELAXED);
		if (cu.push(ctx) || cu.status(stream, &status) || cu.pop(&popped) || status != ACTIVE)
			fail("the capture is lost", function);
	}
	errno = saved;
}

enum { TAKES_G = 1, TAKES_MH = 2, TAKES_MEM = 4, TAKES_CACHE = 8 };

/* All arguments and results are words. What takes a mapped buffer alone is a copy. */
#define HANDLES(function, takes)							\
	long function(long a, long b, long c, long d, long e, long f)			\
	{										\
		static long (*real)(long, long, long, long, long, long);		\
		long r;									\
											\
		if (!real)								\
			*(void **)&real = dlsym(RTLD_NEXT, #function);			\
		if ((takes) == TAKES_MH)						\
			return real(a, b, c, d, e, f);					\
		before();								\
		r = real(a, b, c, d, e, f);						\
		after(#function);							\
		return r;								\
	}
#define OTHER(function) HANDLES(function, 0)
#define NOTHING(function) HANDLES(function, 0)
#include "functions.h"
