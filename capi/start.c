// SPDX-License-Identifier: MIT
/*
 * start.c - the state of the C front, and the start of the Go core, in this process
 * or in a forked child of it. docs/design.md has the picture.
 */
#define _GNU_SOURCE
#include "copy/cpus.h"
#include "copy/direct.h"
#include "front.h"
#include "guest.h"
#include "runtime.h"

#include "_cgo_export.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <linux/futex.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#ifndef MADV_WIPEONFORK
#define MADV_WIPEONFORK 18	/* Linux 4.14 */
#endif

_Atomic(struct gdr_front *) gdr_front_page;

/*
 * Outlives a fork on purpose: the epoch of the newest core of this process or its
 * ancestors. Written under gdr_front.lock.
 */
static _Atomic uint64_t last_epoch;

/* Called under the front's lock, again after a failure. */
static int core_start(struct gdr_front *front, uint32_t epoch)
{
	uintptr_t addr = 0;
	struct gdr_guest guest;
	int rc = 0;

	gdr_guest_enter(&guest);
	if (!front->runs)
		rc = gdr_runtime_start();
	if (!rc) {
		front->runs = true;
		/* Waits until the runtime, which starts in a thread, is up. */
		rc = gdrcore_init(epoch, &addr);
	}
	gdr_guest_leave(&guest);
	front->table = (struct gdr_table *)addr;
	return rc;
}

const struct gdr_core gdr_own_core = {
	.open = gdrcore_open,
	.close = gdrcore_close,
	.pin = gdrcore_pin,
	.unpin = gdrcore_unpin,
	.map = gdrcore_map,
	.unmap = gdrcore_unmap,
	.info = gdrcore_info,
	.callback_flag = gdrcore_callback_flag,
	.attribute = gdrcore_attribute,
	.driver_version = gdrcore_driver_version,
	.backend = gdrcore_backend,
	.mem_alloc = gdrcore_mem_alloc,
	.mem_free = gdrcore_mem_free,
	.mem_ptr = gdrcore_mem_ptr,
};

/* The thread that loads a driver: one that starts a program there is not waited for. */
static __thread bool loads_here __attribute__((tls_model("initial-exec")));

/* The one user of a page that fork empties where the kernel cannot (< 4.14). */
static void empty_page_in_child(void)
{
	memset(atomic_load(&gdr_front_page), 0, sizeof(struct gdr_front));
}

/* A fork waits until the driver's library is there. The child's page is empty. */
static void before_fork(void)
{
	if (!loads_here)
		pthread_mutex_lock(&atomic_load(&gdr_front_page)->loading);
}

static void after_fork(void)
{
	if (!loads_here)
		pthread_mutex_unlock(&atomic_load(&gdr_front_page)->loading);
}

static struct gdr_front *front_page(void)
{
	struct gdr_front *mine, *theirs = NULL;
	size_t len = sizeof(struct gdr_front);

	mine = atomic_load_explicit(&gdr_front_page, memory_order_acquire);
	if (mine)
		return mine;
	mine = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (mine == MAP_FAILED)
		return NULL;
	bool wiped = madvise(mine, len, MADV_WIPEONFORK) == 0;

	if (!atomic_compare_exchange_strong(&gdr_front_page, &theirs, mine)) {
		munmap(mine, len);
		return theirs;
	}
	pthread_atfork(before_fork, after_fork, wiped ? NULL : empty_page_in_child);
	return mine;
}

