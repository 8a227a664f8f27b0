// SPDX-License-Identifier: MIT
#define _GNU_SOURCE
#include "driver.h"

#include <dlfcn.h>
#include <errno.h>
#include <linux/futex.h>
#include <stdatomic.h>
#include <string.h>
#include <time.h>

#include "copy/signals.h"

static const char library[] = "libcuda.so.1";

#define LOADING_SECONDS 10

static _Atomic uint32_t cuda_state;	/* a futex */

/* Runs in the thread that loads. */
static __thread bool loads_here __attribute__((tls_model("initial-exec")));

static void *load_cuda(void *unused)
{
	const char *why = NULL;
	uint32_t state = GDR_DRIVER_LOADED;

	loads_here = true;
	if (!dlopen(library, RTLD_NOW | RTLD_LOCAL)) {
		why = dlerror();
		state = why && strstr(why, strerror(ENOENT)) ? GDR_DRIVER_NOT_FOUND : GDR_DRIVER_BROKEN;
	}
	loads_here = false;
	atomic_store(&cuda_state, state);
	syscall(SYS_futex, &cuda_state, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
	return unused;
}

static void load_cuda_aside(void)
{
	const struct timespec limit = { .tv_sec = LOADING_SECONDS };
	pthread_t thread;

	if (pthread_create(&thread, NULL, load_cuda, NULL)) {
		atomic_store(&cuda_state, GDR_DRIVER_BROKEN);
		return;
	}
	pthread_detach(thread);
	if (atomic_load(&cuda_state) == GDR_DRIVER_LOADING)
		syscall(SYS_futex, &cuda_state, FUTEX_WAIT_PRIVATE, GDR_DRIVER_LOADING, &limit, NULL, 0);
}

static pid_t process_at_load;

static __attribute__((constructor)) void note_process(void)
{
	process_at_load = getpid();
}

uint32_t gdr_driver_load(struct gdr_driver *driver)
{
	uint64_t mask;

	if (driver->stuck) {
		driver->stuck = atomic_load(&cuda_state) == GDR_DRIVER_LOADING;
		return atomic_load(&cuda_state);
	}
	gdr_hold_signals(gdr_signal_bit(SIGSETXID), &mask);
	pthread_mutex_lock(&driver->loading);
	atomic_store(&cuda_state, GDR_DRIVER_LOADING);
	if (getpid() == process_at_load)
		load_cuda(NULL);
	else
		load_cuda_aside();
	pthread_mutex_unlock(&driver->loading);
	gdr_release_signals(mask);
	driver->stuck = atomic_load(&cuda_state) == GDR_DRIVER_LOADING;
	return atomic_load(&cuda_state);
}

void gdr_driver_before_fork(struct gdr_driver *driver)
{
	if (!loads_here)
		pthread_mutex_lock(&driver->loading);
}

void gdr_driver_after_fork(struct gdr_driver *driver)
{
	if (!loads_here)
		pthread_mutex_unlock(&driver->loading);
}

bool gdr_driver_find(const char *name, void *place)
{
	void *lib = dlopen(library, RTLD_NOW | RTLD_NOLOAD);
	void *f = lib ? dlsym(lib, name) : NULL;

	*(void **)place = f;
	return f != NULL;
}