/* Starts a core for front, whose lock is held. Returns 0 or an errno value. */
static int start_locked(struct gdr_front *front)
{
	const char *impl_name = getenv("GDRCOPY_COPY_IMPL");
	uint64_t epoch = atomic_load(&last_epoch) + 1;
	const char *bad;
	int rc;

	front->impl = copy_select(impl_name);
	if (!front->impl) {
		gdr_log(GDR_LOG_ERROR,
			"GDRCOPY_COPY_IMPL=%s: no such copy routine, or this CPU cannot run it; unset it",
			impl_name);
		return EINVAL;
	}
	/* Who names a routine gets its stores and no others. */
	front->direct = !impl_name && copy_has_direct();
	rc = copy_pool_want_env(&bad);
	if (rc) {
		gdr_log(GDR_LOG_ERROR, "%s is not a number from 1 to %u; correct or unset it",
			bad, COPY_THREADS_MAX);
		return rc;
	}
	rc = gdr_dma_want_env(&bad);
	if (rc) {
		gdr_log(GDR_LOG_ERROR, "%s is not a number of bytes, from 1; correct or unset it", bad);
		return rc;
	}
	rc = copy_auto_want_env();
	if (rc) {
		gdr_log(GDR_LOG_ERROR, "GDRCOPY_COPY is neither \"caller\" nor \"auto\"; correct or unset it");
		return rc;
	}
	if (copy_auto_is_on())
		copy_pool_suggest(GDR_AUTO_READ_THREADS, GDR_AUTO_WRITE_THREADS);
	gdr_data_set_limits();
	if (epoch > GDR_HANDLE_EPOCH_MAX) {
		gdr_log(GDR_LOG_ERROR, "gdr_open: %d generations of forks have opened; no more handles to tell apart",
			GDR_HANDLE_EPOCH_MAX);
		return EAGAIN;
	}
	rc = core_start(front, epoch);
	if (rc) {
		gdr_log(GDR_LOG_ERROR, "gdr_open: the core did not start: %s", strerror(rc));
		return rc;
	}
	front->epoch = epoch;
	atomic_store(&last_epoch, epoch);
	atomic_store_explicit(&front->core, &gdr_own_core, memory_order_release);
	return 0;
}

static bool is_absent(const char *path)
{
	return access(path, F_OK) && errno == ENOENT;
}

/*
 * The driver's library is loaded here, before the core asks for it, and no fork
 * comes meanwhile (front->loading): a child would have a library that is half
 * there. A child whose loader is held by a thread that is not there any more would
 * wait for ever, so it has another thread load.
 */
#define LOADING_SECONDS 10

enum { LOADING, LOADED, NOT_FOUND, BROKEN };

static _Atomic uint32_t cuda_state;	/* a futex */

static void *load_cuda(void *unused)
{
	const char *why = NULL;
	uint32_t state = LOADED;

	loads_here = true;
	if (!dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL)) {
		why = dlerror();
		state = why && strstr(why, strerror(ENOENT)) ? NOT_FOUND : BROKEN;
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
		atomic_store(&cuda_state, BROKEN);
		return;
	}
	pthread_detach(thread);
	if (atomic_load(&cuda_state) == LOADING)
		syscall(SYS_futex, &cuda_state, FUTEX_WAIT_PRIVATE, LOADING, &limit, NULL, 0);
}

static pid_t process_at_load;

static __attribute__((constructor)) void note_process(void)
{
	process_at_load = getpid();
}

/* Under the front's lock. What has failed is tried again; who has not ended may yet. */
static uint32_t find_cuda(struct gdr_front *front)
{
	uint64_t mask;

	if (front->stuck) {
		front->stuck = atomic_load(&cuda_state) == LOADING;
		return atomic_load(&cuda_state);
	}
	gdr_hold_signals(gdr_signal_bit(SIGSETXID), &mask);
	pthread_mutex_lock(&front->loading);
	atomic_store(&cuda_state, LOADING);
	if (getpid() == process_at_load)
		load_cuda(NULL);
	else
		load_cuda_aside();
	pthread_mutex_unlock(&front->loading);
	gdr_release_signals(mask);
	front->stuck = atomic_load(&cuda_state) == LOADING;
	return atomic_load(&cuda_state);
}

static bool wants_cuda(const struct gdr_options *opts)
{
	if (opts->backend && *opts->backend)
		return strcmp(opts->backend, "gdrdrv");
	return opts->force_dmabuf || is_absent("/dev/gdrdrv");
}

/* A backend that is asked for by name says itself what it lacks. */
static bool may_be_any(const struct gdr_options *opts)
{
	return !(opts->backend && *opts->backend) && !opts->force_dmabuf;
}

/*
 * What can be told of the drivers before anything is started: programs that only
 * ask for a GPU pay for no start. It must be certain.
 */
static int check_drivers(struct gdr_front *front, const struct gdr_options *opts)
{
	uint32_t cuda;

	if (!wants_cuda(opts))
		return 0;
	cuda = find_cuda(front);
	if (cuda == LOADING) {
		gdr_log(GDR_LOG_ERROR, "gdr_open: when this process was forked, another thread of its parent was loading a library, so that none can be loaded here; fork at another time, or load libcuda.so.1 before it (errno %d)",
			EBUSY);
		return EBUSY;
	}
	if (cuda == NOT_FOUND && may_be_any(opts) && is_absent("/dev/nvidiactl")) {
		gdr_log(GDR_LOG_ERROR, "gdr_open: no GPU here: there is no /dev/gdrdrv, no /dev/nvidiactl, and no libcuda.so.1; install a driver (errno %d)",
			ENODEV);
		return ENODEV;
	}
	return 0;
}

struct gdr_front *gdr_front_start(const struct gdr_options *opts)
{
	struct gdr_front *front = front_page();
	int rc = 0, cancel;

	if (!front)
		return NULL;
	if (atomic_load_explicit(&front->core, memory_order_acquire))
		return front;
	/* A start calls what ends a cancelled thread: not with the lock held. */
	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancel);
	pthread_mutex_lock(&front->lock);
	if (!atomic_load_explicit(&front->core, memory_order_relaxed)) {
		rc = check_drivers(front, opts);
		if (!rc)
			rc = start_locked(front);
	}
	pthread_mutex_unlock(&front->lock);
	pthread_setcancelstate(cancel, NULL);
	errno = rc;
	return rc ? NULL : front;
}

int gdr_front_start_threads(struct gdr_front *front)
{
	int rc, error = errno;

	if (!copy_pool_short(atomic_load(&front->pool)))
		return 0;
	pthread_mutex_lock(&front->lock);
	rc = copy_pool_start(&front->pool, copy_cpus_allowed());
	pthread_mutex_unlock(&front->lock);
	if (rc == ERANGE) {
		gdr_log(GDR_LOG_WARN, "fewer threads share a copy than were asked for: the thread that starts them may run on too few CPUs; let it run on more");
		rc = 0;
	}
	if (rc)
		gdr_log(GDR_LOG_ERROR, "fewer threads share a copy than were asked for: %s; raise the limit of threads or of memory",
			strerror(rc));
	errno = error;
	return rc;
}

static void prepare_dma(struct gdr_front *front, const struct gdr_core *core, uint64_t g, uint64_t h)
{
	struct gdr_core_info info = { 0 };
	struct gdr_guest guest;
	int rc;

	/* No signal and no end of the thread comes while the lock is held. */
	gdr_guest_enter(&guest);
	rc = core->info(g, h, &info);
	if (!rc) {
		pthread_mutex_lock(&front->lock);
		gdr_dma_map(&front->dma, h, info.va);
		pthread_mutex_unlock(&front->lock);
	}
	gdr_guest_leave(&guest);
}

/* All that a copy cannot do: it may run in a signal handler. */
void gdr_front_mapped(struct gdr_front *front, const struct gdr_core *core, uint64_t g, uint64_t h)
{
	gdr_front_start_threads(front);
	if (copy_auto_is_on() || atomic_load(&gdr_dma_least_to) != SIZE_MAX ||
	    atomic_load(&gdr_dma_least_from) != SIZE_MAX)
		prepare_dma(front, core, g, h);
}

static uint64_t own_epoch(void)
{
	struct gdr_front *front = atomic_load_explicit(&gdr_front_page, memory_order_acquire);

	if (!front || !atomic_load_explicit(&front->core, memory_order_acquire))
		return 0;
	return front->epoch;
}

bool gdr_front_inherited(uint64_t handle)
{
	uint64_t epoch = handle >> GDR_HANDLE_EPOCH_SHIFT;

	return epoch && epoch != own_epoch() && epoch <= atomic_load(&last_epoch);
}

int gdr_front_admit(uint64_t a, uint64_t b, const struct gdr_core **core)
{
	struct gdr_front *front = atomic_load_explicit(&gdr_front_page, memory_order_acquire);

	if (gdr_front_inherited(a) || gdr_front_inherited(b)) {
		gdr_log(GDR_LOG_ERROR, "a handle from before fork() does not work in the child; call gdr_open here (errno %d)",
			EACCES);
		return EACCES;
	}
	*core = front ? atomic_load_explicit(&front->core, memory_order_acquire) : NULL;
	if (*core)
		return 0;
	gdr_log(GDR_LOG_ERROR, "no gdr_t is open in this process; call gdr_open first (errno %d)", EINVAL);
	return EINVAL;
}
